package admin

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// TestLooksAreShared: however many ask, and as fast as they like, a service that
// takes long to explain takes a twentieth of its shard's time.
func TestLooksAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 100 * time.Millisecond
		var looks atomic.Int64
		x := newInspections(func(context.Context, registry.Name) (Inspection, bool, error) {
			looks.Add(1)
			time.Sleep(takes)
			return Inspection{Instances: make([]health.Explanation, looks.Load())}, true, nil
		})
		answers := make(chan time.Duration)
		for range 50 {
			go func() {
				for range 200 {
					_, at, ok, err := x.of(context.Background(), checkoutName)
					if err != nil || !ok {
						t.Error(ok, err)
					}
					answers <- time.Since(at)
					time.Sleep(takes)
				}
			}()
		}
		began, oldest := time.Now(), time.Duration(0)
		for range 50 * 200 {
			oldest = max(oldest, <-answers)
		}
		if most := int64(time.Since(began)/(inspectShare*takes)) + 1; looks.Load() > most || oldest > inspectShare*takes {
			t.Errorf("%d looks within %s, at most %d; the oldest answer is of %s ago", looks.Load(), time.Since(began), most, oldest)
		}
		time.Sleep(keptAtMost)
		synctest.Wait()
		if len(x.byName) != 0 {
			t.Errorf("%d looks are kept", len(x.byName))
		}
		// What costs nothing is asked each time.
		n := 0
		x = newInspections(func(context.Context, registry.Name) (i Inspection, ok bool, err error) { n++; return i, true, nil })
		for range 3 {
			if _, _, ok, err := x.of(context.Background(), ledgerName); !ok || err != nil {
				t.Error(ok, err)
			}
		}
		if n != 3 || len(x.byName) != 0 {
			t.Errorf("looked %d times, %d kept", n, len(x.byName))
		}
	})
}

// TestALookThatFails is its asker's alone: whoever waited for it looks again, and
// nobody waits for one that panicked.
func TestALookThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		x := newInspections(func(ctx context.Context, _ registry.Name) (i Inspection, ok bool, err error) {
			if looks.Add(1) == 1 {
				<-ctx.Done()
				return i, false, ctx.Err()
			}
			return i, true, nil
		})
		leaves, leave := context.WithCancel(context.Background())
		first, second := make(chan error), make(chan error)
		go func() { _, _, _, err := x.of(leaves, checkoutName); first <- err }()
		synctest.Wait()
		go func() { _, _, _, err := x.of(context.Background(), checkoutName); second <- err }()
		short, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, _, _, err := x.of(short, checkoutName); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one that waits no longer: %v", err)
		}
		leave()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the asker: %v", err)
		}
		if err := <-second; err != nil || looks.Load() != 2 {
			t.Errorf("who waited: %v after %d looks", err, looks.Load())
		}
		x = newInspections(func(context.Context, registry.Name) (Inspection, bool, error) { panic("in the evaluation") })
		func() {
			defer func() { _ = recover() }()
			_, _, _, _ = x.of(context.Background(), checkoutName)
		}()
		if len(x.byName) != 0 {
			t.Error("others would wait for a look that panicked")
		}
	})
}
