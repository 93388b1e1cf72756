package harness

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/status"
)

// Load is calls in the background, by several callers at once.
type Load struct {
	end  chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	mu   sync.Mutex
	sums map[string]map[string]int // caller -> who answered -> calls
}

// StartLoad makes every caller call, one call after the other, a few hundred a
// second at most, until Stop or the test's end.
func StartLoad(t testing.TB, callers map[string]*Caller) *Load {
	l := &Load{end: make(chan struct{}), sums: make(map[string]map[string]int)}
	for name := range callers {
		l.sums[name] = make(map[string]int)
	}
	for name, c := range callers {
		l.wg.Go(func() { l.run(name, c) })
	}
	t.Cleanup(l.halt)
	return l
}

func (l *Load) run(name string, c *Caller) {
	for {
		select {
		case <-l.end:
			return
		case <-time.After(4 * time.Millisecond):
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		answer, err := c.Call(ctx)
		cancel()
		if err != nil {
			answer = "ERR " + status.Convert(err).String()
		}
		l.mu.Lock()
		l.sums[name][answer]++
		l.mu.Unlock()
	}
}

func (l *Load) halt() {
	l.once.Do(func() { close(l.end) })
	l.wg.Wait()
}

// Count is the number of calls that a caller has finished.
func (l *Load) Count(caller string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, calls := range l.sums[caller] {
		n += calls
	}
	return n
}

// More waits until every caller has made n more calls.
func (l *Load) More(t testing.TB, n int) {
	t.Helper()
	want := make(map[string]int)
	for name := range l.sums {
		want[name] = l.Count(name) + n
	}
	Eventually(t, 60*time.Second, "calls go on", func() error {
		for name, w := range want {
			if got := l.Count(name); got < w {
				return fmt.Errorf("%s has made %d of %d", name, got, w)
			}
		}
		return nil
	})
}

// Stop ends the load and fails the test if any call failed.
func (l *Load) Stop(t testing.TB) {
	t.Helper()
	l.halt()
	for name, sum := range l.sums {
		for answer := range sum {
			if strings.HasPrefix(answer, "ERR ") {
				t.Errorf("%s: calls failed: %v", name, sum)
				break
			}
		}
	}
}

// StartSteady makes a caller call at an even rate until the test ends, each call
// with a deadline and none waiting for another. What becomes of a call is not
// looked at.
func StartSteady(t testing.TB, c *Caller, perSecond float64, deadline time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Duration(float64(time.Second) / perSecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			wg.Go(func() {
				call, end := context.WithTimeout(ctx, deadline)
				defer end()
				_, _ = c.Call(call)
			})
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}
