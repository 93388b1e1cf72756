package xds

import (
	"slices"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// A service comes as Cluster, assignment, route, and goes in the reverse: the
// route first, and its assignment and Cluster only once that was acknowledged.
func TestServiceComesAndGoesInOrder(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.api.Apply(t, harness.WithoutRamp("ledger.shop"), harness.PutService("ledger.shop"), harness.PutInstance("ledger.shop", "a", at(1, 0)))
	w.published("ledger.shop", 1)
	const thinks = 300 * time.Millisecond // how long this client takes over a route

	var c *rawxds.Client
	c = w.delta(func(r *rawxds.Response) rawxds.Answer {
		switch r.Type {
		case rawxds.CDS: // as Envoy does, before it acknowledges
			if names := r.Names(); len(names) > 0 {
				w.ok(c.Subscribe(rawxds.EDS, names...))
			}
		case rawxds.RDS:
			return rawxds.Answer{After: thinks}
		}
		return rawxds.Answer{}
	})
	w.ok(c.Subscribe(rawxds.CDS))
	w.ok(c.Subscribe(rawxds.LDS))
	w.ok(c.Subscribe(rawxds.RDS, "sightline-outbound"))
	routes := func(r *rawxds.Response) bool {
		return slices.ContainsFunc(r.Resources, func(res rawxds.Resource) bool {
			list, err := res.Clusters()
			return err == nil && slices.Contains(list, "orders.shop")
		})
	}
	named := func(r *rawxds.Response) bool { return slices.Contains(r.Names(), "orders.shop") }
	gone := func(r *rawxds.Response) bool { return slices.Contains(r.Removed, "orders.shop") }
	// first is the first response of a type, from a position on, that fits.
	first := func(typ string, from int, fits func(*rawxds.Response) bool) *rawxds.Response {
		t.Helper()
		var found *rawxds.Response
		if err := c.Await(20*time.Second, func() bool {
			for _, r := range c.Responses(typ) {
				if r.Sequence >= from && fits(r) {
					found = r
					return true
				}
			}
			return false
		}); err != nil {
			t.Fatalf("%s: %v", typ, err)
		}
		return found
	}
	first(rawxds.RDS, 0, func(r *rawxds.Response) bool { return len(r.Resources) > 0 })
	_ = c.Await(quiet, func() bool { return false }) // everything of the start is acknowledged

	from := len(c.Responses(""))
	w.api.Apply(t, harness.WithoutRamp("orders.shop"), harness.PutService("orders.shop"), harness.PutInstance("orders.shop", "a", at(2, 0)))
	cds, eds, rds := first(rawxds.CDS, from, named), first(rawxds.EDS, from, named), first(rawxds.RDS, from, routes)
	if cds.Sequence > eds.Sequence || eds.Sequence > rds.Sequence {
		t.Errorf("creation: CDS was response %d, EDS %d, RDS %d", cds.Sequence, eds.Sequence, rds.Sequence)
	}
	w.holds(c, "orders.shop", budget, at(2, 0))
	_ = c.Await(quiet, func() bool { return false })

	from = len(c.Responses(""))
	w.api.Apply(t, harness.DeleteService("orders.shop"))
	rds = first(rawxds.RDS, from, func(r *rawxds.Response) bool { return len(r.Resources) > 0 && !routes(r) })
	cds, eds = first(rawxds.CDS, from, gone), first(rawxds.EDS, from, gone)
	if rds.Sequence > eds.Sequence || eds.Sequence > cds.Sequence {
		t.Errorf("deletion: RDS was response %d, CDS %d, EDS %d", rds.Sequence, cds.Sequence, eds.Sequence)
	}
	for typ, r := range map[string]*rawxds.Response{"Cluster": cds, "assignment": eds} {
		if after := r.At.Sub(rds.At); after < thinks {
			t.Errorf("the %s went %s after a route that was acknowledged after %s", typ, after, thinks)
		}
	}
}

// Whoever is sent a changed Cluster is sent its assignment right after it, on the
// same stream: without that an Envoy would keep the new Cluster waiting for 15 s.
func TestAssignmentFollowsItsChangedCluster(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.api.Apply(t, harness.WithoutRamp("orders.shop"), harness.PutService("orders.shop"), harness.PutInstance("orders.shop", "a", at(1, 0)),
		harness.WithoutRamp("ledger.shop"), harness.PutService("ledger.shop"))
	w.published("orders.shop", 1)
	w.published("ledger.shop", 0)
	c := w.delta(nil)
	w.ok(c.Subscribe(rawxds.CDS, "*"))
	w.ok(c.Subscribe(rawxds.EDS, "orders.shop", "ledger.shop"))
	w.ok(c.Await(starts, func() bool { return len(c.Held(rawxds.CDS)) == 2 && len(c.Held(rawxds.EDS)) == 2 }))
	w.silent(c, "")
	for _, protocol := range []registryv1.Protocol{registryv1.Protocol_PROTOCOL_HTTP, registryv1.Protocol_PROTOCOL_GRPC} {
		from := len(c.Responses(""))
		port := harness.GRPCPort()
		port.Protocol = protocol
		w.api.Apply(t, harness.PutService("orders.shop", port))
		w.ok(c.Await(budget, func() bool { return len(c.Responses("")) >= from+2 }))
		w.silent(c, "")
		got := c.Responses("")[from:]
		if len(got) != 2 || got[0].Type != rawxds.CDS || got[1].Type != rawxds.EDS {
			t.Errorf("%d responses, the first two of %s and %s", len(got), got[0].Type, got[1].Type)
		}
		for _, r := range got {
			w.same("changed", r.Names(), "orders.shop")
		}
	}
}
