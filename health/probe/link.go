package probe

import (
	"context"
	"math/rand/v2"
	"time"
)

// firstBackOff is the longest wait before the first new attempt; it doubles.
const firstBackOff = 200 * time.Millisecond

// link is one stream's way to the control plane over its lives: it says once
// that the stream works and once for each reason why it does not, and how long
// to wait. One goroutine owns it.
type link struct {
	stream  Stream
	events  Events
	working bool
	reason  string
	tries   int
}

func (p *Prober) newLink(s Stream) *link { return &link{stream: s, events: p.cfg.Events} }

func (l *link) works() {
	l.tries = 0
	if !l.working && l.events.Opened != nil {
		l.events.Opened(l.stream)
	}
	l.working, l.reason = true, ""
}

func (l *link) lost(err error) {
	l.working = false
	if reason := err.Error(); reason != l.reason {
		l.reason = reason
		if l.events.Lost != nil {
			l.events.Lost(l.stream, err)
		}
	}
}

// pause is how long to wait before the next attempt: exponential, and spread
// over its upper half so that probers do not return together.
func (l *link) pause(longest time.Duration) time.Duration {
	wait := min(firstBackOff<<min(l.tries, 10), longest)
	l.tries++
	return wait/2 + rand.N(wait/2+1)
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// jitter is a random share of d.
func jitter(d time.Duration) time.Duration { return rand.N(d + 1) }
