package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// calmLook is how often callers' numbers on an instance that they speak well of
// are read. Callers report so often, each on its own, that reading them with every
// report, or whenever another class speaks, would be most of what a region costs.
// Whatever fails is read at once.
const calmLook = 5 * time.Second

// ObserveOutcomes records one reporter's counts, and returns how many of its
// entries were refused: of an unknown instance, without meaning, from the
// future, or of a backlog.
func (e *Evaluator) ObserveOutcomes(now time.Time, o *Outcomes) (refused int) {
	e.hearing = now
	return e.callers.hear(now, o, e.ask.find, e.ask.touch)
}

// quietFor is how long good news of a calm instance need not be told: it is read
// all the same, as long as it is calm, and stir ends the quiet when it is not.
const quietFor = time.Hour

// heardCallers sees to it that what callers said of an instance is read: now if
// it is bad by itself, and for a while after that; where it is calm, when its turn
// comes. It returns until when good news of it need not be told.
func (e *Evaluator) heardCallers(i *instance, bad bool) (quietUntil time.Time) {
	if bad {
		i.failedAt = e.hearing
	}
	if i.touched || !i.supplies(registry.ClassCallers) {
		return time.Time{}
	}
	if !i.quietAt(e.hearing) {
		e.touch(i)
		return time.Time{}
	}
	i.quiet = true
	return e.hearing.Add(quietFor)
}

// quietAt reports whether callers' numbers need not be read at that time: they
// were, not long ago, and nothing is against the instance.
func (i *instance) quietAt(now time.Time) bool {
	return now.Before(i.readAt.Add(calmLook)) && !now.Before(i.failedAt.Add(calmLook)) && i.calm()
}

// stir ends the quiet of the service's instances where one that was told not to
// be looked at is not calm any more.
func (e *Evaluator) stir(i *instance) {
	if i.quiet && !i.calm() {
		i.quiet = false
		e.callers.stirs++
	}
}

// calm reports whether the instance is in, by no trial, its callers speak, and no
// class and no caller is against it.
func (i *instance) calm() bool {
	return i.member && len(i.outs) == 0 && i.seen.fresh.Has(registry.ClassCallers) && i.seen.bad == 0 && i.seen.callers.against == 0 && !i.trial.onCallersWord &&
		i.waits.what == NoWait && i.verdict.State == Eligible
}
