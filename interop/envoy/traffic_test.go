package envoy

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// warming is the number of clusters for which Envoy still waits.
func warming(t *testing.T, e *harness.Envoy) int64 {
	t.Helper()
	return e.Stats(t, `^cluster_manager\.warming_clusters$`)["cluster_manager.warming_clusters"]
}

// C07, with a fresh Envoy of either protocol: a service with nobody in it keeps
// nobody waiting.
func TestC07FreshEnvoyIsLiveAtOnce(t *testing.T) {
	t.Parallel()
	w := start(t)
	bs := backends(t, "one", "two")
	w.api.Apply(t, harness.PutService("orders.shop"), harness.PutBackend("orders.shop", bs[0]), harness.PutBackend("orders.shop", bs[1]),
		harness.PutService("quotes.shop"))
	w.published("orders.shop", 2)
	w.published("quotes.shop", 0)
	for name, sotw := range map[string]bool{"delta": false, "sotw": true} {
		e := w.envoy(name, sotw)
		e.WaitLive(t, 3*time.Second)
		if n := warming(t, e); n != 0 {
			t.Errorf("%s: %d clusters are warming", name, n)
		}
		w.hosts(e, "orders.shop", bs[0].Addr, bs[1].Addr)
		w.hosts(e, "quotes.shop")
		harness.DialPlain(t, e.Outbound.String(), "orders.shop").WaitOnly(t, starts, "one", "two")
		w.refusedNothing(e)
	}
}

// An Envoy over delta ADS sends traffic to who is there now; no change of a
// Cluster under load fails a call, or leaves it waiting for its assignment.
func TestEnvoyFollowsAService(t *testing.T) {
	t.Parallel()
	w := start(t)
	bs := backends(t, "one", "two", "three")
	w.api.Apply(t, harness.PutService("orders.shop"), harness.PutBackend("orders.shop", bs[0]))
	w.published("orders.shop", 1)
	e := w.envoy("follows", false)
	e.WaitLive(t, starts)
	app := harness.DialPlain(t, e.Outbound.String(), "orders.shop")
	app.WaitOnly(t, starts, "one")
	load := harness.StartLoad(t, map[string]*harness.Caller{"app": app})

	w.api.Apply(t, harness.PutBackend("orders.shop", bs[1]), harness.PutBackend("orders.shop", bs[2]))
	app.WaitOnly(t, budget, "one", "two", "three")
	w.api.Apply(t, harness.DeleteInstance("orders.shop", "two"))
	app.WaitOnly(t, budget, "one", "three")
	bs[1].Stop() // it left first: nobody calls it any more

	// Each of these changes every Cluster of the service.
	for i, protocol := range []registryv1.Protocol{registryv1.Protocol_PROTOCOL_HTTP2, registryv1.Protocol_PROTOCOL_GRPC} {
		port := harness.GRPCPort()
		port.Protocol = protocol
		admin := &registryv1.Port{Name: "admin", Number: uint32(9100 + i), Protocol: registryv1.Protocol_PROTOCOL_HTTP}
		w.api.Apply(t, harness.PutService("orders.shop", port, admin))
		w.hosts(e, fmt.Sprintf("orders.shop:%d", 9100+i), atPort(bs[0], 9100+i), atPort(bs[2], 9100+i))
		load.More(t, 50)
		harness.Eventually(t, budget, "no cluster waits for its assignment", func() error {
			if n := warming(t, e); n != 0 {
				return fmt.Errorf("%d are warming", n)
			}
			return nil
		})
	}
	load.Stop(t)

	w.api.Apply(t, harness.DeleteService("orders.shop"))
	harness.Eventually(t, 20*time.Second, "a deleted service is unknown", func() error {
		if hosts := e.Hosts(t, "orders.shop"); hosts != nil {
			return fmt.Errorf("still has %v", hosts)
		}
		return nil
	})
	w.api.Apply(t, harness.PutService("orders.shop"), harness.PutBackend("orders.shop", bs[2]))
	app.WaitOnly(t, starts, "three")
	w.refusedNothing(e)
	for _, b := range bs {
		if b.Calls() == 0 {
			t.Errorf("%s was never called", b.Name)
		}
	}
}

// Weights of 1 to 9 are honoured by Envoy and by grpc-go alike.
func TestWeightsAreHonoured(t *testing.T) {
	t.Parallel()
	w := start(t)
	bs := backends(t, "light", "heavy")
	w.api.Apply(t, harness.WithoutRamp("orders.shop"), harness.PutService("orders.shop"),
		harness.Weighing(harness.PutBackend("orders.shop", bs[0]), 10),
		harness.Weighing(harness.PutBackend("orders.shop", bs[1]), 90))
	w.published("orders.shop", 2)
	e := w.envoy("weights", false)
	e.WaitLive(t, starts)
	for name, c := range map[string]*harness.Caller{"envoy": harness.DialPlain(t, e.Outbound.String(), "orders.shop"), "grpc-go": w.dial("orders.shop")} {
		c.WaitOnly(t, starts, "light", "heavy")
		got := c.Calls(1000, 5*time.Second)
		if got["light"]+got["heavy"] != 1000 || got["light"] < 60 || got["light"] > 140 {
			t.Errorf("%s: %v, want 100 and 900", name, got)
		}
	}
	w.refusedNothing(e)
}
