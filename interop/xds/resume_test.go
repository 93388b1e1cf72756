package xds

import (
	"slices"
	"testing"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// C03: what was deleted while a client was away.
func TestC03DeletedWhileAway(t *testing.T) {
	for name, crash := range map[string]bool{"the server stays": false, "the server is killed meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deletedWhileAway(start(t), crash)
		})
	}
}

func deletedWhileAway(w *world, crash bool) {
	all := []string{"orders.shop", "ledger.shop", "quotes.shop"}
	for i, host := range all {
		w.api.Apply(w, harness.WithoutRamp(host), harness.PutService(host), harness.PutInstance(host, "a", at(i, 0)))
		w.published(host, 1)
	}
	first := w.delta(nil)
	w.ok(first.Subscribe(rawxds.CDS, "*"))
	w.ok(first.Subscribe(rawxds.EDS, all...))
	w.ok(first.Await(starts, func() bool { return len(first.Held(rawxds.CDS)) == 3 && len(first.Held(rawxds.EDS)) == 3 }))
	first.Close()

	http2 := harness.GRPCPort()
	http2.Protocol = registryv1.Protocol_PROTOCOL_HTTP
	w.api.Apply(w, harness.DeleteService("ledger.shop"), harness.PutService("orders.shop", http2), harness.PutInstance("orders.shop", "b", at(0, 1)))
	w.published("orders.shop", 2)
	if crash {
		w.s.Kill()
		w.s.Restart(w)
	}
	again := w.delta(nil).Carry(first, rawxds.CDS, rawxds.EDS)
	w.ok(again.Resume(rawxds.CDS, first.Versions(rawxds.CDS), "*"))
	w.ok(again.Resume(rawxds.EDS, first.Versions(rawxds.EDS), all...))
	for _, typ := range []string{rawxds.CDS, rawxds.EDS} {
		err := again.Await(budget, func() bool {
			return slices.Contains(sentOf(again, typ), "orders.shop") && slices.Contains(removedOf(again, typ), "ledger.shop")
		})
		if err != nil {
			w.Fatalf("%s: %v: sent %v, removed %v", typ, err, sentOf(again, typ), removedOf(again, typ))
		}
	}
	w.silent(again, "")
	for _, typ := range []string{rawxds.CDS, rawxds.EDS} {
		w.same(typ+" sent", slices.Compact(sentOf(again, typ)), "orders.shop")
		w.same(typ+" removed", slices.Compact(removedOf(again, typ)), "ledger.shop")
	}
	w.holds(again, "orders.shop", soon, at(0, 0), at(0, 1))
	w.holds(again, "quotes.shop", soon, at(2, 0))
}

func sentOf(c *rawxds.Client, typ string) (names []string) {
	for _, r := range c.Responses(typ) {
		names = append(names, r.Names()...)
	}
	return names
}
