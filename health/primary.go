package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	// primacyAfter is how long callers must have been enough to become primary,
	// or too few to be it no more (HEALTH.md §3).
	primacyAfter = time.Minute
	// thirdAfter is how long two probers must disagree until a third is asked
	// (HEALTH.md §2), and agree until it is not any more.
	thirdAfter = 10 * time.Second
)

// primacy says whether the callers of an instance are enough to decide.
type primacy struct {
	callers  bool
	enoughAt time.Time // since when they have been enough; zero: they are not
	fewAt    time.Time // since when they have been too few; zero: they are not
}

// step follows the callers' numbers. While a member ramps they have the say at
// once: its first minute is too short to wait for one.
func (p *primacy) step(now time.Time, r *callersReading, ramps bool) {
	since(&p.enoughAt, now, r.enough)
	since(&p.fewAt, now, !r.enough && (r.few || r.newest.IsZero()))
	switch {
	case !p.callers && r.enough && (ramps || !now.Before(p.enoughAt.Add(primacyAfter))):
		p.callers = true
	case p.callers && !p.fewAt.IsZero() && !now.Before(p.fewAt.Add(primacyAfter)):
		p.callers = false
	}
}

// gap forgets what was counted towards a change.
func (p *primacy) gap() { p.enoughAt, p.fewAt = time.Time{}, time.Time{} }

// since keeps the moment from which something has held.
func since(at *time.Time, now time.Time, holds bool) {
	switch {
	case !holds:
		*at = time.Time{}
	case at.IsZero():
		*at = now
	}
}

// callersLead reports whether callers decide: while they are enough and speak,
// and after a withdrawal on their word, silent or not, until the ramp of the
// return ends.
func (i *instance) callersLead() bool {
	return i.supplies(registry.ClassCallers) &&
		(i.trial.onCallersWord || i.primacy.callers && i.seen.fresh.Has(registry.ClassCallers))
}

// primaryClass is the class that decides: callers where they lead, else probes,
// else the instance's own word. A silent class is never primary.
func (i *instance) primaryClass() registry.ClassSet {
	var none registry.ClassSet
	switch {
	case i.callersLead():
		return none.With(registry.ClassCallers)
	case i.seen.fresh.Has(registry.ClassProbe):
		return none.With(registry.ClassProbe)
	case i.seen.fresh.Has(registry.ClassSelf):
		return none.With(registry.ClassSelf)
	default:
		return none
	}
}

// cadence is how often an instance is probed: every 10 s while its callers
// decide, at the contract's interval otherwise, and for a while after a failure.
type cadence struct {
	confirming bool
	fullUntil  time.Time // a confirmation failed: full until then
	fullSince  time.Time // the last switch from confirming to full; zero: none
	third      bool      // a third prober is wanted
	agreeAt    time.Time // since when the probers have agreed again, while third
	aloneAt    time.Time // since when one prober's word is not enough; zero: it is
}

// follow takes who decides.
func (c *cadence) follow(now time.Time, callersLead bool) {
	if to := callersLead && !now.Before(c.fullUntil); to != c.confirming {
		c.confirming = to
		if !to {
			c.fullSince = now
		}
	}
}

// failed starts the full cadence, or starts it again when it has run out and
// the newest result is a failure still.
func (c *cadence) failed(now time.Time) {
	if now.Before(c.fullUntil) {
		return
	}
	c.fullUntil = now.Add(fullCadenceFor)
	if c.confirming {
		c.confirming, c.fullSince = false, now
	}
}

// lenient reports whether silence is counted as at the confirmation cadence: it
// is for a moment after the switch too, in which the first probe has to come.
func (c *cadence) lenient(now time.Time, t *terms) bool {
	return c.confirming || now.Before(c.strictAt(t))
}

// strictAt is when the switch to the full cadence shows in what is silent.
func (c *cadence) strictAt(t *terms) time.Time {
	if c.confirming || c.fullSince.IsZero() {
		return time.Time{}
	}
	return c.fullSince.Add(t.probeSilence(false))
}

// disagree asks for a third prober where two have disagreed for a while, or one
// of them is blind and the other calls the instance bad.
func (i *instance) disagree(now time.Time) {
	c, at := &i.cadence, i.seen.probe.disagree
	since(&c.aloneAt, now, i.seen.probe.alone)
	if at.IsZero() {
		at = c.aloneAt
	}
	if !at.IsZero() {
		c.agreeAt = time.Time{}
		c.third = c.third || !now.Before(at.Add(thirdAfter))
		return
	}
	since(&c.agreeAt, now, c.third)
	if c.third && !now.Before(c.agreeAt.Add(thirdAfter)) {
		c.third, c.agreeAt = false, time.Time{}
	}
}
