package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// calmLook is how often an instance that callers speak well of is read. Callers
// report so often, each on its own, that reading their numbers with every report
// would be most of what a region costs. Whatever fails is read at once.
const calmLook = 3 * time.Second

// ObserveOutcomes records one reporter's counts, and returns how many of its
// entries were refused: of an unknown instance, without meaning, from the
// future, or of a backlog.
func (e *Evaluator) ObserveOutcomes(now time.Time, o *Outcomes) (refused int) {
	e.hearing = now
	return e.callers.hear(now, o, e.ask.find, e.ask.touch)
}

// heardCallers sees to it that what callers said of an instance is read: now if
// it is bad by itself, and for a while after that; else soon, if there is nothing
// that a little more of it could change.
func (e *Evaluator) heardCallers(i *instance, bad bool) {
	if bad {
		i.failedAt = e.hearing
	}
	if i.touched || !i.supplies(registry.ClassCallers) {
		return
	}
	at := i.lookedAt.Add(calmLook)
	if !i.calm() || !at.After(e.hearing) || e.hearing.Before(i.failedAt.Add(calmLook)) {
		e.touch(i)
		return
	}
	e.queue.schedule(i, at)
}

// calm reports whether the instance is in, at its full weight, and no class and
// no caller is against it.
func (i *instance) calm() bool {
	return i.member && len(i.outs) == 0 && i.seen.bad == 0 && i.seen.callers.against == 0 && !i.ramp.runs() && !i.trial.onCallersWord &&
		i.waits.what == NoWait && i.verdict.State == Eligible
}
