package views

import (
	"math"
	"time"
)

// The pace of publications (DESIGN.md §8).
const (
	// withdrawalGap is the least time between two withdrawals of one service:
	// the first goes at once, a second merges what follows within the gap.
	withdrawalGap = 100 * time.Millisecond
	// weightGap is the least time between a publication of a service and one
	// that moves nothing but weights.
	weightGap = time.Second
	// minWindow and maxWindow bound the additions window.
	minWindow = 100 * time.Millisecond
	maxWindow = 20 * time.Second
	// shedWindow is the window above which waiting is declared as shedding.
	shedWindow = time.Second
)

// shedding is the state of the additions window.
type shedding struct {
	fanOut time.Duration // as measured last, or what is left of a longer one
	at     time.Time     // of that measurement
	since  time.Time     // since when additions are shed; zero: they are not
}

// window is how long additions wait: a region that needs a second to tell
// everybody should not start again sooner than that.
func (s *shedding) window() time.Duration { return min(max(2*s.fanOut, minWindow), maxWindow) }

// measure takes in how long a change took to reach its streams. A longer one
// before it fades by half a second: a change that concerned nobody must not end
// an episode that the next one begins again.
func (s *shedding) measure(now time.Time, took time.Duration) (began, ended bool) {
	fade := math.Exp2(-max(now.Sub(s.at), 0).Seconds())
	s.fanOut, s.at = max(took, time.Duration(float64(s.fanOut)*fade)), now
	began = s.window() > shedWindow && s.since.IsZero()
	ended = s.window() <= shedWindow && !s.since.IsZero()
	return began, ended
}

// pace is what a Publisher remembers of one service's timing.
type pace struct {
	waiting        time.Time // since when a change of the additions lane waits; zero: none does
	lastPublished  time.Time
	lastWithdrawal time.Time
}

// due returns when a difference may be published: at or before now, at once.
// The reason says what holds it, for a person.
func (p pace) due(now time.Time, d difference, window time.Duration) (at time.Time, reason string) {
	if d.lane == Withdrawals {
		return p.lastWithdrawal.Add(withdrawalGap), "one withdrawal per 100 ms and service"
	}
	since := p.waiting
	if since.IsZero() {
		since = now
	}
	at, reason = since.Add(window), "additions window"
	if d.kinds&^(Reweight|Restate) == 0 && d.kinds&Reweight != 0 {
		if w := p.lastPublished.Add(weightGap); at.Before(w) {
			return w, "one change of weights per second and service"
		}
	}
	return at, reason
}
