package xds_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	"github.com/sightlinedev/sightline/views"
)

// C01: asking again for a resource that the server thinks the client has.
func TestReaskIsAnswered(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1", "10.0.0.2"))
		c := w.delta(nil)
		must(t, c.Subscribe(rawxds.EDS, "orders.shop"))
		first, err := c.Count(rawxds.EDS, 1, soon)
		must(t, err)
		w.gave(first, []string{"orders.shop"})
		must(t, c.Subscribe(rawxds.EDS, "orders.shop"))
		again, err := c.Count(rawxds.EDS, 2, soon)
		must(t, err)
		w.gave(again, []string{"orders.shop"})
		if again.Resources[0].Version != first.Resources[0].Version {
			t.Errorf("version %s, then %s without a change", first.Resources[0].Version, again.Resources[0].Version)
		}
		must(t, c.Subscribe(rawxds.CDS))
		w.put(svc("quotes.shop", "10.0.1.1"))
		w.settle()
		before := len(c.Responses(rawxds.CDS))
		must(t, c.Subscribe(rawxds.CDS, "*"))
		all, err := c.Count(rawxds.CDS, before+1, soon)
		must(t, err)
		w.gave(all, []string{"orders.shop", "quotes.shop"})

		next := w.delta(nil)
		must(t, next.Resume(rawxds.EDS, map[string]string{"orders.shop": first.Resources[0].Version}, "orders.shop"))
		w.settle()
		w.responses(next, rawxds.EDS, 0)
		must(t, next.Subscribe(rawxds.EDS, "orders.shop"))
		repeat, err := next.Count(rawxds.EDS, 1, soon)
		must(t, err)
		w.gave(repeat, []string{"orders.shop"})
		w.end(c, next)
	})
}

// What is asked for again is answered whatever it is, also where versions are
// offered after the first request of a type.
func TestEveryReaskIsAnswered(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c := w.delta(nil)
		names := map[string]string{rawxds.CDS: "orders.shop", rawxds.EDS: "orders.shop", rawxds.LDS: outbound, rawxds.RDS: outbound}
		for typ, name := range names {
			must(t, c.Subscribe(typ, name))
			w.settle()
		}
		for typ, name := range names {
			n := len(c.Responses(typ))
			must(t, c.Resume(typ, c.Versions(typ), name))
			w.settle()
			w.gave(w.responses(c, typ, n+1)[n], []string{name})
		}
		w.end(c)
	})
}

// C02: a name that is asked for before the service exists.
func TestUnknownNameAppearsLater(t *testing.T) {
	inWorld(t, func(w *world) {
		c := w.delta(nil)
		must(t, c.Subscribe(rawxds.EDS, "ledger.shop"))
		r, err := c.Count(rawxds.EDS, 1, soon)
		must(t, err)
		w.gave(r, nil, "ledger.shop")
		time.Sleep(20 * time.Second)
		w.responses(c, rawxds.EDS, 1)
		w.put(svc("ledger.shop", "10.0.0.1"))
		r, err = c.Count(rawxds.EDS, 2, soon)
		must(t, err)
		w.gave(r, []string{"ledger.shop"})
		w.drop("ledger.shop")
		r, err = c.Count(rawxds.EDS, 3, soon)
		must(t, err)
		w.gave(r, nil, "ledger.shop")
		time.Sleep(10 * time.Second)
		w.put(svc("ledger.shop", "10.0.0.9"))
		r, err = c.Count(rawxds.EDS, 4, soon)
		must(t, err)
		got, err := r.Resources[0].Addresses()
		must(t, err)
		if !slices.Equal(got, []string{"10.0.0.9:8080"}) {
			t.Errorf("after the second creation: %v", got)
		}
		w.settle()
		w.responses(c, rawxds.EDS, 4)
		w.end(c)
	})
}

// C03: what was deleted while the client was away.
func TestResumeHearsOfDeletions(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := []string{"orders.shop", "ledger.shop", "quotes.shop"}
		for _, h := range hosts {
			w.put(svc(h, "10.0.0.1", "10.0.0.2"))
		}
		mark := rawxds.NewWatermark()
		c := w.delta(nil).Keep(mark)
		must(t, c.Subscribe(rawxds.CDS, "*"))
		must(t, c.Subscribe(rawxds.EDS, hosts...))
		w.settle()
		clusters, assignments := c.Versions(rawxds.CDS), c.Versions(rawxds.EDS)
		if len(clusters) != 3 || len(assignments) != 3 {
			t.Fatalf("holds %v and %v", clusters, assignments)
		}
		w.end(c)
		w.drop("ledger.shop")
		w.put(service{host: "orders.shop", addrs: []string{"10.0.0.1"}, ports: []uint16{8081}})

		c = w.delta(nil).Keep(mark)
		must(t, c.Resume(rawxds.CDS, clusters, "*"))
		must(t, c.Resume(rawxds.EDS, assignments, hosts...))
		w.settle()
		held := make(map[string]int)
		for _, typ := range []string{rawxds.CDS, rawxds.EDS} {
			for _, r := range c.Responses(typ) {
				for _, n := range append(r.Names(), r.Removed...) {
					held[n]++
				}
			}
			w.gave(c.Responses(typ)[0], []string{"orders.shop"}, "ledger.shop")
		}
		if held["quotes.shop"] != 0 {
			t.Errorf("quotes was sent again: %s", brief(c.Responses("")))
		}
		w.end(c)
	})
}

// ENGINE.md §4: a fresh wildcard is answered also when it is empty, a resumed one need not be.
func TestEmptyWildcard(t *testing.T) {
	inWorld(t, func(w *world) {
		c := w.delta(nil)
		must(t, c.Subscribe(rawxds.CDS))
		r, err := c.Count(rawxds.CDS, 1, soon)
		must(t, err)
		w.gave(r, nil)
		must(t, c.Subscribe(rawxds.LDS))
		r, err = c.Count(rawxds.LDS, 1, soon)
		must(t, err)
		w.gave(r, []string{"sightline-outbound"})
		w.put(svc("orders.shop", "10.0.0.1"))
		r, err = c.Count(rawxds.CDS, 2, soon)
		must(t, err)
		w.gave(r, []string{"orders.shop"})
		listener := c.Versions(rawxds.LDS)
		again := w.delta(nil)
		must(t, again.Resume(rawxds.CDS, c.Versions(rawxds.CDS)))
		must(t, again.Subscribe(rawxds.EDS, "orders.shop"))
		must(t, again.Resume(rawxds.LDS, listener))
		w.settle()
		w.responses(again, rawxds.CDS, 0)
		w.responses(again, rawxds.LDS, 0)
		w.end(c, again)
	})
}

// XDS.md §3.1, rules 2 and 6: a wildcard outlives explicit names, and while it
// is held an unsubscribed name's state is told.
func TestWildcardBesideNames(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c := w.delta(nil)
		must(t, c.Subscribe(rawxds.CDS))
		w.settle()
		must(t, c.Subscribe(rawxds.CDS, "orders.shop", "ghost.shop"))
		w.settle()
		n := len(c.Responses(rawxds.CDS))
		w.put(svc("quotes.shop", "10.0.0.1"))
		r, err := c.Count(rawxds.CDS, n+1, soon)
		must(t, err)
		w.gave(r, []string{"quotes.shop"})
		must(t, c.Unsubscribe(rawxds.CDS, "orders.shop", "ghost.shop", "never.shop"))
		r, err = c.Count(rawxds.CDS, n+2, soon)
		must(t, err)
		w.gave(r, []string{"orders.shop"}, "ghost.shop")
		must(t, c.Unsubscribe(rawxds.CDS, "*"))
		w.settle()
		w.put(svc("third.shop", "10.0.0.1"))
		w.settle()
		w.responses(c, rawxds.CDS, n+2)
		w.end(c)
	})
}

// A name twice in a request is one name, also where it is taken off and on at
// once; an acknowledgement counts once, and a rejection after it not at all.
func TestRepetitions(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c, s := w.delta(nil), w.sotw("gRPC Go", nil)
		must(t, c.Subscribe(rawxds.EDS, "orders.shop", "ghost.shop", "orders.shop", "ghost.shop"))
		must(t, s.Ask(rawxds.EDS, "orders.shop", "orders.shop"))
		w.settle()
		r := w.responses(c, rawxds.EDS, 1)[0]
		w.gave(r, []string{"orders.shop"}, "ghost.shop")
		w.gave(w.responses(s, rawxds.EDS, 1)[0], []string{"orders.shop"})
		must(t, s.Ask(rawxds.EDS, "orders.shop"))
		must(t, c.Ack(r))
		must(t, c.Nack(r, "too late"))
		w.settle()
		w.responses(c, rawxds.EDS, 1)
		w.responses(s, rawxds.EDS, 1)
		for _, got := range w.srv.Clients() {
			ty := got.Types[0]
			if want := map[string]int{"delta": 2, "sotw": 1}[got.Protocol]; ty.Names != want || ty.Nacks != 0 || ty.Unacked != 0 {
				t.Errorf("%s: %+v", got.Protocol, ty)
			}
		}
		must(t, c.SendDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: rawxds.EDS,
			ResourceNamesUnsubscribe: []string{"orders.shop", "orders.shop"}, ResourceNamesSubscribe: []string{"orders.shop"}}))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 2)[1], []string{"orders.shop"})
		w.put(svc("orders.shop", "10.0.0.2"))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 3)[2], []string{"orders.shop"})
		w.end(c, s)
	})
}

// ENGINE.md §5: a type that is not served has no resources, and says so.
func TestUnknownType(t *testing.T) {
	inWorld(t, func(w *world) {
		c := w.delta(nil)
		const vhds = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
		must(t, c.Subscribe(vhds))
		must(t, c.Subscribe(vhds, "rc/a", "rc/b"))
		r, err := c.Count(vhds, 1, soon)
		must(t, err)
		w.gave(r, nil, "rc/a", "rc/b")
		s := w.sotw("envoy", nil)
		must(t, s.Ask(vhds, "rc/a"))
		must(t, s.Ask(rawxds.CDS))
		_, err = s.Count(rawxds.CDS, 1, soon)
		must(t, err)
		w.responses(s, vhds, 0)
		w.end(c, s)
	})
}

// DESIGN.md §8: a client that knows a service at a higher version than ours is
// not sent ours; the service is stamped anew.
func TestHigherVersionIsStampedAnew(t *testing.T) {
	inWorld(t, func(w *world) {
		w.grant = true
		v := w.put(svc("orders.shop", "10.0.0.1"))
		c := w.delta(nil)
		must(t, c.Subscribe(rawxds.EDS, "orders.shop"))
		w.settle()
		render := strings.TrimPrefix(c.Held(rawxds.EDS)["orders.shop"].Version, v.Endpoint.String())
		mark := rawxds.NewWatermark()
		later := w.delta(nil).Keep(mark)
		must(t, later.Resume(rawxds.EDS, map[string]string{"orders.shop": fmt.Sprintf("%d.%d%s", epoch, 900, render)}, "orders.shop"))
		w.settle()
		w.responses(later, rawxds.EDS, 0)
		if len(w.restamp) != 1 || w.restamp[0] != v.Name {
			t.Fatalf("stamped anew: %v", w.restamp)
		}
		w.seq = 900
		w.put(svc("orders.shop", "10.0.0.1"))
		r, err := later.Count(rawxds.EDS, 1, soon)
		must(t, err)
		w.gave(r, []string{"orders.shop"})

		// An epoch that we never had is unknown: the full view under our version.
		foreign := w.delta(nil)
		must(t, foreign.Resume(rawxds.EDS, map[string]string{"orders.shop": "99.1" + render}, "orders.shop"))
		r, err = foreign.Count(rawxds.EDS, 1, soon)
		must(t, err)
		w.gave(r, []string{"orders.shop"})
		w.end(c, later, foreign)
	})
}

// C16: until desired state is loaded nothing is answered.
func TestNothingBeforeTheSnapshotIsComplete(t *testing.T) {
	inWorld(t, func(w *world) {
		w.snap.Store(views.NewSnapshot(false))
		w.restart()
		c, s := w.delta(nil), w.sotw("gRPC Go", nil)
		must(t, c.Subscribe(rawxds.EDS, "orders.shop"))
		must(t, s.AskFrom(rawxds.EDS, "6.99", "orders.shop"))
		time.Sleep(30 * time.Second)
		w.put(svc("orders.shop", "10.0.0.1"))
		time.Sleep(30 * time.Second)
		w.responses(c, "", 0)
		w.responses(s, "", 0)
		w.snap.Store(w.snap.Load().WithHead(true, views.Generations{}))
		for _, client := range []*rawxds.Client{c, s} {
			r, err := client.Count(rawxds.EDS, 1, soon)
			must(t, err)
			got, err := r.Resources[0].Addresses()
			must(t, err)
			if len(got) != 1 {
				t.Errorf("addresses %v", got)
			}
		}
		w.end(c, s)
	})
}

// Scope: leaving it is a removal on delta, entering it an addition.
func TestScope(t *testing.T) {
	inWorld(t, func(w *world) {
		w.policy.Store(&authz.Policy{Generation: 2, TrustDomain: "region.test", Default: authz.OwnNamespace})
		w.put(svc("orders.shop", "10.0.0.1"))
		w.put(svc("vault.bank", "10.0.0.2"))
		c := w.delta(nil)
		must(t, c.Subscribe(rawxds.CDS))
		must(t, c.Subscribe(rawxds.EDS, "orders.shop", "vault.bank", "ghost.bank"))
		w.settle()
		w.gave(c.Responses(rawxds.CDS)[0], []string{"orders.shop"})
		w.gave(c.Responses(rawxds.EDS)[0], []string{"orders.shop"}, "vault.bank", "ghost.bank")

		w.policy.Store(&authz.Policy{Generation: 3, TrustDomain: "region.test", Default: authz.WholeTrustDomain})
		r, err := c.Count(rawxds.EDS, 2, soon)
		must(t, err)
		w.gave(r, []string{"vault.bank"})
		if _, ok := c.Held(rawxds.CDS)["vault.bank"]; !ok {
			t.Error("the Cluster did not come with the permission")
		}
		w.policy.Store(&authz.Policy{Generation: 4, TrustDomain: "region.test", Default: authz.OwnNamespace})
		r, err = c.Count(rawxds.EDS, 3, soon)
		must(t, err)
		w.gave(r, nil, "vault.bank")
		w.settle()
		if held := c.Held(rawxds.CDS); len(held) != 1 {
			t.Errorf("still holds %v", held)
		}
		w.end(c)
	})
}
