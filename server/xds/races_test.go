package xds_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/xds"
	"github.com/sightlinedev/sightline/views"
)

// between calls do right after the n-th time that the server reads the snapshot:
// what is published there falls between two reads of one request or pass.
type between struct {
	world atomic.Pointer[world]
	left  atomic.Int64
	do    func()
}

func (b *between) option() option {
	return func(c *xds.Config) {
		c.Snapshot = func() *views.Snapshot {
			w := b.world.Load()
			if w == nil {
				return views.NewSnapshot(true)
			}
			s := w.snap.Load()
			if b.left.Add(-1) == 0 {
				b.do()
			}
			return s
		}
	}
}

func (b *between) arm(n int, do func()) {
	b.do = do
	b.left.Store(int64(n))
}

// disarm reports whether it had not happened yet.
func (b *between) disarm() bool { return b.left.Swap(0) > 0 }

// A publication that falls between any two reads of the snapshot, while a client
// comes back, is lost on nobody.
func TestPublicationsBetweenReads(t *testing.T) {
	for n := 1; n <= 12; n++ {
		t.Run(fmt.Sprint("read=", n), func(t *testing.T) {
			var b between
			inWorld(t, func(w *world) { b.world.Store(w); comeBackAmid(w, &b, n) }, b.option())
		})
	}
}

func comeBackAmid(w *world, b *between, n int) {
	serial := 0
	changed := func() service {
		serial++
		return service{host: "s1.shop", addrs: []string{address(serial)}, ports: []uint16{uint16(7000 + serial), 9090}}
	}
	w.put(svc("s0.shop", "10.0.0.1"))
	w.put(changed())
	for _, k := range [][2]string{{"envoy", "envoy"}, {"named", "envoy"}, {"sotw-envoy", "envoy"}, {"sotw-go", "gRPC Go"}, {"sotw-java", "gRPC Java"}} {
		a := &actor{w: w, kind: k[0], agent: k[1], delta: !strings.HasPrefix(k[0], "sotw"),
			mark: rawxds.NewWatermark(), names: make(map[string]bool), poison: make(map[string]bool)}
		if k[0] != "envoy" && k[0] != "sotw-envoy" {
			a.names = map[string]bool{"s0.shop": true, "s1.shop": true, "s1.shop:9090": true, "new.shop": true}
		}
		a.connect()
		time.Sleep(5 * time.Second)
		for _, do := range []func(){
			func() { w.put(changed()) },
			func() { w.urge(changed()) },
			func() { w.drop("s1.shop") },
			func() { w.put(changed()) },
			func() { w.put(svc("new.shop", "10.0.0.1")) },
			func() { w.drop("new.shop") },
		} {
			b.arm(n, do)
			a.connect()
			time.Sleep(20 * time.Second)
			if b.disarm() {
				do() // there were fewer reads
			}
			time.Sleep(20 * time.Second)
			a.compare(nil)
		}
		w.end(a.client)
	}
}

// More new services than a stream keeps marks of, all at once, reach a wildcard;
// so do changes of all of them.
func TestManyServicesAtOnce(t *testing.T) {
	var b between
	inWorld(t, func(w *world) {
		b.world.Store(w)
		w.put(svc("s0000.shop", "10.0.0.1"))
		c := w.sidecar()
		b.arm(1, func() { w.many(200) }) // while a response is built
		w.urge(svc("s0000.shop", "10.0.0.2"))
		time.Sleep(5 * time.Second)
		if n, routes := len(c.Held(rawxds.CDS)), w.routes(c.Client); n != 200 || len(routes) != 200 {
			t.Errorf("%d Clusters, %d of them routed", n, len(routes))
		}
		b.arm(1, func() {
			for i := range 200 {
				w.urge(svc(fmt.Sprintf("s%04d.shop", i), "10.0.0.3"))
			}
		})
		w.urge(svc("s0000.shop", "10.0.0.2"))
		time.Sleep(5 * time.Second)
		for n, r := range c.Held(rawxds.EDS) {
			if got, err := r.Addresses(); err != nil || !same(got, []string{"10.0.0.3:8080"}) {
				t.Errorf("%s is %v (%v)", n, got, err)
			}
		}
		w.end(c.Client)
	}, b.option())
}

// A resource that belongs to no service is shown under no lower version than the
// client came back with.
func TestCompositeIsNotBelowItsOffer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c := w.delta(nil)
		must(t, c.Resume(rawxds.RDS, map[string]string{outbound: fmt.Sprintf("%d.900-0", epoch)}, outbound))
		r, err := c.Count(rawxds.RDS, 1, 2*time.Second)
		must(t, err)
		if got := r.Resources[0].Version; !strings.HasPrefix(got, fmt.Sprintf("%d.900-", epoch)) {
			t.Errorf("offered %d.900, got %s", epoch, got)
		}
		w.put(svc("quotes.shop", "10.0.0.1"))
		w.settle()
		if got := w.responses(c, rawxds.RDS, 2)[1].Resources[0].Version; !strings.HasPrefix(got, fmt.Sprintf("%d.900-", epoch)) {
			t.Errorf("then %s", got)
		}
		w.end(c)
	})
}

// A service of the name of a deleted one shares nothing with it, not even its
// last good bytes.
func TestNothingOutlivesADeletedService(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c := w.sotw("gRPC Go", nil)
		must(t, c.Ask(rawxds.EDS, "orders.shop"))
		w.settle()
		w.drop("orders.shop")
		w.settle()
		v := w.view(svc("orders.shop", "10.0.0.2"), nil)
		v.Members[0].Weight = 0 // which no client could take
		w.publish(nil, v, false)
		w.settle()
		if got, err := c.Held(rawxds.EDS)["orders.shop"].Addresses(); err != nil || len(got) != 0 {
			t.Errorf("holds %v (%v): %s", got, err, brief(c.Responses("")))
		}
		w.end(c)
	})
}

// What a client offers at another version waits its turn: one response at a time.
// What it does not have goes at once.
func TestResumedNamesTakeTurns(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := w.many(100)
		for _, h := range hosts {
			w.put(svc(h, addresses(20)...))
		}
		offered := make(map[string]string)
		for _, h := range hosts {
			offered[h] = "6.1-0"
		}
		back, fresh := w.delta(rawxds.Silence), w.delta(rawxds.Silence)
		must(t, back.Resume(rawxds.EDS, offered, hosts...))
		must(t, fresh.Subscribe(rawxds.EDS, hosts...))
		w.settle()
		first := w.responses(back, rawxds.EDS, 1)[0]
		if n := len(fresh.Responses(rawxds.EDS)); n < 4 {
			t.Errorf("a fresh client has %d responses", n)
		}
		must(t, back.Ack(first))
		w.settle()
		w.responses(back, rawxds.EDS, 2)
		w.end(back, fresh)
	}, within(func(l *limits.XDS) { l.ResponseBytes = 60 << 10 }))
}

// A service that is being stamped anew is answered to nobody under the version
// that is too low, whoever asks for whatever of it meanwhile.
func TestNobodyIsAnsweredWhileAServiceIsStampedAnew(t *testing.T) {
	asked := 0
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		first := w.delta(nil)
		must(t, first.Subscribe(rawxds.CDS))
		must(t, first.Subscribe(rawxds.EDS, "orders.shop"))
		w.settle()
		offered := func(typ string) map[string]string {
			_, render, _ := strings.Cut(first.Versions(typ)["orders.shop"], "-")
			return map[string]string{"orders.shop": fmt.Sprintf("%d.900-%s", epoch, render)}
		}
		var back []*rawxds.Client
		for range 2 {
			c := w.delta(nil)
			must(t, c.Resume(rawxds.CDS, offered(rawxds.CDS)))
			must(t, c.Resume(rawxds.EDS, offered(rawxds.EDS), "orders.shop"))
			back = append(back, c)
		}
		w.settle()
		for _, c := range back {
			w.responses(c, "", 0)
		}
		w.seq = 900
		v := w.put(service{host: "orders.shop", addrs: []string{"10.0.0.1"}, ports: []uint16{8081}})
		w.settle()
		for _, c := range back {
			for _, typ := range []string{rawxds.CDS, rawxds.EDS} {
				if got := c.Versions(typ)["orders.shop"]; !strings.HasPrefix(got, v.Endpoint.String()+"-") {
					t.Errorf("%s at %q, want %s: %s", typ, got, v.Endpoint, brief(c.Responses("")))
				}
			}
		}
		w.end(append(back, first)...)
	}, func(c *xds.Config) {
		c.Restamp = func(views.Name) bool { asked++; return asked == 1 }
	})
}

// A new version that never comes is not waited for for ever.
func TestStampingAnewIsNotWaitedForForEver(t *testing.T) {
	inWorld(t, func(w *world) {
		w.grant = true
		w.put(svc("orders.shop", "10.0.0.1"))
		offered := map[string]string{"orders.shop": fmt.Sprintf("%d.900-x", epoch)}
		a := w.delta(nil)
		must(t, a.Resume(rawxds.EDS, offered, "orders.shop"))
		w.settle()
		w.responses(a, "", 0)
		w.grant = false
		time.Sleep(10 * time.Second)
		b := w.delta(nil)
		must(t, b.Resume(rawxds.EDS, offered, "orders.shop"))
		w.settle()
		w.responses(b, rawxds.EDS, 1)
		w.end(a, b)
	})
}
