package xds_test

import (
	"testing"

	"github.com/sightlinedev/sightline/interop/harness/rawxds"
)

// What a stream knows is told name by name: held, refused, and of no service.
func TestResourcesOfAStream(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := w.many(3)
		bad := hosts[1]
		c := w.delta(refusing(bad))
		must(t, c.Subscribe(rawxds.EDS, append(hosts, "NOBODY")...))
		w.settle()
		id := w.srv.Clients()[0].ID
		list, ok := w.srv.Resources(id)
		if !ok || len(list) != 4 {
			t.Fatalf("%+v, %v", list, ok)
		}
		for _, r := range list {
			unknown := r.Name == "NOBODY"
			if r.Type != "EDS" || !r.Subscribed || r.Rejected != (r.Name == bad) || r.Service.IsZero() != unknown || !unknown && r.Service.Host() != r.Name {
				t.Errorf("%+v", r)
			}
			if !unknown && !r.Rejected && (!r.Held || r.Waiting) {
				t.Errorf("%+v is not held at rest", r)
			}
		}
		w.end(c)
		w.settle()
		if list, ok := w.srv.Resources(id); ok {
			t.Errorf("a stream that ended: %+v", list)
		}
	})
}
