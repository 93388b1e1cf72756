package xds_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	"github.com/sightlinedev/sightline/views"
)

// change publishes a service's view with something else in it.
func (w *world) change(host string, do func(v *views.View)) {
	old := w.snap.Load().Get(nameOf(host))
	next := *old
	next.Endpoint = w.next()
	next.Members = nil
	for _, m := range old.Members {
		is := *m
		next.Members = append(next.Members, &is)
	}
	do(&next)
	next.ListedCount = 0
	for _, m := range next.Members {
		if m.Listed {
			next.ListedCount++
		}
	}
	w.publish(old, &next, false)
}

// holder is a raw gRPC client: an ADS stream and an LRS stream on one connection.
type holder struct {
	*reporter
	ads *rawxds.Client
}

func (w *world) holder(agent, connection string, react rawxds.Reaction) *holder {
	w.Helper()
	ads, err := rawxds.Sotw(connected(connection), w.cc, rawxds.Node("n1", agent, "local", "z1"), react)
	must(w, err)
	must(w, ads.Ask(rawxds.EDS, "checkout.shop"))
	w.settle()
	return &holder{reporter: w.reporter(connected(connection), agent), ads: ads}
}

func (h *holder) close() {
	h.reporter.close()
	h.w.end(h.ads)
}

// calls reports that everything is well with those instances, for an interval
// that has just passed.
func (h *holder) calls(uids ...string) {
	h.w.Helper()
	c := cluster("checkout.shop")
	for _, u := range uids {
		c.UpstreamLocalityStats = append(c.UpstreamLocalityStats, locality(u, 9, 9))
	}
	h.send(c)
}

// An instance that a gRPC client held for the whole interval, and has no counts
// of, was never picked; what it was given within the interval says nothing.
func TestNeverPicked(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2", "10.0.0.3"))
		h := w.holder("gRPC Go", "c1", nil)
		h.calls("i1", "i2") // the first one begins the record
		l.expect(w, "grpc shop/checkout i1:9/9/0/0 i2:9/9/0/0")
		time.Sleep(time.Second)
		h.calls("i1", "i2")
		l.expect(w, "grpc shop/checkout i1:9/9/0/0 i2:9/9/0/0")
		time.Sleep(2 * time.Second)
		h.calls("i1", "i2")
		l.expect(w, "grpc shop/checkout i1:9/9/0/0@100 i2:9/9/0/0@100 i3:0/0/0/0@100")
		time.Sleep(2 * time.Second)
		h.calls() // nobody was called: nobody was passed over
		l.expect(w, "grpc shop/checkout")

		// One more, and one with less weight: not yet known of them.
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"))
		w.change("checkout.shop", func(v *views.View) { v.Members[2].Weight = 10 })
		time.Sleep(time.Second)
		h.calls("i1", "i2", "i4")
		l.expect(w, "grpc shop/checkout i1:9/9/0/0@100 i2:9/9/0/0@100 i3:0/0/0/0@10 i4:9/9/0/0")
		time.Sleep(2 * time.Second)
		h.calls("i1", "i2")
		l.expect(w, "grpc shop/checkout i1:9/9/0/0@100 i2:9/9/0/0@100 i3:0/0/0/0@10 i4:0/0/0/0@100")

		// A weight that rose counts as it was; who was withdrawn is not held.
		w.change("checkout.shop", func(v *views.View) { v.Members[2].Weight = 90; v.Members[3].Listed = false })
		time.Sleep(time.Second)
		h.calls("i1", "i2")
		l.expect(w, "grpc shop/checkout i1:9/9/0/0@100 i2:9/9/0/0@100 i3:0/0/0/0@10")
		time.Sleep(2 * time.Second)
		h.calls("i1", "i2")
		l.expect(w, "grpc shop/checkout i1:9/9/0/0@100 i2:9/9/0/0@100 i3:0/0/0/0@90")

		// Withdrawn and back within one interval: it was not held for all of it.
		w.change("checkout.shop", func(v *views.View) { v.Members[2].Listed = false })
		w.settle()
		w.change("checkout.shop", func(v *views.View) { v.Members[2].Listed = true })
		w.settle()
		h.calls("i1", "i2")
		l.expect(w, "grpc shop/checkout i1:9/9/0/0@100 i2:9/9/0/0@100")
		h.close()
	})
}

// Many changes within an interval leave those who stayed known.
func TestNeverPickedWhileTheServiceMoves(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"))
		h := w.holder("gRPC Java", "c1", nil)
		h.calls("i1")
		for range 60 {
			time.Sleep(200 * time.Millisecond)
			w.change("checkout.shop", func(v *views.View) { v.Members[3].Weight = v.Members[3].Weight%90 + 10 })
		}
		synctest.Wait()
		l.take(w)
		h.calls("i1")
		reports, _ := l.take(w)
		if len(reports) != 1 || reports[0][:len("grpc shop/checkout i1:9/9/0/0@100 i2:0/0/0/0@100 i3:0/0/0/0@100 i4:0/0/0/0@")] !=
			"grpc shop/checkout i1:9/9/0/0@100 i2:0/0/0/0@100 i3:0/0/0/0@100 i4:0/0/0/0@" {
			t.Errorf("handed on %q", reports)
		}
		for range 100 { // more than are remembered: then nobody was held for certain
			time.Sleep(10 * time.Millisecond)
			w.change("checkout.shop", func(v *views.View) { v.Members[3].Weight = v.Members[3].Weight%90 + 10 })
			synctest.Wait()
		}
		h.calls("i1")
		l.expect(w, "grpc shop/checkout i1:9/9/0/0")
		h.close()
	})
}

// Only the ADS stream of the same connection and caller says what a client
// holds, and only as far as the client said that it took it.
func TestNeverPickedNeedsAnAcknowledgedAssignment(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2"))
		alone := []string{"grpc shop/checkout i1:9/9/0/0"}
		wait := func() { time.Sleep(3 * time.Second) }

		h := w.holder("gRPC Go", "c1", nil)
		other := &holder{reporter: w.reporter(connected("c2"), "gRPC Go"), ads: h.ads}
		stolen := &holder{reporter: w.reporter(metadata.AppendToOutgoingContext(as("spiffe://region.test/ns/shop/sa/other"), "conn-id", "c1"), "gRPC Go"), ads: h.ads}
		for _, o := range []*holder{other, stolen} {
			for range 3 {
				o.calls("i1")
				l.expect(w, alone...)
				wait()
			}
			o.reporter.close()
		}
		// Names that the stream does not ask for any more are not held.
		h.calls("i1")
		wait()
		h.calls("i1")
		l.expect(w, alone[0], "grpc shop/checkout i1:9/9/0/0@100 i2:0/0/0/0@100")
		must(t, h.ads.Ask(rawxds.EDS))
		w.settle()
		h.calls("i1")
		l.expect(w, alone...)
		must(t, h.ads.Ask(rawxds.EDS, "checkout.shop"))
		w.settle()
		h.calls("i1")
		l.expect(w, alone...)
		h.close()

		silent := false
		var last *rawxds.Response
		h = w.holder("gRPC Go", "c3", func(r *rawxds.Response) rawxds.Answer { last = r; return rawxds.Answer{Silent: silent} })
		h.calls("i1")
		wait()
		silent = true
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2", "10.0.0.3"))
		wait()
		l.take(w)
		h.calls("i1")
		l.expect(w, "grpc shop/checkout i1:9/9/0/0@100 i2:0/0/0/0@100")
		must(t, h.ads.Nack(last, "not that one"))
		wait()
		h.calls("i1") // it may hold some of what it refused
		l.expect(w, alone...)
		silent = false
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"))
		wait()
		h.calls("i1")
		l.expect(w, "grpc shop/checkout i1:9/9/0/0@100 i2:0/0/0/0@100 i3:0/0/0/0@100 i4:0/0/0/0@100")
		w.drop("checkout.shop")
		w.settle()
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2"))
		w.settle()
		h.calls("i1")
		l.expect(w, alone...)
		h.close()
	})
}

// Who is farther away than those that are called is not expected to be picked,
// and the localities of a group say nothing of its members.
func TestNeverPickedByZoneAndForm(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"))
		w.change("checkout.shop", func(v *views.View) {
			v.PreferZone = true
			v.Members[2].Zone, v.Members[3].Zone = "z2", "z2"
		})
		h := w.holder("gRPC Go", "c1", nil)
		wait := func() { time.Sleep(3 * time.Second); l.take(w) }
		h.calls("i1")
		wait()
		h.calls("i1")
		l.expect(w, "grpc shop/checkout i1:9/9/0/0@100 i2:0/0/0/0@100")
		h.calls("i3") // the near ones are all dead
		l.expect(w, "grpc shop/checkout i1:0/0/0/0@100 i2:0/0/0/0@100 i3:9/9/0/0@100 i4:0/0/0/0@100")
		w.change("checkout.shop", func(v *views.View) { v.Members[1].Listed = false })
		wait()
		h.calls("i1", "i3") // half of the zone is gone: the others help out, at their weights
		l.expect(w, "grpc shop/checkout i1:9/9/0/0@700000 i3:9/9/0/0@150000 i4:0/0/0/0@150000")

		w.change("checkout.shop", func(v *views.View) {
			v.PreferZone, v.Forms = false, [views.SizeClasses]views.Form{views.Grouped, views.Grouped, views.Grouped, views.Grouped}
			v.Members[1].Listed, v.Members[1].OwnLocality, v.Members[1].Weight = true, true, 10
			v.Members[2].OwnLocality, v.Members[2].Weight = true, 40
		})
		wait()
		h.send(cluster("checkout.shop", locality("g5", 90, 90), locality("i2", 9, 9)))
		l.expect(w, "grpc shop/checkout i2:9/9/0/0@10 i3:0/0/0/0@40", "- shop/checkout shared-locality 1")
		w.change("checkout.shop", func(v *views.View) {
			v.Forms = [views.SizeClasses]views.Form{views.Flat, views.Flat, views.Flat, views.Flat}
		})
		wait()
		h.send(cluster("checkout.shop", locality("all", 90, 90)))
		l.expect(w, "- shop/checkout shared-locality 1")
		h.close()
	})
}

// Envoy tells what it could not reach, and Envoy's stream is never read so.
func TestEnvoyIsNotAskedWhomItNeverPicked(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2"))
		ads := w.delta(nil)
		must(t, ads.Subscribe(rawxds.EDS, "checkout.shop"))
		r := w.reporter(context.Background(), "envoy")
		for range 3 {
			r.send(envoyCluster("checkout.shop", endpoint("10.0.0.1:8080", 9, 9)))
			l.expect(w, "envoy shop/checkout i1:9/9/0/0")
			time.Sleep(3 * time.Second)
		}
		r.close()
		w.end(ads)
	})
}
