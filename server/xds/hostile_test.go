package xds_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	"github.com/sightlinedev/sightline/server/limits"
)

const hostsType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"

// Names of types that are not served count like any others, and their answers
// stay within a response.
func TestUnservedTypesAreBounded(t *testing.T) {
	inWorld(t, func(w *world) {
		var names []string
		for i := range 100 {
			names = append(names, fmt.Sprintf("%s-%d", strings.Repeat("v", 400), i))
		}
		c := w.delta(nil)
		must(t, c.Subscribe(hostsType, names...))
		w.settle()
		told := 0
		for _, r := range c.Responses(hostsType) {
			told += len(r.Removed)
			if r.Size > 20<<10 {
				t.Errorf("a response of %d bytes", r.Size)
			}
		}
		if told != len(names) {
			t.Errorf("%d of %d names answered", told, len(names))
		}
		must(t, c.Subscribe(hostsType, append(names, "one more")...))
		must(t, ignoreEnd(c.Await(5*time.Second, func() bool { return c.Err() != nil })))
		if status.Code(c.Err()) != codes.ResourceExhausted {
			t.Errorf("ended with %v", c.Err())
		}
		w.end(c)
	}, within(func(l *limits.XDS) { l.ResponseBytes, l.Names = 20<<10, 100 }))
}

// Over the limit of offered versions, and of names taken off, a stream ends.
func TestRequestsAreBounded(t *testing.T) {
	inWorld(t, func(w *world) {
		offered := make(map[string]string)
		for i := range 51 {
			offered[fmt.Sprintf("s%d.shop", i)] = "7.1-00000000"
		}
		a, b := w.delta(nil), w.delta(nil)
		must(t, a.Resume(rawxds.CDS, offered))
		must(t, b.Unsubscribe(rawxds.EDS, "a.shop", "b.shop", "c.shop"))
		for _, c := range []*rawxds.Client{a, b} {
			must(t, ignoreEnd(c.Await(5*time.Second, func() bool { return c.Err() != nil })))
			if status.Code(c.Err()) != codes.ResourceExhausted {
				t.Errorf("ended with %v", c.Err())
			}
		}
		w.end(a, b)
	}, within(func(l *limits.XDS) { l.Names, l.AgentNames = 2, 50 }))
}

// A client that reads nothing is ended whatever it asked for.
func TestUnreadAnswersAboutUnservedTypesEndTheStream(t *testing.T) {
	inWorld(t, func(w *world) {
		cc := w.dial()
		defer cc.Close()
		s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(context.Background())
		must(t, err)
		for i := range 40 {
			must(t, s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: hostsType, ResourceNamesSubscribe: []string{fmt.Sprintf("%s%d", strings.Repeat("v", 500), i)}}))
			time.Sleep(50 * time.Millisecond)
			for range 10 {
				must(t, s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: hostsType, ResourceNamesSubscribe: []string{strings.Repeat("w", 500)}}))
			}
		}
		time.Sleep(2 * time.Minute)
		if n := w.srv.Streams(); n != 0 {
			t.Errorf("%d streams are open", n)
		}
	})
}

// What a deleted service looked like is told to nobody who could not see it.
func TestResumeDoesNotRevealADeletedServiceOfOthers(t *testing.T) {
	inWorld(t, func(w *world) {
		w.policy.Store(&authz.Policy{Generation: 2, TrustDomain: "region.test", Default: authz.OwnNamespace})
		w.put(svc("vault.bank", "10.9.9.9"))
		w.put(svc("orders.shop", "10.0.0.1"))
		w.drop("vault.bank")
		w.put(svc("quotes.shop", "10.0.0.1"))
		c := w.sotw("gRPC Java", nil)
		must(t, c.AskFrom(rawxds.EDS, "7.0", "vault.bank", "never.bank"))
		w.settle()
		secret, nobody := assignment(t, c, "vault.bank"), assignment(t, c, "never.bank")
		secret.ClusterName = nobody.ClusterName
		if secret.String() != nobody.String() {
			t.Errorf("a deleted service of others is %v, one that never was %v", secret, nobody)
		}
		if n := len(c.Responses(rawxds.EDS)); n != 1 {
			t.Errorf("%d responses", n)
		}
		w.end(c)
	})
}

// Acknowledgements of nothing count like any other request.
func TestForgedAcknowledgementsAreCounted(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("a.shop", "10.0.0.1"))
		for _, delta := range []bool{true, false} {
			c := w.open(delta, "envoy", nil)
			if delta {
				must(t, c.Subscribe(rawxds.EDS, "a.shop"))
			} else {
				must(t, c.Ask(rawxds.EDS, "a.shop"))
			}
			w.settle()
			began := time.Now()
			for range 300 {
				if delta {
					must(t, c.SendDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: rawxds.EDS, ResponseNonce: "1-0"}))
				} else {
					must(t, c.SendSotw(&discoveryv3.DiscoveryRequest{TypeUrl: rawxds.EDS, ResponseNonce: "1-0", ResourceNames: []string{"a.shop"}}))
				}
			}
			if delta {
				must(t, c.Subscribe(rawxds.EDS, "a.shop"))
			} else {
				w.put(svc("b.shop", "10.0.0.1"))
				must(t, c.Ask(rawxds.EDS, "a.shop", "b.shop"))
			}
			_, err := c.Count(rawxds.EDS, 2, time.Minute)
			must(t, err)
			if d := time.Since(began); d < 9*time.Second || d > 12*time.Second {
				t.Errorf("300 of them took %s at 20 a second beyond 100", d)
			}
			w.end(c)
		}
	})
}

// What was made of services that come and go is not kept for ever, also where a
// client still shows the last of it.
func TestDeletedServicesLeaveNoBytes(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c := w.sotw("gRPC Go", nil)
		for i := range 10 {
			gone := fmt.Sprintf("s%d.shop", i)
			w.put(svc(gone, "10.0.0.1"))
			must(t, c.Ask(rawxds.CDS, "orders.shop", gone))
			w.settle()
			w.drop(gone)
			w.put(service{host: "orders.shop", addrs: []string{"10.0.0.1"}, ports: []uint16{uint16(9000 + i)}})
			w.settle()
			w.gave(w.responses(c, rawxds.CDS, 2*i+2)[2*i+1], []string{"orders.shop", gone})
		}
		time.Sleep(time.Minute)
		if n := w.srv.RenderedServices(); n != 2 { // the last one is still shown
			t.Errorf("bytes of %d services are kept", n)
		}
		w.end(c)
	})
}

// XDS.md section 7, trap 1: some Envoys come back without asking for Clusters, and ask
// on their next stream. One that does so again has none.
func TestEnvoyThatForgetsItsClustersIsEndedOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c := w.sidecar()
		assignments, listener := c.Versions(rawxds.EDS), c.Versions(rawxds.LDS)
		w.end(c.Client)
		for i := range 2 {
			again := w.delta(nil)
			must(t, again.Resume(rawxds.EDS, assignments, "orders.shop"))
			static := w.delta(nil) // has assignments only, as with Clusters of its own
			must(t, static.Resume(rawxds.EDS, assignments, "orders.shop"))
			w.settle()
			must(t, again.Resume(rawxds.LDS, listener))
			time.Sleep(10 * time.Second)
			must(t, again.Err())
			time.Sleep(20 * time.Second)
			if ended := again.Err() != nil; ended != (i == 0) || static.Err() != nil {
				t.Errorf("time %d: ended %t; the one without listeners: %v", i, ended, static.Err())
			}
			w.end(again, static)
		}
		if len(w.ended) != 1 || !strings.Contains(w.ended[0].Error(), "Clusters") {
			t.Errorf("reported %v", w.ended)
		}
	})
}
