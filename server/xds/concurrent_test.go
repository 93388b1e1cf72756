package xds_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	"github.com/sightlinedev/sightline/views"
)

// Shards publish at the same time, while streams come and go.
func TestConcurrentPublishers(t *testing.T) {
	inWorld(t, func(w *world) {
		const shards, changes = 4, 100
		var hosts []string
		for i := range shards {
			hosts = append(hosts, fmt.Sprintf("s%d.shop", i))
		}
		clients := []*rawxds.Client{w.delta(nil), w.delta(nil), w.sotw("gRPC Go", nil), w.sotw("envoy", nil)}
		for i, c := range clients {
			if i < 2 {
				must(t, c.Subscribe(rawxds.EDS, hosts...))
				must(t, c.Subscribe(rawxds.CDS))
			} else {
				must(t, c.Ask(rawxds.EDS, hosts...))
			}
		}
		var wg sync.WaitGroup
		var swap sync.Mutex // the publisher's lock: version and snapshot together
		for i := range shards {
			wg.Go(func() {
				for n := range changes {
					swap.Lock()
					old := w.snap.Load().Get(nameOf(hosts[i]))
					v := w.view(svc(hosts[i], fmt.Sprintf("10.%d.0.%d", i, n+1)), old)
					w.snap.Store(w.snap.Load().With(v))
					swap.Unlock()
					w.srv.Feed().Publish(views.Publication{Version: v.Version(), Name: v.Name, Old: old, New: v, Lane: views.Lane(n % 2)})
				}
			})
		}
		wg.Go(func() {
			for range 20 {
				c := w.delta(nil)
				must(w, c.Subscribe(rawxds.EDS, hosts...))
				_, err := c.Count(rawxds.EDS, 1, soon)
				must(w, err)
				w.end(c)
			}
		})
		wg.Wait()
		w.settle()
		for i, c := range clients {
			for n, h := range hosts {
				got, err := c.Held(rawxds.EDS)[h].Addresses()
				if want := []string{fmt.Sprintf("10.%d.0.%d:8080", n, changes)}; err != nil || !slices.Equal(got, want) {
					t.Errorf("client %d: %s is %v %v, want %v", i, h, got, err, want)
				}
			}
		}
		w.end(clients...)
	})
}
