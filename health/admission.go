package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// admissionSilence is how long a new instance of which nothing is heard waits
// before it becomes a member as unknown (HEALTH.md §5).
const admissionSilence = 30 * time.Second

// admit makes a new instance a member where the rules of HEALTH.md §5 allow it,
// and says what it waits for where they do not.
func (e *Evaluator) admit(i *instance, now time.Time) (waits note, admitted bool) {
	l := &i.lease
	switch {
	case !i.proved():
		return noteUnproved, false
	case i.draining():
		return noteUnadmittedDraining, false
	case l.ended && !now.Before(l.verdictAt(i.row.Lease)):
		// Whoever died before it was ever admitted must not enter by silence.
		l.lapse(now, i.row.Lease)
		return noteUnadmittedLapsed, false
	case i.self.newest.status == NotServing:
		return noteUnadmittedNotServing, false
	case i.profile.Supplies == 0, e.good(i, now):
	case i.terms.silence == registry.SilenceIneligible, now.Before(e.admitsAt(i)):
		// A contract that calls silence ineligible does not admit on it.
		return noteUnadmittedWaits, false
	}
	l.forgive()
	i.outs = nil
	i.member = true
	e.members++
	return noNote, true
}

// admitsAt is when silence admits: after 30 s of it, and not before every
// supplied class counts as silent, so that what it admits is unknown.
func (e *Evaluator) admitsAt(i *instance) time.Time {
	last := i.quietFrom
	var silent time.Time
	for _, c := range classes {
		if i.profile.Supplies.Has(c) {
			last = laterOf(last, i.heard(c))
			silent = laterOf(silent, e.silentAt(i, c))
		}
	}
	return laterOf(last.Add(admissionSilence), silent)
}

// good reports whether a supplied class has fresh and good evidence.
func (e *Evaluator) good(i *instance, now time.Time) bool {
	return e.fresh(i, now).Has(registry.ClassSelf) && i.self.newest.status == Serving
}

// unadmitted is the finding on an instance that is no member: in no view. The
// views may let it stand in for a service that has nothing else left.
func (e *Evaluator) unadmitted(waits note) finding {
	return finding{state: Unknown, rule: Admission, note: waits}
}
