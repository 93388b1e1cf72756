package health

import (
	"time"
)

const (
	// lapsedMembership is how long a lapsed instance stays a member: a lapse is
	// a verdict, not an erasure (DESIGN.md §6).
	lapsedMembership = 10 * time.Minute
	// askAgain is how often an aged-out instance is named to the registry,
	// whose store may refuse the removal for a while.
	askAgain = time.Minute
	maxGrace = 4 * time.Second
)

// lease is what is known of the renewals of one instance. Nothing of it is
// durable but a lapse: after a start every lease has a full term.
type lease struct {
	renewed time.Time // last renewal; zero before the first
	granted time.Time // a full term without a renewal: birth, own start, own gap
	// steadySince is the start of the unbroken run of terms that it is in.
	steadySince time.Time
	ended       bool      // the term has passed; a verdict follows a little later
	lapsedAt    time.Time // last verdict of a lapse; zero once it has returned
	resumed     time.Time // first renewal after that verdict
	// suspectSince is set while the lapse is one of too many (suspects.go).
	suspectSince time.Time
	floor        time.Time // no ageing out before: a full term after own start or gap
}

// grace is how long after the end of its term a lease is judged, so that a
// common cause can show first (HEALTH.md §6).
func grace(term time.Duration) time.Duration { return min(maxGrace, term/6) }

func (l *lease) ends(term time.Duration) time.Time {
	return laterOf(l.renewed, l.granted).Add(term)
}

func (l *lease) verdictAt(term time.Duration) time.Time {
	return l.ends(term).Add(grace(term))
}

func (l *lease) suspect() bool { return !l.suspectSince.IsZero() }

// grant starts a full term for the lease of an instance that is new, or that
// was loaded at a start of ours.
func (l *lease) grant(now time.Time) { l.granted, l.steadySince = now, now }

// renew records a renewal; at may come out of order.
func (l *lease) renew(at time.Time) { l.renewed = laterOf(l.renewed, at) }

// gap gives a full term after we did not look. A lapse that stands goes on
// standing; its return and its ageing out wait for a full term as well.
func (l *lease) gap(now time.Time, term time.Duration) {
	l.floor = now.Add(term + grace(term))
	l.resumed = time.Time{}
	if !l.lapsedAt.IsZero() && l.ended {
		return
	}
	l.grant(now)
	l.ended, l.suspectSince = false, time.Time{}
}

// step brings ended up to date and reports whether the term has just ended.
func (l *lease) step(now time.Time, term time.Duration) bool {
	if !now.Before(l.ends(term)) {
		first := !l.ended
		l.ended, l.resumed = true, time.Time{}
		return first
	}
	if l.ended {
		l.ended, l.suspectSince = false, time.Time{}
		l.steadySince = laterOf(l.renewed, l.granted)
	}
	if !l.lapsedAt.IsZero() && l.resumed.IsZero() && l.renewed.After(l.lapsedAt) && l.renewed.After(l.granted) {
		l.resumed = l.renewed
	}
	return false
}

// lapse is the verdict that the lease has lapsed, once per end of a term.
func (l *lease) lapse(now time.Time, term time.Duration) {
	if l.lapsedAt.Before(l.ends(term)) {
		l.lapsedAt = now
	}
	l.suspectSince = time.Time{}
}

// forgive takes a lapse back at once, without hold.
func (l *lease) forgive() { l.lapsedAt, l.resumed = time.Time{}, time.Time{} }

// ageOutAt is when a lapsed instance stops being kept; zero: not lapsed.
func (l *lease) ageOutAt(draining bool) time.Time {
	switch {
	case l.lapsedAt.IsZero() || !l.ended:
		return time.Time{}
	case draining:
		// It said that it was going: its row goes with the lapse.
		return laterOf(l.lapsedAt, l.floor)
	default:
		return laterOf(l.lapsedAt.Add(lapsedMembership), l.floor)
	}
}
