package xds_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/xds"
)

// A service that comes back while its removal is held is routed again, also when
// its Cluster has to wait for an acknowledgement first.
func TestRecreationIsRoutedAfterAClosedGate(t *testing.T) {
	for _, delta := range []bool{true, false} {
		inWorld(t, func(w *world) {
			w.put(svc("orders.shop", "10.0.0.1"))
			c := w.follower(delta)
			c.behave(silentAbout(rawxds.CDS))
			w.put(svc("quotes.shop", "10.0.0.1")) // not acknowledged: the gate of Clusters is closed
			w.settle()
			c.behave(func(r *rawxds.Response) rawxds.Answer {
				return rawxds.Answer{Silent: r.Type == rawxds.CDS || r.Type == rawxds.RDS}
			})
			w.drop("orders.shop")
			w.settle()
			w.put(svc("orders.shop", "10.0.0.7"))
			w.settle()
			c.behave(nil)
			for _, r := range c.Responses("") {
				_ = c.Ack(r)
			}
			time.Sleep(20 * time.Second)
			if got := w.routes(c.Client); !slices.Equal(got, []string{"orders.shop", "quotes.shop"}) {
				t.Errorf("delta %t: routes %v: %s", delta, got, brief(c.Responses("")))
			}
			w.end(c.Client)
		})
	}
}

// An undeclared port whose route the client rejects keeps its Cluster: calls
// still go there. It goes with a later route that is taken, or after 15 s.
func TestRejectedRouteKeepsAnUndeclaredPort(t *testing.T) {
	for name, later := range map[string]bool{"time is over": false, "a later route is taken": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.put(service{host: "orders.shop", addrs: []string{"10.0.0.1"}, ports: []uint16{8080, 9090}})
				c := w.sidecar()
				start, began := len(c.Responses(""))-1, time.Now()
				c.behave(func(r *rawxds.Response) rawxds.Answer {
					if r.Type == rawxds.RDS {
						return rawxds.Answer{Reject: "no"}
					}
					return rawxds.Answer{}
				})
				w.put(svc("orders.shop", "10.0.0.1"))
				time.Sleep(3 * time.Second)
				if find(c.Client, start, rawxds.CDS, drops("orders.shop:9090")) != nil {
					t.Fatalf("the Cluster went although the client still routes to it: %s", brief(c.Responses("")))
				}
				low, high := 15*time.Second, 16*time.Second
				if later {
					c.behave(nil)
					w.put(svc("quotes.shop", "10.0.0.1"))
					low, high = 3*time.Second, 4*time.Second
				}
				time.Sleep(20 * time.Second)
				gone := find(c.Client, start, rawxds.CDS, drops("orders.shop:9090"))
				if gone == nil || gone.At.Sub(began) < low || gone.At.Sub(began) > high {
					t.Errorf("want it after %s: %s", low, brief(c.Responses("")))
				}
				w.end(c.Client)
			})
		})
	}
}

// A service that is deleted while the removal of a port of it is held is gone 5 s
// after that, not 15 s after the port.
func TestDeletionShortensAHold(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(service{host: "orders.shop", addrs: []string{"10.0.0.1"}, ports: []uint16{8080, 9090}})
		c := w.sidecar()
		start := len(c.Responses("")) - 1
		c.behave(silentAbout(rawxds.RDS))
		w.put(svc("orders.shop", "10.0.0.1"))
		time.Sleep(2 * time.Second)
		deleted := time.Now()
		w.drop("orders.shop")
		time.Sleep(20 * time.Second)
		for _, n := range []string{"orders.shop", "orders.shop:9090"} {
			gone := find(c.Client, start, rawxds.CDS, drops(n))
			if gone == nil || gone.At.Sub(deleted) < 5*time.Second || gone.At.Sub(deleted) > 6*time.Second {
				t.Errorf("%s: %s", n, brief(c.Responses("")))
			}
		}
		w.end(c.Client)
	})
}

// A client that lets go of a Cluster while its removal is held is still told
// that the assignment is gone.
func TestAssignmentGoesWhenItsClusterIsLetGo(t *testing.T) {
	for _, star := range []bool{false, true} {
		inWorld(t, func(w *world) {
			w.put(svc("orders.shop", "10.0.0.1"))
			c := w.delta(silentAbout(rawxds.RDS))
			name := "orders.shop"
			if star {
				name = "*"
			}
			must(t, c.Subscribe(rawxds.CDS, name))
			must(t, c.Subscribe(rawxds.EDS, "orders.shop"))
			must(t, c.Subscribe(rawxds.RDS, outbound))
			w.settle()
			w.drop("orders.shop")
			w.settle()
			must(t, c.Unsubscribe(rawxds.CDS, name))
			time.Sleep(20 * time.Second)
			if find(c, -1, rawxds.EDS, drops("orders.shop")) == nil {
				t.Errorf("%s: the assignment's removal was lost: %s", name, brief(c.Responses("")))
			}
			w.end(c)
		})
	}
}

// A service that is allowed again while its removal is held is routed again at
// once, although nothing about it changed.
func TestPermissionComesBackDuringAHold(t *testing.T) {
	for _, delta := range []bool{true, false} {
		inWorld(t, func(w *world) {
			w.put(svc("orders.shop", "10.0.0.1"))
			w.put(svc("vault.bank", "10.0.0.1"))
			c := w.follower(delta)
			c.behave(silentAbout(rawxds.RDS))
			allow := func(d authz.DefaultScope) {
				p := *w.policy.Load()
				p.Generation++
				p.Default = d
				w.policy.Store(&p)
				w.settle()
			}
			allow(authz.OwnNamespace)
			if find(c.Client, 0, rawxds.RDS, routing("orders.shop", "vault.bank")) == nil {
				t.Errorf("delta %t: forbidden, and routed: %s", delta, brief(c.Responses("")))
			}
			start := len(c.Responses("")) - 1
			allow(authz.WholeTrustDomain)
			if find(c.Client, start, rawxds.RDS, routing("vault.bank", "-")) == nil {
				t.Errorf("delta %t: allowed again, and not routed: %s", delta, brief(c.Responses("")))
			}
			w.end(c.Client)
		})
	}
}

// follower opens an Envoy-like stream that has everything, of either protocol.
func (w *world) follower(delta bool) *sidecar {
	w.Helper()
	if delta {
		return w.sidecar()
	}
	s := &sidecar{known: make(map[string]bool)}
	opened := make(chan struct{})
	s.Client = w.sotw("envoy", func(r *rawxds.Response) rawxds.Answer {
		<-opened
		s.mu.Lock()
		react := s.react
		s.mu.Unlock()
		if r.Type == rawxds.CDS {
			_ = s.Ask(rawxds.EDS, r.Names()...)
		}
		if react == nil {
			return rawxds.Answer{}
		}
		return react(r)
	})
	close(opened)
	must(w, s.Ask(rawxds.CDS))
	w.settle()
	must(w, s.Ask(rawxds.RDS, outbound))
	w.settle()
	return s
}

// Routes that no response can hold are reported, and those that the client has stay.
func TestRoutesThatCannotBeMadeStay(t *testing.T) {
	var refused atomic.Int64
	for _, delta := range []bool{true, false} {
		inWorld(t, func(w *world) {
			w.put(svc("orders.shop", "10.0.0.1"))
			c := w.follower(delta)
			long := strings.Repeat("s", 60)
			for i := range 50 {
				s := service{host: fmt.Sprintf("%s%d.%s", long, i, long), addrs: []string{"10.0.0.1"}}
				for port := range 150 {
					s.ports = append(s.ports, uint16(8000+port))
				}
				w.put(s)
			}
			time.Sleep(20 * time.Second)
			for _, r := range c.Responses(rawxds.RDS) {
				if len(r.Removed) > 0 {
					t.Errorf("the routes were taken away: %s", brief([]*rawxds.Response{r}))
				}
			}
			if refused.Swap(0) == 0 || !slices.Contains(w.routes(c.Client), "orders.shop") {
				t.Errorf("delta %t: %d routes are held", delta, len(w.routes(c.Client)))
			}
			w.drop("orders.shop") // a set that differs
			w.put(svc("last.shop", "10.0.0.1"))
			w.settle()
			if _, ok := c.Held(rawxds.RDS)[outbound]; !ok {
				t.Error("the routes are gone")
			}
			w.end(c.Client)
		}, within(func(l *limits.XDS) { l.Names = 20000 }), func(c *xds.Config) {
			c.Events.Unrenderable = func(string, string, error) { refused.Add(1) }
		})
	}
}
