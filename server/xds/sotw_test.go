package xds_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/views"
)

// C05: more names at an unchanged version, and names that come back.
func TestGrowingList(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		w.put(svc("ledger.shop", "10.0.0.2"))
		c := w.sotw("gRPC Go", nil)
		must(t, c.Ask(rawxds.EDS, "orders.shop"))
		w.settle()
		w.responses(c, rawxds.EDS, 1)
		must(t, c.Ask(rawxds.EDS, "orders.shop", "ledger.shop"))
		r, err := c.Count(rawxds.EDS, 2, soon)
		must(t, err)
		if !slices.Contains(r.Names(), "ledger.shop") {
			t.Errorf("the second list is answered with %v", r.Names())
		}
		must(t, c.Ask(rawxds.EDS, "orders.shop"))
		w.settle()
		w.responses(c, rawxds.EDS, 2)
		must(t, c.Ask(rawxds.EDS, "ledger.shop", "orders.shop"))
		r, err = c.Count(rawxds.EDS, 3, soon)
		must(t, err)
		if !slices.Contains(r.Names(), "ledger.shop") {
			t.Errorf("the name that came back is answered with %v", r.Names())
		}
		// The same list in another order is not a change.
		must(t, c.Ask(rawxds.EDS, "orders.shop", "ledger.shop"))
		w.settle()
		w.responses(c, rawxds.EDS, 3)
		w.end(c)
	})
}

// ENGINE.md §5: an empty list is a wildcard only first, and never from gRPC.
func TestEmptyList(t *testing.T) {
	inWorld(t, func(w *world) {
		w.many(3)
		c := w.sotw("gRPC Go", nil)
		must(t, c.Ask(rawxds.CDS))
		must(t, c.Ask(rawxds.CDS, "*"))
		w.settle()
		w.responses(c, rawxds.CDS, 0)
		must(t, c.Ask(rawxds.CDS, "s0001.shop"))
		w.settle()
		must(t, c.Ask(rawxds.CDS))
		w.settle()
		w.gave(w.responses(c, rawxds.CDS, 1)[0], []string{"s0001.shop"})
		e := w.sotw("envoy", nil)
		must(t, e.Ask(rawxds.CDS))
		w.settle()
		w.gave(w.responses(e, rawxds.CDS, 1)[0], []string{"s0000.shop", "s0001.shop", "s0002.shop"})
		must(t, e.Ask(rawxds.CDS, "s0001.shop")) // names end a wildcard, and an empty list is none any more
		w.settle()
		must(t, e.Ask(rawxds.CDS))
		w.settle()
		must(t, e.Ask(rawxds.CDS, "s0001.shop"))
		w.settle()
		n := len(e.Responses(rawxds.CDS))
		w.put(svc("new.shop", "10.0.0.1"))
		w.put(service{host: "s0001.shop", addrs: []string{"10.0.0.1"}, ports: []uint16{9000}})
		w.settle()
		w.gave(w.responses(e, rawxds.CDS, n+1)[n], []string{"s0001.shop"})
		w.end(c, e)
	})
}

// C07: services with nobody in them, and names that nobody knows.
func TestEmptyServiceAndGhost(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1", "10.0.0.2"))
		w.put(svc("quotes.shop"))
		names := []string{"orders.shop", "quotes.shop", "ghost.shop", "ORDERS"}
		s := w.sotw("gRPC Go", nil)
		must(t, s.Ask(rawxds.EDS, names...))
		d := w.delta(nil)
		must(t, d.Subscribe(rawxds.EDS, names...))
		w.settle()
		w.gave(w.responses(s, rawxds.EDS, 1)[0], names[:2])
		w.gave(w.responses(d, rawxds.EDS, 1)[0], names[:2], "ghost.shop", "ORDERS")
		for i, addrs := range [][]string{{"10.0.1.1"}, nil, {"10.0.1.1"}} {
			w.put(svc("quotes.shop", addrs...))
			w.settle()
			for _, c := range []*rawxds.Client{s, d} {
				r := w.responses(c, rawxds.EDS, i+2)[i+1]
				w.gave(r, []string{"quotes.shop"})
				if got, err := r.Resources[0].Addresses(); err != nil || len(got) != len(addrs) {
					t.Errorf("delivery %d has %v (%v), want %v", i, got, err, addrs)
				}
			}
		}
		nobody := w.sotw("gRPC Go", nil)
		must(t, nobody.Ask(rawxds.EDS, "ghost.shop"))
		must(t, nobody.Ask(rawxds.LDS, "ghost.shop"))
		w.settle()
		w.responses(nobody, "", 0)
		w.end(s, d, nobody)
	})
}

// assignment returns what a client holds of a service.
func assignment(t *testing.T, c *rawxds.Client, host string) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	r, ok := c.Held(rawxds.EDS)[host]
	if !ok {
		t.Fatalf("holds no assignment of %s", host)
	}
	m, err := r.Assignment()
	must(t, err)
	return m
}

// DESIGN.md §9: a service that is deleted while a gRPC client holds it becomes
// an empty assignment; its Listener and Cluster stay as they were.
func TestDeletedServiceTowardsGRPC(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		w.put(svc("quotes.shop", "10.0.0.2"))
		c, j := w.sotw("gRPC Go", nil), w.sotw("gRPC Java", nil)
		for _, client := range []*rawxds.Client{c, j} {
			must(t, client.Ask(rawxds.LDS, "orders.shop", "quotes.shop"))
			must(t, client.Ask(rawxds.CDS, "orders.shop", "quotes.shop"))
			must(t, client.Ask(rawxds.EDS, "orders.shop", "quotes.shop"))
		}
		w.settle()
		listener := c.Held(rawxds.LDS)["orders.shop"].Body
		w.drop("orders.shop")
		w.settle()
		for _, client := range []*rawxds.Client{c, j} {
			if len(client.Held(rawxds.LDS)) != 2 || len(client.Held(rawxds.CDS)) != 2 {
				t.Errorf("holds %d listeners, %d clusters", len(client.Held(rawxds.LDS)), len(client.Held(rawxds.CDS)))
			}
		}
		if m := assignment(t, c, "orders.shop"); len(m.GetEndpoints()) != 0 {
			t.Errorf("Go holds %v", m)
		}
		m := assignment(t, j, "orders.shop")
		if drops := m.GetPolicy().GetDropOverloads(); len(m.GetEndpoints()) != 1 || len(drops) != 1 {
			t.Errorf("Java holds %v", m)
		}
		// Another Listener changes: the deleted one rides along, byte for byte.
		w.put(service{host: "quotes.shop", addrs: []string{"10.0.0.2"}, ports: []uint16{9000}})
		w.settle()
		if body := c.Held(rawxds.LDS)["orders.shop"].Body; string(body.GetValue()) != string(listener.GetValue()) {
			t.Error("the deleted service's Listener changed")
		}
		w.put(svc("orders.shop", "10.0.0.3"))
		w.settle()
		if got, err := c.Held(rawxds.EDS)["orders.shop"].Addresses(); err != nil || !slices.Equal(got, []string{"10.0.0.3:8080"}) {
			t.Errorf("after the re-creation: %v %v", got, err)
		}
		w.end(c, j)
	})
}

// ENGINE.md §5: an assignment that a client comes back with, of a service that
// is gone, is emptied; Listeners and Clusters that do not exist are left out.
func TestResumeOfADeletedServiceOnSotw(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c := w.sotw("gRPC Go", nil)
		must(t, c.AskFrom(rawxds.EDS, "7.0", "orders.shop", "gone.shop"))
		must(t, c.AskFrom(rawxds.CDS, "7.0", "orders.shop", "gone.shop"))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 1)[0], []string{"orders.shop", "gone.shop"})
		w.gave(w.responses(c, rawxds.CDS, 1)[0], []string{"orders.shop"})
		if m := assignment(t, c, "gone.shop"); len(m.GetEndpoints()) != 0 {
			t.Errorf("gone.shop has %v", m)
		}
		w.end(c)
	})
}

// ENGINE.md §8: a version never goes below what was offered, if its epoch is
// not above ours.
func TestVersionFloor(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c, f := w.sotw("gRPC Go", nil), w.sotw("gRPC Go", nil)
		must(t, c.AskFrom(rawxds.EDS, "7.40", "orders.shop"))
		must(t, f.AskFrom(rawxds.EDS, "9.40", "orders.shop"))
		w.settle()
		if got := c.Version(rawxds.EDS); got != "7.40" {
			t.Errorf("offered 7.40, got %s", got)
		}
		if got := f.Version(rawxds.EDS); got != "7.1" {
			t.Errorf("offered 9.40, got %s", got)
		}
		w.put(svc("orders.shop", "10.0.0.1", "10.0.0.2"))
		w.settle()
		if got := c.Version(rawxds.EDS); got != "7.40" {
			t.Errorf("after a change: %s", got)
		}
		if len(assignment(t, c, "orders.shop").GetEndpoints()) != 2 {
			t.Error("the change did not arrive under the floor's version")
		}
		w.end(c, f)
	})
}

// Assignments leave in ascending order of version.
func TestAscendingVersions(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := w.many(40)
		for i := len(hosts) - 1; i >= 0; i-- {
			w.put(service{host: hosts[i], addrs: addresses(200), pad: 500})
		}
		c := w.sotw("gRPC Go", nil)
		must(t, c.Ask(rawxds.EDS, hosts...))
		w.settle()
		if n := len(c.Responses(rawxds.EDS)); n < 2 {
			t.Fatalf("%d responses; the set must not fit one", n)
		}
		if got := len(c.Held(rawxds.EDS)); got != len(hosts) {
			t.Errorf("holds %d", got)
		}
		var before views.Version
		for _, r := range c.Responses(rawxds.EDS) {
			at, err := views.ParseVersion(r.Version)
			must(t, err)
			for _, n := range r.Names() {
				if v := w.snap.Load().Get(nameOf(n)).Endpoint; at.Less(v) || !before.Less(v) {
					t.Errorf("%s at %s in the response of version %s, after that of %s", n, v, at, before)
				}
			}
			before = at
		}
		w.end(c)
	})
}

// Also where a small one would still fit beside a large one: it waits for those
// before it.
func TestSmallAssignmentsDoNotOvertake(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(service{host: "a.shop", addrs: addresses(30), pad: 400})
		w.put(service{host: "b.shop", addrs: addresses(20), pad: 400})
		w.put(svc("c.shop", "10.0.0.1"))
		c := w.sotw("gRPC Go", nil)
		must(t, c.Ask(rawxds.EDS, "a.shop", "b.shop", "c.shop"))
		w.settle()
		all := w.responses(c, rawxds.EDS, 2)
		w.gave(all[0], []string{"a.shop"})
		w.gave(all[1], []string{"b.shop", "c.shop"})
		w.end(c)
	}, within(func(l *limits.XDS) { l.ResponseBytes = 20 << 10 }))
}

// Withdrawn permission is an empty assignment; given back, everything comes again.
func TestScopeOnSotw(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("vault.bank", "10.0.0.1"))
		c := w.sotw("gRPC Go", nil)
		must(t, c.Ask(rawxds.CDS, "vault.bank"))
		must(t, c.Ask(rawxds.EDS, "vault.bank"))
		w.settle()
		w.policy.Store(&authz.Policy{Generation: 2, TrustDomain: "region.test", Default: authz.OwnNamespace})
		w.settle()
		if m := assignment(t, c, "vault.bank"); len(m.GetEndpoints()) != 0 {
			t.Errorf("forbidden, and holds %v", m)
		}
		w.put(svc("vault.bank", "10.0.0.1", "10.0.0.2"))
		w.settle()
		if m := assignment(t, c, "vault.bank"); len(m.GetEndpoints()) != 0 {
			t.Errorf("forbidden, and sees a change: %v", m)
		}
		w.policy.Store(&authz.Policy{Generation: 3, TrustDomain: "region.test", Default: authz.WholeTrustDomain})
		w.settle()
		if m := assignment(t, c, "vault.bank"); len(m.GetEndpoints()) != 2 {
			t.Errorf("allowed again, and holds %v", m)
		}
		w.end(c)
	})
}

// C43.4: a set that must be whole and does not fit ends the stream with the
// limit's name, and not in a tight loop.
func TestWholeSetTooLarge(t *testing.T) {
	inWorld(t, func(w *world) {
		w.many(100)
		start := time.Now()
		c := w.sotw("envoy", nil)
		must(t, c.Ask(rawxds.CDS))
		must(t, ignoreEnd(c.Await(time.Minute, func() bool { return c.Err() != nil })))
		if len(w.ended) != 1 || status.Code(c.Err()) != codes.ResourceExhausted || time.Since(start) > 5*time.Second {
			t.Errorf("ended with %v, the client sees %v, after %s", w.ended, c.Err(), time.Since(start))
		}
		w.end(c)
	}, within(func(l *limits.XDS) { l.ResponseBytes = 20 << 10 }))
}

// Towards gRPC Node additions come seldom, withdrawals at once.
func TestNodeIsSentFewAdditions(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1", "10.0.0.2"))
		c := w.sotw("gRPC Node Pure JS", nil)
		must(t, c.Ask(rawxds.EDS, "orders.shop"))
		w.settle()
		w.put(svc("orders.shop", "10.0.0.1", "10.0.0.2", "10.0.0.3"))
		w.settle()
		w.responses(c, rawxds.EDS, 1)
		w.put(svc("orders.shop", "10.0.0.1"))
		w.settle()
		w.responses(c, rawxds.EDS, 2)
		w.put(svc("orders.shop", "10.0.0.1", "10.0.0.4"))
		time.Sleep(11 * time.Second)
		w.responses(c, rawxds.EDS, 3)
		for i := range 20 { // withdrawals: the first at once, then one a second
			w.urge(svc("orders.shop", fmt.Sprintf("10.0.1.%d", i)))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Second)
		w.responses(c, rawxds.EDS, 6)
		w.end(c)
	})
}

// Towards gRPC C-core additions to a large service come every 5 s, those to
// others and withdrawals at once.
func TestCoreIsSentFewAdditionsToLargeServices(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("large.shop", addresses(251)...))
		w.put(svc("small.shop", addresses(249)...))
		c := w.sotw("gRPC C-core linux Python", nil)
		must(t, c.Ask(rawxds.EDS, "large.shop", "small.shop"))
		w.settle()
		began := time.Now()
		for i := range 45 { // 9 s
			w.put(svc("large.shop", addresses(252+i)...))
			time.Sleep(200 * time.Millisecond)
		}
		if n := len(c.Responses(rawxds.EDS)); n != 3 { // the first answer, at once, after 5 s
			t.Errorf("%d responses in %s", n, time.Since(began))
		}
		time.Sleep(2 * time.Second)
		n := len(c.Responses(rawxds.EDS))
		w.put(svc("large.shop", addresses(400)...))
		w.put(svc("small.shop", addresses(250)...))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, n+1)[n], []string{"small.shop"})
		w.put(svc("large.shop", addresses(399)...))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, n+2)[n+1], []string{"large.shop"})
		time.Sleep(10 * time.Second)
		w.responses(c, rawxds.EDS, n+2)
		w.end(c)
	})
}

// Between the snapshot's swap and the Feed's mark a deleted service is nowhere;
// a set that is built just then still shows it to gRPC.
func TestListenerOutlivesAServiceThatIsBeingDeleted(t *testing.T) {
	inWorld(t, func(w *world) {
		v := w.put(svc("orders.shop", "10.0.0.1"))
		w.put(svc("quotes.shop", "10.0.0.2"))
		c := w.sotw("gRPC Go", nil)
		must(t, c.Ask(rawxds.LDS, "orders.shop", "quotes.shop"))
		must(t, c.Ask(rawxds.CDS, "orders.shop", "quotes.shop"))
		w.settle()
		at := w.next()
		w.snap.Store(w.snap.Load().Without(v.Name, at))
		w.put(service{host: "quotes.shop", addrs: []string{"10.0.0.2"}, ports: []uint16{9000}})
		w.settle()
		w.gave(w.responses(c, rawxds.CDS, 2)[1], []string{"orders.shop", "quotes.shop"})
		w.srv.Feed().Publish(views.Publication{Version: at, Name: v.Name, Old: v, Lane: views.Withdrawals})
		w.settle()
		if len(c.Held(rawxds.LDS)) != 2 || len(c.Held(rawxds.CDS)) != 2 {
			t.Errorf("holds %d listeners, %d clusters", len(c.Held(rawxds.LDS)), len(c.Held(rawxds.CDS)))
		}
		w.end(c)
	})
}
