package xds_test

import (
	"testing"

	"github.com/sightlinedev/sightline/interop/harness/rawxds"
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
