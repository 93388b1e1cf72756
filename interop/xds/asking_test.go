package xds

import (
	"slices"
	"testing"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
)

// C01: asking again for a resource that the server thinks one has.
func TestC01AskingAgainIsAnswered(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.api.Apply(t, harness.WithoutRamp("orders.shop"), harness.PutService("orders.shop"),
		harness.PutInstance("orders.shop", "a", at(1, 0)), harness.PutInstance("orders.shop", "b", at(1, 1)),
		harness.WithoutRamp("ledger.shop"), harness.PutService("ledger.shop"))
	w.published("orders.shop", 2)
	w.published("ledger.shop", 0)

	askAgain := func(c *rawxds.Client, version string) {
		t.Helper()
		n := len(c.Responses(rawxds.EDS))
		w.ok(c.Subscribe(rawxds.EDS, "orders.shop"))
		r := w.response(c, rawxds.EDS, n+1, soon)
		w.same("asked again", r.Names(), "orders.shop")
		w.same("removed", r.Removed)
		if len(r.Resources) == 1 && r.Resources[0].Version != version {
			t.Errorf("version %s, was %s", r.Resources[0].Version, version)
		}
	}
	c := w.delta(nil)
	w.ok(c.Subscribe(rawxds.EDS, "orders.shop"))
	version := w.response(c, rawxds.EDS, 1, soon).Resources[0].Version
	w.silent(c, rawxds.EDS)
	askAgain(c, version)

	w.ok(c.Subscribe(rawxds.CDS, "*"))
	w.same("wildcard", w.response(c, rawxds.CDS, 1, soon).Names(), "ledger.shop", "orders.shop")
	w.silent(c, rawxds.CDS)
	w.ok(c.Subscribe(rawxds.CDS, "*"))
	w.same("wildcard again", w.response(c, rawxds.CDS, 2, soon).Names(), "ledger.shop", "orders.shop")

	// An equal version may be left unanswered on the first request alone.
	resumed := w.delta(nil)
	w.ok(resumed.Resume(rawxds.EDS, map[string]string{"orders.shop": version}, "orders.shop"))
	w.silent(resumed, rawxds.EDS)
	askAgain(resumed, version)
}

// C02: subscribing before the thing exists.
func TestC02WhatDoesNotExistYetArrivesUnasked(t *testing.T) {
	t.Parallel()
	w := start(t)
	c := w.delta(nil)
	w.ok(c.Subscribe(rawxds.EDS, "ledger.shop"))
	r := w.response(c, rawxds.EDS, 1, soon)
	w.same("unknown", r.Removed, "ledger.shop")
	w.same("resources", r.Names())
	w.silent(c, rawxds.EDS)

	w.api.Apply(t, harness.WithoutRamp("ledger.shop"), harness.PutService("ledger.shop"), harness.PutInstance("ledger.shop", "one", at(1, 0)))
	w.holds(c, "ledger.shop", idle, at(1, 0))

	before := len(c.Responses(rawxds.EDS))
	w.api.Apply(t, harness.DeleteService("ledger.shop"))
	if err := c.Await(budget, func() bool {
		return slices.ContainsFunc(c.Responses(rawxds.EDS)[before:], func(r *rawxds.Response) bool { return slices.Contains(r.Removed, "ledger.shop") })
	}); err != nil {
		t.Fatalf("the deletion: %v", err)
	}
	w.silent(c, rawxds.EDS)
	before = len(c.Responses(rawxds.EDS))
	w.api.Apply(t, harness.PutService("ledger.shop"), harness.PutInstance("ledger.shop", "two", at(1, 1)))
	w.holds(c, "ledger.shop", idle, at(1, 1))
	for _, r := range c.Responses(rawxds.EDS)[before:] {
		for _, res := range r.Resources {
			if list, err := res.Addresses(); err != nil || slices.Contains(list, at(1, 0).String()) {
				t.Errorf("an instance of the deleted service came back: %v, %v", list, err)
			}
		}
	}
}

// C05, raw steps: more names at an unchanged version. The step with a real idle
// channel is in interop/grpcgo.
func TestC05MoreNamesAtAnUnchangedVersion(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.api.Apply(t, harness.WithoutRamp("orders.shop"), harness.PutService("orders.shop"), harness.PutInstance("orders.shop", "a", at(1, 0)),
		harness.WithoutRamp("ledger.shop"), harness.PutService("ledger.shop"), harness.PutInstance("ledger.shop", "a", at(2, 0)))
	w.published("orders.shop", 1)
	w.published("ledger.shop", 1)
	c := w.sotw(nil)
	w.ok(c.Ask(rawxds.EDS, "orders.shop"))
	w.same("step 1", w.response(c, rawxds.EDS, 1, soon).Names(), "orders.shop")

	more := func(step string) {
		t.Helper()
		before := len(c.Responses(rawxds.EDS))
		w.ok(c.Ask(rawxds.EDS, "orders.shop", "ledger.shop"))
		if err := c.Await(soon, func() bool {
			return slices.ContainsFunc(c.Responses(rawxds.EDS)[before:], func(r *rawxds.Response) bool { return slices.Contains(r.Names(), "ledger.shop") })
		}); err != nil {
			t.Fatalf("%s: ledger was added to the list: %v", step, err)
		}
		w.holds(c, "ledger.shop", soon, at(2, 0))
	}
	w.silent(c, rawxds.EDS)
	more("step 2")
	w.ok(c.Ask(rawxds.EDS, "orders.shop"))
	_ = c.Await(quiet, func() bool { return false }) // the shorter list is settled; an answer is allowed
	more("step 4")
}

// C07, raw steps: services with nobody in them, and names that nobody knows. The
// fresh Envoy is in interop/envoy.
func TestC07EmptyAndUnknownNames(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.api.Apply(t, harness.WithoutRamp("orders.shop"), harness.PutService("orders.shop"),
		harness.PutInstance("orders.shop", "a", at(1, 0)), harness.PutInstance("orders.shop", "b", at(1, 1)),
		harness.WithoutRamp("quotes.shop"), harness.PutService("quotes.shop"))
	w.published("orders.shop", 2)
	w.published("quotes.shop", 0)
	names := []string{"orders.shop", "quotes.shop", "ghost.shop"}

	s, d := w.sotw(nil), w.delta(nil)
	w.ok(s.Ask(rawxds.EDS, names...))
	w.same("state of the world", w.response(s, rawxds.EDS, 1, soon).Names(), "orders.shop", "quotes.shop")
	w.ok(d.Subscribe(rawxds.EDS, names...))
	if err := d.Await(soon, func() bool { return len(d.Held(rawxds.EDS)) == 2 && len(removedOf(d, rawxds.EDS)) > 0 }); err != nil {
		t.Fatal(err)
	}
	w.same("delta, removed", removedOf(d, rawxds.EDS), "ghost.shop")
	for _, c := range []*rawxds.Client{s, d} {
		w.holds(c, "quotes.shop", soon)
		w.holds(c, "orders.shop", soon, at(1, 0), at(1, 1))
	}

	before := map[*rawxds.Client]int{s: deliveries(s, "quotes.shop"), d: deliveries(d, "quotes.shop")}
	for _, there := range []bool{true, false, true} {
		if there {
			w.api.Apply(t, harness.PutInstance("quotes.shop", "one", at(2, 0)))
		} else {
			w.api.Apply(t, harness.DeleteInstance("quotes.shop", "one"))
		}
		for _, c := range []*rawxds.Client{s, d} {
			if there {
				w.holds(c, "quotes.shop", budget, at(2, 0))
			} else {
				w.holds(c, "quotes.shop", budget)
			}
		}
	}
	w.silent(s, rawxds.EDS)
	w.silent(d, rawxds.EDS)
	for c, n := range before {
		if got := deliveries(c, "quotes.shop") - n; got != 3 {
			t.Errorf("1, 0 and the same 1 gave %d deliveries", got)
		}
	}
}

func removedOf(c *rawxds.Client, typ string) (names []string) {
	for _, r := range c.Responses(typ) {
		names = append(names, r.Removed...)
	}
	return names
}

// deliveries counts the responses that carry the service's assignment.
func deliveries(c *rawxds.Client, host string) (n int) {
	for _, r := range c.Responses(rawxds.EDS) {
		if slices.Contains(r.Names(), host) {
			n++
		}
	}
	return n
}
