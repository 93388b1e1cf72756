package xds_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	"github.com/sightlinedev/sightline/server/limits"
)

const outbound = "sightline-outbound"

// sidecar follows Clusters as Envoy does: it asks for the assignments of those
// that are new to it. React, when set, answers what it is not silent about.
type sidecar struct {
	*rawxds.Client
	mu    sync.Mutex
	known map[string]bool
	react rawxds.Reaction
}

func (s *sidecar) answer(r *rawxds.Response) rawxds.Answer {
	s.mu.Lock()
	var news []string
	if r.Type == rawxds.CDS {
		for _, n := range r.Names() {
			if !s.known[n] {
				news, s.known[n] = append(news, n), true
			}
		}
		for _, n := range r.Removed {
			delete(s.known, n)
		}
	}
	react := s.react
	s.mu.Unlock()
	if len(news) > 0 {
		_ = s.Subscribe(rawxds.EDS, news...)
	}
	if react == nil {
		return rawxds.Answer{}
	}
	return react(r)
}

func (s *sidecar) behave(react rawxds.Reaction) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.react = react
}

// sidecar opens an Envoy-like stream that has everything.
func (w *world) sidecar() *sidecar {
	w.Helper()
	s := &sidecar{known: make(map[string]bool)}
	opened := make(chan struct{})
	s.Client = w.delta(func(r *rawxds.Response) rawxds.Answer { <-opened; return s.answer(r) })
	close(opened)
	must(w, s.Subscribe(rawxds.CDS))
	must(w, s.Subscribe(rawxds.LDS))
	w.settle()
	must(w, s.Subscribe(rawxds.RDS, outbound))
	w.settle()
	return s
}

// routes lists the clusters that the newest routes name.
func (w *world) routes(c *rawxds.Client) []string {
	w.Helper()
	r, ok := c.Held(rawxds.RDS)[outbound]
	if !ok {
		w.Fatal("holds no routes")
	}
	names, err := r.Clusters()
	must(w, err)
	return names
}

// find returns the first response after the n-th that the condition holds for.
func find(c *rawxds.Client, after int, typ string, is func(*rawxds.Response) bool) *rawxds.Response {
	for _, r := range c.Responses(typ) {
		if r.Sequence > after && is(r) {
			return r
		}
	}
	return nil
}

func has(name string) func(*rawxds.Response) bool {
	return func(r *rawxds.Response) bool { return slices.Contains(r.Names(), name) }
}

func drops(name string) func(*rawxds.Response) bool {
	return func(r *rawxds.Response) bool { return slices.Contains(r.Removed, name) }
}

func routing(yes, no string) func(*rawxds.Response) bool {
	return func(r *rawxds.Response) bool {
		for _, res := range r.Resources {
			names, err := res.Clusters()
			return err == nil && slices.Contains(names, yes) && !slices.Contains(names, no)
		}
		return false
	}
}

// C09: moving from one service to another. On the stream: the new Cluster, its
// assignment, the route; once that is acknowledged, in the reverse, the old
// assignment's removal, then its Cluster's.
func TestMakeBeforeBreak(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders-v1.shop", "10.0.0.1"))
		c := w.sidecar()
		start := len(c.Responses("")) - 1
		c.behave(func(*rawxds.Response) rawxds.Answer { return rawxds.Answer{After: 500 * time.Millisecond} })
		w.put(svc("orders-v2.shop", "10.0.0.2"))
		w.drop("orders-v1.shop")
		time.Sleep(20 * time.Second)
		steps := []*rawxds.Response{
			find(c.Client, start, rawxds.CDS, has("orders-v2.shop")),
			find(c.Client, start, rawxds.EDS, has("orders-v2.shop")),
			find(c.Client, start, rawxds.RDS, routing("orders-v2.shop", "orders-v1.shop")),
			find(c.Client, start, rawxds.EDS, drops("orders-v1.shop")),
			find(c.Client, start, rawxds.CDS, drops("orders-v1.shop")),
		}
		for i, s := range steps {
			if s == nil {
				t.Fatalf("step %d did not come: %s", i, brief(c.Responses("")))
			}
			if i > 0 && s.Sequence < steps[i-1].Sequence {
				t.Errorf("step %d came before step %d: %s", i, i-1, brief(c.Responses("")))
			}
		}
		w.end(c.Client)
	})
}

// A service's creation goes CDS, EDS, RDS.
func TestCreationOrder(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c := w.sidecar()
		start := len(c.Responses("")) - 1
		w.put(svc("quotes.shop", "10.0.0.2"))
		w.settle()
		cluster := find(c.Client, start, rawxds.CDS, has("quotes.shop"))
		assigned := find(c.Client, start, rawxds.EDS, has("quotes.shop"))
		routed := find(c.Client, start, rawxds.RDS, routing("quotes.shop", "-"))
		if cluster == nil || assigned == nil || routed == nil ||
			cluster.Sequence > assigned.Sequence || assigned.Sequence > routed.Sequence {
			t.Errorf("order: %s", brief(c.Responses("")))
		}
		if early := find(c.Client, start, rawxds.RDS, func(r *rawxds.Response) bool {
			return assigned != nil && r.Sequence < assigned.Sequence && routing("quotes.shop", "-")(r)
		}); early != nil {
			t.Errorf("routed before its assignment: %s", brief(c.Responses("")))
		}
		w.end(c.Client)
	})
}

// A deleted service's Cluster goes after its route, at the latest after 5 s; at
// once when the client rejects the route.
func TestRemovalIsHeldForTheRoute(t *testing.T) {
	for name, test := range map[string]struct {
		react    rawxds.Reaction
		min, max time.Duration
	}{
		"acknowledged": {nil, 0, soon},
		"silent":       {silentAbout(rawxds.RDS), 5 * time.Second, 6 * time.Second},
		"rejected": {func(r *rawxds.Response) rawxds.Answer {
			if r.Type == rawxds.RDS {
				return rawxds.Answer{Reject: "no", After: time.Second}
			}
			return rawxds.Answer{}
		}, time.Second, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.put(svc("orders.shop", "10.0.0.1"))
				w.put(svc("quotes.shop", "10.0.0.1"))
				c := w.sidecar()
				start, began := len(c.Responses(""))-1, time.Now()
				c.behave(test.react)
				w.drop("orders.shop")
				time.Sleep(20 * time.Second)
				routed := find(c.Client, start, rawxds.RDS, routing("quotes.shop", "orders.shop"))
				gone := find(c.Client, start, rawxds.CDS, drops("orders.shop"))
				if routed == nil || gone == nil || gone.Sequence < routed.Sequence {
					t.Fatalf("order: %s", brief(c.Responses("")))
				}
				if d := gone.At.Sub(began); d < test.min || d > test.max {
					t.Errorf("the Cluster went after %s, want %s to %s", d, test.min, test.max)
				}
				if left := find(c.Client, routed.Sequence, rawxds.EDS, drops("orders.shop")); left == nil || left.Sequence > gone.Sequence {
					t.Errorf("the assignment did not go between the route and the Cluster: %s", brief(c.Responses("")))
				}
				w.end(c.Client)
			})
		})
	}
}

func silentAbout(typ string) rawxds.Reaction {
	return func(r *rawxds.Response) rawxds.Answer { return rawxds.Answer{Silent: r.Type == typ} }
}

// A port that is not declared any more takes its Cluster along after 15 s at the
// latest; the service's other port keeps its route meanwhile.
func TestUndeclaredPortIsHeld(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(service{host: "orders.shop", addrs: []string{"10.0.0.1"}, ports: []uint16{8080, 9090}})
		c := w.sidecar()
		if got := w.routes(c.Client); !slices.Equal(got, []string{"orders.shop", "orders.shop:9090"}) {
			t.Fatalf("routes %v", got)
		}
		start, began := len(c.Responses(""))-1, time.Now()
		c.behave(silentAbout(rawxds.RDS))
		w.put(svc("orders.shop", "10.0.0.1"))
		time.Sleep(30 * time.Second)
		gone := find(c.Client, start, rawxds.CDS, drops("orders.shop:9090"))
		if gone == nil || gone.At.Sub(began) < 15*time.Second || gone.At.Sub(began) > 16*time.Second {
			t.Fatalf("the port's Cluster: %s", brief(c.Responses("")))
		}
		if got := w.routes(c.Client); !slices.Equal(got, []string{"orders.shop"}) {
			t.Errorf("routes %v", got)
		}
		w.end(c.Client)
	})
}

// A service that comes back while its removal is held stays, and is routed again.
func TestRecreationCancelsTheRemoval(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		w.put(svc("quotes.shop", "10.0.0.1"))
		c := w.sidecar()
		start := len(c.Responses("")) - 1
		c.behave(silentAbout(rawxds.RDS))
		w.drop("orders.shop")
		time.Sleep(time.Second)
		w.put(svc("orders.shop", "10.0.0.7"))
		time.Sleep(10 * time.Second)
		if r := find(c.Client, start, rawxds.CDS, drops("orders.shop")); r != nil {
			t.Errorf("the Cluster was removed: %s", brief(c.Responses("")))
		}
		for _, r := range c.Responses(rawxds.RDS) {
			_ = c.Ack(r)
		}
		w.settle()
		if got := w.routes(c.Client); !slices.Equal(got, []string{"orders.shop", "quotes.shop"}) {
			t.Errorf("routes %v: %s", got, brief(c.Responses("")))
		}
		w.end(c.Client)
	})
}

// XDS.md §3.1, rule 12: a changed Cluster is followed by its assignment.
func TestAssignmentFollowsChangedCluster(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		w.put(svc("quotes.shop", "10.0.0.1"))
		c := w.sidecar()
		s := w.sotw("envoy", nil)
		must(t, s.Ask(rawxds.CDS))
		must(t, s.Ask(rawxds.EDS, "orders.shop", "quotes.shop"))
		w.settle()
		for i, c := range []*rawxds.Client{c.Client, s} {
			start := len(c.Responses("")) - 1
			w.put(service{host: "orders.shop", addrs: []string{"10.0.0.1"}, ports: []uint16{uint16(9000 + i)}})
			w.settle()
			cluster := find(c, start, rawxds.CDS, has("orders.shop"))
			after := find(c, start, rawxds.EDS, has("orders.shop"))
			if cluster == nil || after == nil || after.Sequence != cluster.Sequence+1 {
				t.Errorf("order: %s", brief(c.Responses("")))
			}
			if find(c, start, rawxds.EDS, has("quotes.shop")) != nil {
				t.Error("an assignment whose Cluster did not change came too")
			}
		}
		w.end(c.Client, s)
	})
}

// A Cluster that was sent again on a resumed stream makes its assignment due,
// also where the client offers it at the current version.
func TestResumedAssignmentFollowsItsCluster(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c := w.delta(nil)
		must(t, c.Subscribe(rawxds.CDS))
		must(t, c.Subscribe(rawxds.EDS, "orders.shop"))
		w.settle()
		offered := c.Versions(rawxds.EDS)
		w.end(c)
		c = w.delta(nil)
		must(t, c.Resume(rawxds.CDS, map[string]string{"orders.shop": "7.0-00000000"}))
		w.settle()
		w.responses(c, rawxds.CDS, 1)
		must(t, c.Resume(rawxds.EDS, offered, "orders.shop"))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 1)[0], []string{"orders.shop"})
		w.end(c)
	})
}

// Both or neither: while the window of assignments is full, no Cluster goes that
// would owe one.
func TestClusterWaitsForRoomForItsAssignment(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := w.many(10)
		c := w.delta(silentAbout(rawxds.EDS))
		must(t, c.Subscribe(rawxds.CDS))
		must(t, c.Subscribe(rawxds.EDS, hosts...))
		w.settle()
		for i := range 9 {
			w.urge(svc(hosts[i], "10.0.9.9"))
			w.settle()
		}
		if n := len(c.Responses(rawxds.EDS)); n != 8 {
			t.Fatalf("%d assignments unacknowledged, want 8", n)
		}
		n := len(c.Responses(rawxds.CDS))
		w.put(service{host: hosts[9], addrs: []string{"10.0.0.1"}, ports: []uint16{9000}})
		w.settle()
		w.responses(c, rawxds.CDS, n)
		for _, r := range c.Responses(rawxds.EDS) {
			must(t, c.Ack(r))
		}
		w.settle()
		cluster := w.responses(c, rawxds.CDS, n+1)[n]
		if after := find(c, cluster.Sequence, rawxds.EDS, has(hosts[9])); after == nil || after.Sequence != cluster.Sequence+1 {
			t.Errorf("order: %s", brief(c.Responses("")))
		}
		w.end(c)
	})
}

// On a resumed stream routes wait for Clusters and assignments to be asked for,
// or for a second.
func TestResumedRoutesWait(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c := w.sidecar()
		clusters, assigned, routes := c.Versions(rawxds.CDS), c.Versions(rawxds.EDS), c.Versions(rawxds.RDS)
		w.end(c.Client)

		quick := w.delta(nil)
		must(t, quick.Resume(rawxds.RDS, routes, outbound))
		must(t, quick.Resume(rawxds.CDS, clusters, "*"))
		must(t, quick.Resume(rawxds.EDS, assigned, "orders.shop"))
		w.settle()
		w.responses(quick, "", 0) // it had everything

		w.put(svc("quotes.shop", "10.0.0.1"))
		slow := w.delta(nil)
		began := time.Now()
		must(t, slow.Resume(rawxds.RDS, routes, outbound))
		r, err := slow.Count(rawxds.RDS, 1, 5*time.Second)
		must(t, err)
		if d := r.At.Sub(began); d < time.Second || d > 1500*time.Millisecond {
			t.Errorf("routes came after %s", d)
		}
		if got := w.routes(slow); !slices.Equal(got, []string{"orders.shop", "quotes.shop"}) {
			t.Errorf("without Clusters the routes are %v", got)
		}
		w.end(quick, slow)
	})
}

// On state of the world Envoy's Cluster goes by omission, after the route.
func TestSotwEnvoyRemoval(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		w.put(svc("quotes.shop", "10.0.0.1"))
		c := w.sotw("envoy", func(r *rawxds.Response) rawxds.Answer { return rawxds.Answer{After: 100 * time.Millisecond} })
		must(t, c.Ask(rawxds.CDS))
		w.settle()
		must(t, c.Ask(rawxds.EDS, "orders.shop", "quotes.shop"))
		w.settle()
		must(t, c.Ask(rawxds.RDS, outbound))
		w.settle()
		start := len(c.Responses("")) - 1
		w.drop("orders.shop")
		w.settle()
		routed := find(c, start, rawxds.RDS, routing("quotes.shop", "orders.shop"))
		gone := find(c, start, rawxds.CDS, func(r *rawxds.Response) bool { return same(r.Names(), []string{"quotes.shop"}) })
		if routed == nil || gone == nil || gone.At.Before(routed.At.Add(100*time.Millisecond)) {
			t.Errorf("order: %s", brief(c.Responses("")))
		}
		if find(c, start, rawxds.EDS, has("orders.shop")) != nil {
			t.Error("the assignment of the deleted service was sent")
		}
		w.end(c)
	})
}

// Clusters in several responses: each is followed by its assignments before the
// next one comes.
func TestAssignmentsFollowEachPart(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := w.many(200)
		c := w.delta(nil)
		must(t, c.Subscribe(rawxds.EDS, hosts...))
		must(t, c.Subscribe(rawxds.CDS))
		w.settle()
		all := c.Responses("")
		parts := 0
		pending := make(map[string]bool)
		for _, r := range all {
			if r.Size > 20<<10 {
				t.Errorf("a response of %d bytes", r.Size)
			}
			if r.Type == rawxds.CDS {
				if parts++; len(pending) > 0 {
					t.Errorf("part %d came before %d assignments of those before it", parts, len(pending))
				}
			}
			for _, n := range r.Names() {
				if r.Type == rawxds.CDS {
					pending[n] = true
				} else {
					delete(pending, n)
				}
			}
		}
		if parts < 3 || len(pending) > 0 {
			t.Errorf("%d parts, %d assignments are missing", parts, len(pending))
		}
		w.end(c)
	}, within(func(l *limits.XDS) { l.ResponseBytes = 20 << 10 }))
}

// Both or neither, also where the assignments of one response of Clusters need
// many: no Cluster is sent that the window has no room to follow up.
func TestClustersAreSentAsTheirAssignmentsFit(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := w.many(100)
		for _, h := range hosts {
			w.put(svc(h, addresses(60)...))
		}
		c := w.delta(silentAbout(rawxds.EDS))
		must(t, c.Subscribe(rawxds.EDS, "*"))
		must(t, c.Subscribe(rawxds.CDS))
		for range 40 {
			w.settle()
			owed := make(map[string]bool)
			for _, r := range c.Responses("") {
				for _, n := range r.Names() {
					owed[n] = r.Type == rawxds.CDS || r.Type != rawxds.EDS && owed[n]
				}
			}
			for n := range owed {
				if owed[n] {
					t.Errorf("%s has no assignment after its Cluster", n)
				}
			}
			for _, r := range c.Responses(rawxds.EDS) {
				_ = c.Ack(r)
			}
		}
		if n := len(c.Held(rawxds.CDS)); n != len(hosts) {
			t.Errorf("%d Clusters of %d came", n, len(hosts))
		}
		w.end(c)
	}, within(func(l *limits.XDS) { l.ResponseBytes, l.RequestBurst = 20<<10, 10000 }))
}
