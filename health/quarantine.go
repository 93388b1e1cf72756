package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	// cleanFor is how long an instance must not change for the next quarantine
	// to be half as long (HEALTH.md §7).
	cleanFor = time.Hour
	// keptFlaps bounds the history that an instance carries; contracts count at
	// most 100 changes.
	keptFlaps = 100
	// maxQuarantine bounds what a checkpoint may ask for: no contract allows more.
	maxQuarantine = 24 * time.Hour
)

// quarantine is the flap damping of one instance: a flag beside its verdict.
type quarantine struct {
	flaps []Flap // within the window, oldest first
	since time.Time
	until time.Time // zero: none runs
	count int       // changes that led there, and those since
	hold  time.Duration
	last  time.Time // last change, ever
	// lifted: the guard gives it traffic all the same, so that a ramp has begun.
	lifted bool
}

func (q *quarantine) runs() bool { return !q.until.IsZero() }

// over ends a quarantine whose time has come.
func (q *quarantine) over(now time.Time) {
	if q.runs() && !now.Before(q.until) {
		q.last = laterOf(q.last, q.until)
		q.end()
	}
}

func (q *quarantine) end() { q.since, q.until, q.count, q.lifted = time.Time{}, time.Time{}, 0, false }

// rampFrom is when the ramp of an instance begins that comes back now: at the end
// of its quarantine, unless the guard lifted that.
func (q *quarantine) rampFrom(now time.Time) time.Time {
	if q.lifted {
		return now
	}
	return laterOf(now, q.until)
}

// add counts a change between serving and ineligible. It reports whether a
// quarantine begins with it: never with a trial, which waited for the end of one
// and would learn nothing.
func (q *quarantine) add(f Flap, trial bool, t *registry.Quarantine) bool {
	q.hold = q.nextHold(f.At, t)
	q.last = f.At
	q.flaps = append(q.within(f.At, t.Window), f)
	if len(q.flaps) > keptFlaps {
		q.flaps = q.flaps[1:]
	}
	if q.runs() {
		q.count++ // the guard lifts whoever changed least
		return false
	}
	if len(q.flaps) < t.Changes || trial {
		return false
	}
	q.since, q.until, q.count = f.At, f.At.Add(q.hold), len(q.flaps)
	q.hold = min(2*q.hold, t.MaxHold)
	return true
}

// within drops the changes that are older than the window.
func (q *quarantine) within(now time.Time, window time.Duration) []Flap {
	keep := slices.IndexFunc(q.flaps, func(f Flap) bool { return now.Sub(f.At) < window })
	if keep < 0 {
		return nil
	}
	return q.flaps[keep:]
}

// nextHold is how long a quarantine would be that began now: what the last one
// doubled, half of it for each clean hour.
func (q *quarantine) nextHold(now time.Time, t *registry.Quarantine) time.Duration {
	hold := min(q.hold, t.MaxHold)
	if clean := laterOf(q.last, q.until); !clean.IsZero() {
		for h := now.Sub(clean) / cleanFor; h > 0 && hold > t.Hold; h-- {
			hold /= 2
		}
	}
	return max(hold, t.Hold)
}

// takeBack forgets the last change: it was an error of ours.
func (q *quarantine) takeBack() {
	n := len(q.flaps)
	if n == 0 {
		return
	}
	if q.runs() && q.since.Equal(q.flaps[n-1].At) {
		q.hold /= 2
		q.end()
	}
	q.flaps = q.flaps[:n-1]
}

// flapped counts a change and tells the owner of a quarantine that begins.
func (e *Evaluator) flapped(i *instance, f Flap, o *Judgement) {
	q := &i.quarantine
	if !q.add(f, i.trial.runs, &i.terms.quarantine) {
		return
	}
	i.ramp.holdUntil(q.until)
	o.Incidents = append(o.Incidents, Incident{
		Kind: InQuarantine, UID: i.row.UID, At: f.At, Until: q.until, Flaps: slices.Clone(q.flaps),
		Detail: fmt.Sprintf("%s changed %d times between serving and ineligible within %s and is held out for %s: %s",
			i.row.UID, len(q.flaps), i.terms.quarantine.Window, q.until.Sub(f.At), flapText(q.flaps, f.At)),
	})
}

// flapText lists changes with their ages, for a person.
func flapText(flaps []Flap, now time.Time) string {
	const most = 10
	var parts []string
	if n := len(flaps); n > most {
		parts = append(parts, fmt.Sprintf("%d earlier ones", n-most))
		flaps = flaps[n-most:]
	}
	for _, f := range flaps {
		what := "out by "
		if f.Serving {
			what = "back by "
		}
		parts = append(parts, fmt.Sprintf("%s%s %s ago", what, f.Rule, now.Sub(f.At).Round(time.Second)))
	}
	return strings.Join(parts, ", ")
}

// LiftQuarantine says that the guard lists an instance in spite of its quarantine,
// until that ends (HEALTH.md §8). Its ramp begins: at the first step, for as long as
// the quarantine lasts, it would leave the others what the guard gives it a part of.
// It may be said again and again; it reports whether it was news.
func (e *Evaluator) LiftQuarantine(now time.Time, uid registry.UID) bool {
	i := e.instances[uid]
	if i == nil || !i.quarantine.runs() || i.quarantine.lifted {
		return false
	}
	i.quarantine.lifted = true
	i.ramp.release(now)
	e.touch(i)
	return true
}

// ReleaseQuarantine ends an instance's quarantine by an operator's word, and
// forgets the changes that led there. It reports false where none runs.
func (e *Evaluator) ReleaseQuarantine(now time.Time, uid registry.UID) bool {
	i := e.instances[uid]
	if i == nil {
		return false
	}
	i.quarantine.over(now)
	if !i.quarantine.runs() {
		return false
	}
	i.quarantine.flaps = nil
	i.quarantine.end()
	i.ramp.release(now)
	e.touch(i)
	return true
}
