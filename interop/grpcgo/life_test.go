package grpcgo

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
)

// A proxyless client follows its service: weights, additions, withdrawals, the
// server's absence, deletion, and the second life.
func TestClientFollowsAService(t *testing.T) {
	t.Parallel()
	w := start(t)
	one := w.serve("orders.shop", "one")
	c := w.dial("orders.shop")
	c.WaitOnly(t, starts, "one")
	load := harness.StartLoad(t, map[string]*harness.Caller{"caller": c})

	two := harness.StartBackend(t, "two")
	w.api.Apply(t, harness.Weighing(harness.PutBackend("orders.shop", one), 10), harness.Weighing(harness.PutBackend("orders.shop", two), 90))
	c.WaitOnly(t, recovery, "one", "two")
	harness.Eventually(t, recovery, "weights 1:9 are honoured", func() error {
		if got := c.Calls(500, time.Second); got["one"] < 25 || got["one"] > 75 || got["one"]+got["two"] != 500 {
			return fmt.Errorf("%v, want 50 and 450", got)
		}
		return nil
	})
	w.s.Kill()
	load.More(t, 100)
	w.s.Restart(t)
	w.api.Apply(t, harness.DeleteInstance("orders.shop", "one"))
	c.WaitOnly(t, 15*time.Second, "two") // the client comes back by its own timer
	load.Stop(t)

	// gRPC keeps what was deleted; it is told that nobody is in it.
	w.api.Apply(t, harness.DeleteService("orders.shop"))
	harness.Eventually(t, recovery, "a deleted service answers nobody", func() error {
		if got := c.Calls(3, time.Second); got["ERR Unavailable"] != 3 {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	w.api.Apply(t, harness.PutService("orders.shop"), harness.PutBackend("orders.shop", two))
	c.WaitOnly(t, recovery, "two")
}
