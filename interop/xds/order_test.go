package xds

import (
	"slices"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
)

// A service comes as Cluster, assignment, route, and goes the other way round:
// the route first, and what it named only once that was acknowledged.
func TestServiceComesAndGoesInOrder(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.api.Apply(t, harness.PutService("ledger.shop"), harness.PutInstance("ledger.shop", "a", at(1, 0)))
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
	w.api.Apply(t, harness.PutService("orders.shop"), harness.PutInstance("orders.shop", "a", at(2, 0)))
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
	if rds.Sequence > cds.Sequence || rds.Sequence > eds.Sequence {
		t.Errorf("deletion: RDS was response %d, CDS %d, EDS %d", rds.Sequence, cds.Sequence, eds.Sequence)
	}
	t.Logf("deletion: RDS was response %d, CDS %d, EDS %d", rds.Sequence, cds.Sequence, eds.Sequence)
	for typ, r := range map[string]*rawxds.Response{"Cluster": cds, "assignment": eds} {
		if after := r.At.Sub(rds.At); after < thinks {
			t.Errorf("the %s went %s after a route that was acknowledged after %s", typ, after, thinks)
		}
	}
}
