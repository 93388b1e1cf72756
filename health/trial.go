package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// trialAfterSilence is how long the class that took an instance out must have
// been silent for a trial to take the place of its return (HEALTH.md §4).
const trialAfterSilence = 300 * time.Second

// trial is a return that was not earned by evidence: nobody could give any
// while the instance was out. It lasts until its ramp ends.
type trial struct {
	runs bool
	// onCallersWord: callers took it out. They stay primary, silent or not,
	// from the withdrawal until the ramp of the return ends.
	onCallersWord bool
}

// trialAt is when the instance may return by a trial; zero: not on what took it
// out, or not on this evidence. Every mark that is left must allow it.
func (e *Evaluator) trialAt(i *instance) (at time.Time) {
	if len(i.outs) == 0 || i.draining() {
		return time.Time{}
	}
	for k := range i.outs {
		by := e.trialOf(i, &i.outs[k])
		if by.IsZero() {
			return time.Time{}
		}
		at = laterOf(at, by)
	}
	return at
}

// trialOf is when one mark allows a trial.
func (e *Evaluator) trialOf(i *instance, m *mark) time.Time {
	switch {
	case e.byTrial(i, m):
		return laterOf(m.at, i.self.lastDraining).Add(i.terms.returnHold)
	case m.rule == R2, m.rule == R3, m.rule == R5:
		// A class that speaks has its own return.
		return laterOf(e.silentAt(i, m.rule.class()), m.at).Add(trialAfterSilence)
	default:
		return time.Time{}
	}
}

// byTrial reports whether what the mark stands for has no return but a trial.
func (e *Evaluator) byTrial(i *instance, m *mark) bool {
	return m.rule == R4 || (m.rule == R3 || m.rule == R5) && !i.supplies(registry.ClassProbe)
}

// trialMay reports whether nothing speaks against a trial: a supplied class
// other than the ones that took the instance out, or a quarantine.
func (e *Evaluator) trialMay(i *instance) bool {
	bad := i.seen.bad
	for k := range i.outs {
		if i.outs[k].rule == R4 {
			bad &^= 1 << registry.ClassCallers
		}
	}
	return bad == 0 && !i.quarantine.runs()
}

// try begins a trial. What was said of the instance before it says nothing of
// it now.
func (e *Evaluator) try(i *instance) {
	i.trial.runs = true
	for k := range i.outs {
		switch m := &i.outs[k]; m.rule.class() {
		case registry.ClassSelf:
			i.self.forget()
		case registry.ClassProbe:
			i.probes.clear()
			i.seen.probe = probeReading{}
		}
	}
	e.callers.clear(i)
	i.seen.callers = callersReading{}
	i.seen.fresh &^= 1 << registry.ClassCallers
	i.seen.bad = 0
	i.outs = nil
}
