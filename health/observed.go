package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// observedKept is the percent of the weight that is left to an instance that
// observation calls degraded (HEALTH.md §4).
const observedKept = 50

// charge is what R3, R4 or R5 asks for.
type charge struct {
	rule  Rule
	state State // ineligible or degraded
	note  note  // of a degraded state
	// second: another class agrees.
	second bool
}

// waiting is a withdrawal that a rule asks for and that is held back.
type waiting struct {
	what  Wait
	rule  Rule
	since time.Time
	why   string
}

// observed is R3 to R5, the withdrawals by observation. One that has to wait
// leaves the state to the rules that follow.
func (e *Evaluator) observed(i *instance, now time.Time) (finding, bool) {
	c, fires := e.accuse(i)
	if !fires || c.state != Ineligible || len(i.outs) > 0 {
		e.wait(i, NoWait, charge{}, now)
	}
	switch {
	case !fires:
		return finding{}, false
	case c.state != Ineligible:
		if len(i.outs) > 0 {
			return finding{}, false
		}
		return finding{state: Degraded, rule: c.rule, note: c.note, kept: min(observedKept, i.seen.needs.kept)}, true
	case len(i.outs) > 0: // it is out: only its return changes
		e.takeOut(i, c, now)
		return finding{}, false
	}
	if w := e.heldBack(i, c); w != NoWait {
		e.wait(i, w, c, now)
		return finding{}, false
	}
	e.wait(i, NoWait, charge{}, now)
	e.noteWithdrawal(i)
	if i.ramp.runs() && !i.onceFull && e.members > 1 {
		e.putBack(i, c, now)
		return e.unadmitted(noteUnadmittedRetry), true
	}
	e.takeOut(i, c, now)
	return finding{}, false // held says so
}

func (e *Evaluator) takeOut(i *instance, c charge, now time.Time) {
	if !i.outs.has(c.rule) {
		i.outs.set(mark{rule: c.rule, at: now, second: c.second, why: e.describeCharge(i, c)})
	} else {
		i.outs.set(mark{rule: c.rule, second: c.second})
	}
	if c.rule == R4 {
		i.trial.onCallersWord = true
	}
}

// accuse returns the first of R3, R4 and R5 that fires.
func (e *Evaluator) accuse(i *instance) (charge, bool) {
	for _, rule := range [...]func(*instance) (charge, bool){e.refused, e.failsCallers, e.failsProbes} {
		if c, fires := rule(i); fires {
			return c, true
		}
	}
	return charge{}, false
}

// refused is R3: a refused connection is not ambiguous, once two have seen it.
func (e *Evaluator) refused(i *instance) (charge, bool) {
	s := &i.seen
	if !s.fresh.Has(registry.ClassProbe) || s.probe.refusedBy == 0 {
		return charge{}, false
	}
	second := s.bad.Has(registry.ClassCallers) || i.lease.ended ||
		s.fresh.Has(registry.ClassCallers) && s.callers.refusedBy >= 2
	if !second && s.probe.refusedBy < 2 {
		return charge{}, false
	}
	return charge{rule: R3, state: Ineligible, second: second}, true
}

// failsCallers is R4. What looks good to a probe or to the instance does not
// soften it: grey failures look good to both.
func (e *Evaluator) failsCallers(i *instance) (charge, bool) {
	s := &i.seen
	if !s.primary.Has(registry.ClassCallers) || !s.bad.Has(registry.ClassCallers) {
		return charge{}, false
	}
	if s.callers.application {
		return charge{rule: R4, state: Degraded, note: noteApplication}, true
	}
	return charge{rule: R4, state: Ineligible, second: e.secondAgrees(i, registry.ClassCallers)}, true
}

// failsProbes is R5. Where callers decide and are content, what fails is the
// probers' path as likely as the instance.
func (e *Evaluator) failsProbes(i *instance) (charge, bool) {
	s := &i.seen
	if !s.bad.Has(registry.ClassProbe) {
		return charge{}, false
	}
	if !s.primary.Has(registry.ClassProbe) && i.good(registry.ClassCallers) {
		return charge{rule: R5, state: Degraded, note: noteProbeOnly}, true
	}
	return charge{rule: R5, state: Ineligible, second: e.secondAgrees(i, registry.ClassProbe)}, true
}

// secondAgrees reports whether another class is against the instance too. In a
// dead zone a suspect lapse is one (HEALTH.md §6).
func (e *Evaluator) secondAgrees(i *instance, c registry.EvidenceClass) bool {
	return i.otherBad(c) || i.lease.suspect() && e.inDeadZone(i)
}

func (e *Evaluator) inDeadZone(i *instance) bool { return !e.stance.dead(i.row.Zone).IsZero() }

// heldBack says what a withdrawal has to wait for.
func (e *Evaluator) heldBack(i *instance, c charge) Wait {
	switch {
	case c.second:
		return NoWait
	case e.stance.brakes(i.row.Zone):
		return WaitsBrake
	case c.rule == R4 && !i.heldOut:
		// Load that moves from one to the next must not drain the service.
		if t := e.thirds(); t.Out >= t.Most {
			return WaitsThird
		}
	}
	return NoWait
}

// wait notes that a withdrawal waits, or that none does.
func (e *Evaluator) wait(i *instance, w Wait, c charge, now time.Time) {
	if i.waits.what == WaitsBrake || w == WaitsBrake {
		e.noteWaiting(i, w == WaitsBrake)
	}
	switch {
	case w == NoWait:
		i.waits = waiting{}
	case w != i.waits.what || c.rule != i.waits.rule:
		i.waits = waiting{what: w, rule: c.rule, since: now, why: e.describeCharge(i, c)}
	}
}
