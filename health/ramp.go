package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// rampSteps are the percents of the weight that a ramp goes through, each for a
// sixth of its length but the last, which is its end (HEALTH.md §7).
var rampSteps = [...]uint32{10, 25, 40, 55, 70, 85, 100}

const (
	lastRampStep = len(rampSteps) - 1
	// trialSamples is how many decayed samples a step of a trial waits for.
	trialSamples = 5
)

// rampHold is what the next step of a ramp waits for.
type rampHold uint8

const (
	notHeld rampHold = iota
	heldByQuarantine
	heldByProbe
	heldByCallers
	heldByTrialAgainst
	heldByTrialSamples
)

var rampHolds = [...]string{
	"", "the end of its quarantine", "probes at or under their in-line", "callers at or under their in-line",
	"no reporter against it", "enough calls to judge the trial by",
}

// ramp is the way of a new, recovered or redeployed member to its full weight.
type ramp struct {
	since time.Time // zero: none runs
	at    time.Time // when the present step began
	step  int
	held  rampHold
}

func (r *ramp) runs() bool { return !r.since.IsZero() }

// percent of the weight that the ramp has reached.
func (r *ramp) percent() uint32 {
	if !r.runs() {
		return 100
	}
	return rampSteps[r.step]
}

// holdUntil keeps the first step until a quarantine ends.
func (r *ramp) holdUntil(at time.Time) {
	if r.runs() {
		r.at = laterOf(r.at, at)
	}
}

// release lets the present step begin now where it waited for a quarantine.
func (r *ramp) release(now time.Time) {
	if r.runs() && r.at.After(now) {
		r.at = now
	}
}

// next is when the next step is due.
func (r *ramp) next(t *terms) time.Time { return r.at.Add(t.ramp / time.Duration(lastRampStep)) }

// startRamp puts a member at the first step, or at its full weight where the
// contract wants no ramp.
func (e *Evaluator) startRamp(i *instance, now time.Time) {
	i.ramp = ramp{since: now, at: i.quarantine.rampFrom(now)}
	if i.terms.ramp <= 0 {
		e.endRamp(i)
	}
}

// endRamp is the full weight: a trial, if it was one, is passed.
func (e *Evaluator) endRamp(i *instance) {
	i.ramp, i.trial, i.retry = ramp{}, trial{}, retry{}
	e.setFull(i, true)
}

// stopRamp is a withdrawal.
func (i *instance) stopRamp() { i.ramp = ramp{} }

// climb takes at most one step of a ramp, when its time has come and nothing
// holds it.
func (e *Evaluator) climb(i *instance, now time.Time) {
	r := &i.ramp
	if !r.runs() {
		return
	}
	if i.terms.ramp <= 0 {
		e.endRamp(i)
		return
	}
	due := r.next(i.terms)
	if now.Before(r.at) {
		r.held = heldByQuarantine
		return
	}
	if now.Before(due) {
		r.held = notHeld
		return
	}
	waited := r.held != notHeld
	if r.held = e.rampHold(i, now, due); r.held != notHeld {
		return
	}
	if r.step++; r.step == lastRampStep {
		e.endRamp(i)
		return
	}
	if waited || now.Sub(due) > time.Second {
		due = now
	}
	r.at = due
}

// rampHold says what keeps a step that is due: a class above its in-line; and
// within a trial, for one step's time at most, a reporter against the instance
// or too few calls to know.
func (e *Evaluator) rampHold(i *instance, now, due time.Time) rampHold {
	s := &i.seen
	switch {
	case s.fresh.Has(registry.ClassProbe) && s.probe.live > 0 && !s.probe.good:
		return heldByProbe
	case s.fresh.Has(registry.ClassCallers) && s.callers.counting > 0 && !s.callers.good:
		return heldByCallers
	case !i.trial.runs || !i.supplies(registry.ClassCallers) || !now.Before(e.trialWaitsUntil(i, due)):
		return notHeld
	case s.callers.against > 0:
		return heldByTrialAgainst
	case s.callers.samples < trialSamples:
		return heldByTrialSamples
	}
	return notHeld
}

// trialWaitsUntil is how long a step of a trial waits for calls: one step more.
func (e *Evaluator) trialWaitsUntil(i *instance, due time.Time) time.Time {
	return due.Add(due.Sub(i.ramp.at))
}

// setFull notes whether a member has once reached its full weight. Where some
// have, they alone are the siblings that callers compare with (HEALTH.md §2).
func (e *Evaluator) setFull(i *instance, full bool) {
	if i.onceFull == full {
		return
	}
	i.onceFull = full
	if !i.member {
		return
	}
	if full {
		e.full++
	} else {
		e.full--
	}
}

// sibling reports whether callers compare others with the instance.
func (e *Evaluator) sibling(i *instance) bool {
	return i.member && (i.onceFull || e.full == 0)
}

// weight is base × ramp × degraded, at least 1, and the same without the ramp.
func (i *instance) weight(kept uint32) (weight, full uint32) {
	base := i.baseWeight()
	full = max(1, (base*kept+50)/100)
	return max(1, (base*kept*i.ramp.percent()+5000)/10000), full
}
