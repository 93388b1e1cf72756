package health

import (
	"time"
)

// tallying is what the evaluator keeps for the region's observers.
type tallying struct{}

// noteWithdrawal counts a member that R3, R4 or R5 took out just now: the
// region's brake looks at how many they are.
func (e *Evaluator) noteWithdrawal(i *instance) {}

// noteWaiting says whether a member's withdrawal waits for the region's brake.
// It may be said again and again; an instance that goes needs no word.
func (e *Evaluator) noteWaiting(i *instance, waits bool) {}

// hearProbe records a probe's result on the instance.
func (e *Evaluator) hearProbe(i *instance, s *Sample) { i.probes.hear(s, &i.terms.probes) }

// Tally counts what the region's observers have to know of the service. Whom it
// counts as withdrawn it does not name again.
func (e *Evaluator) Tally(now time.Time) Tally {
	return Tally{Name: e.name, Members: e.members}
}
