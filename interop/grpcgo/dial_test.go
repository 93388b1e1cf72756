package grpcgo

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/interop/harness"
)

// C45, the client half: every documented form of a target works at once, and no
// form reaches another service.
func TestC45FormsOfATarget(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.serve("orders.shop", "orders")
	w.serve("ledger.shop", "ledger")
	for _, target := range []string{"orders.shop", "orders.shop:9090", "ledger.shop"} {
		c := w.dial(target)
		name, took, err := answers(c, 10*time.Second)
		if err != nil || name != target[:len("orders")] {
			t.Errorf("%s: answered by %q, %v", target, name, err)
		}
		if took > firstCall {
			t.Errorf("%s: the first call took %s", target, took)
		}
	}
	// An authority of one's own is matched as a whole, and never reaches a service
	// that was not dialled.
	name, _, err := answers(w.dial("orders.shop", grpc.WithAuthority("ledger.shop")), 5*time.Second)
	if name == "ledger" {
		t.Errorf("authority ledger.shop on target orders.shop was answered by ledger, %v", err)
	}
	name, _, err = answers(w.dial("orders.shop", grpc.WithAuthority("orders.shop")), 5*time.Second)
	if name != "orders" {
		t.Errorf("authority orders.shop on target orders.shop: %q, %v", name, err)
	}
}

// C45: names that nobody knows end Unavailable when the client's own timer does,
// and the channel recovers without a new dial once they are registered.
func TestC45UnknownNameRecovers(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.serve("orders.shop", "orders")
	b := harness.StartBackend(t, "late")
	late := w.dial("late.shop")
	wrong := map[string]*harness.Caller{}
	for _, target := range []string{"ORDERS.SHOP", "orders", "orders.shop:1", "orders.elsewhere"} {
		wrong[target] = w.dial(target)
	}
	type outcome struct {
		target string
		err    error
		took   time.Duration
	}
	results := make(chan outcome)
	ask := func(target string, c *harness.Caller) {
		_, took, err := answers(c, 2*ownTimer)
		results <- outcome{target, err, took}
	}
	go ask("late.shop", late)
	for target, c := range wrong {
		go ask(target, c)
	}
	for range len(wrong) + 1 {
		o := <-results
		if status.Code(o.err) != codes.Unavailable || o.took > ownTimer+recovery {
			t.Errorf("%s: %v after %s", o.target, o.err, o.took.Round(time.Millisecond))
		}
	}
	w.api.Apply(t, harness.PutService("late.shop"), harness.PutBackend("late.shop", b))
	late.WaitFor(t, recovery)

	// Not even the first call fails if the name comes while the client waits.
	soon := harness.StartBackend(t, "soon")
	c := w.dial("soon.shop")
	go ask("soon.shop", c)
	harness.Eventually(t, starts, "the unknown name was asked for", func() error {
		if !w.asked("go:soon.shop") {
			return fmt.Errorf("it was not")
		}
		return nil
	})
	w.api.Apply(t, harness.PutService("soon.shop"), harness.PutBackend("soon.shop", soon))
	if o := <-results; o.err != nil || o.took > recovery {
		t.Errorf("registered while it waited: %v after %s", o.err, o.took)
	}
}

// C05 with a real channel: one that was idle is answered at once when it comes
// back, while another channel holds another name. The case's 5 s and 20 s are
// shortened to 1 s of idle timeout.
func TestC05IdleChannelComesBack(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.serve("orders.shop", "orders")
	w.serve("ledger.shop", "ledger")
	other := w.dial("orders.shop")
	other.WaitOnly(t, starts, "orders")
	c := w.dial("ledger.shop", grpc.WithIdleTimeout(time.Second))
	c.WaitOnly(t, starts, "ledger")
	for range 3 {
		harness.Eventually(t, starts, "the channel is idle", func() error {
			if !c.Idle() {
				return fmt.Errorf("it is not")
			}
			return nil
		})
		name, took, err := answers(c, 10*time.Second)
		if err != nil || name != "ledger" || took > firstCall {
			t.Errorf("after idling: %q, %v, %s", name, err, took)
		}
	}
	other.WaitOnly(t, starts, "orders")
}
