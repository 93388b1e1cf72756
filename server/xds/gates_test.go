package xds_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/views"
)

// Additions wait for the acknowledgement of additions; withdrawals never do.
func TestAdditionsWaitWithdrawalsDoNot(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("a.shop", "10.0.0.1", "10.0.0.2", "10.0.0.3"))
		w.put(svc("b.shop", "10.0.0.1"))
		w.put(svc("c.shop", "10.0.0.1"))
		c := w.delta(rawxds.Silence)
		must(t, c.Subscribe(rawxds.EDS, "a.shop", "b.shop", "c.shop"))
		w.settle()
		w.put(svc("b.shop", "10.0.0.1", "10.0.0.9"))
		w.settle()
		w.responses(c, rawxds.EDS, 1) // the first answer is not acknowledged
		w.put(svc("a.shop", "10.0.0.1", "10.0.0.2"))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 2)[1], []string{"a.shop"})
		must(t, c.Ack(c.Responses(rawxds.EDS)[0]))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 3)[2], []string{"b.shop"})
		// A withdrawal that is not acknowledged does not hold additions, one with additions does.
		w.put(svc("c.shop", "10.0.0.1", "10.0.0.4"))
		w.put(svc("a.shop", "10.0.0.1"))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 4)[3], []string{"a.shop"})
		must(t, c.Ack(c.Responses(rawxds.EDS)[2]))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 5)[4], []string{"c.shop"})
		w.end(c)
	})
}

// While the gate is open, additions ride in a withdrawal's response.
func TestAdditionsRideAlong(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("a.shop", "10.0.0.1", "10.0.0.2"))
		w.put(svc("b.shop", "10.0.0.1"))
		c := w.delta(rawxds.Silence)
		must(t, c.Subscribe(rawxds.EDS, "a.shop", "b.shop"))
		w.settle()
		for i := range 7 {
			w.urge(svc("a.shop", fmt.Sprintf("10.0.1.%d", i)))
			w.settle()
		}
		all := w.responses(c, rawxds.EDS, 8)
		w.put(svc("b.shop", "10.0.0.1", "10.0.0.2"))
		w.urge(svc("a.shop", "10.0.2.1"))
		w.settle()
		w.responses(c, rawxds.EDS, 8) // eight are unacknowledged
		must(t, c.Ack(all[0]))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 9)[8], []string{"a.shop", "b.shop"})
		w.end(c)
	})
}

// At most eight responses of a type are unacknowledged; what is dirty beyond
// that merges into the newest state.
func TestWindow(t *testing.T) {
	for _, delta := range []bool{true, false} {
		t.Run(fmt.Sprint("delta=", delta), func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.put(svc("a.shop", "10.0.0.1"))
				c := w.open(delta, "gRPC Go", rawxds.Silence)
				if delta {
					must(t, c.Subscribe(rawxds.EDS, "a.shop"))
				} else {
					must(t, c.Ask(rawxds.EDS, "a.shop"))
				}
				w.settle()
				for i := range 50 {
					w.urge(svc("a.shop", fmt.Sprintf("10.0.1.%d", i)))
					time.Sleep(10 * time.Millisecond)
				}
				all := w.responses(c, rawxds.EDS, 8)
				must(t, c.Ack(all[7]))
				w.settle()
				if delta {
					w.responses(c, rawxds.EDS, 8) // a nonce settles its own response only
					must(t, c.Ack(all[0]))
					w.settle()
				}
				last := w.responses(c, rawxds.EDS, 9)[8]
				if got, err := last.Resources[0].Addresses(); err != nil || !slices.Equal(got, []string{"10.0.1.49:8080"}) {
					t.Errorf("the newest state is not what came: %v %v", got, err)
				}
				w.end(c)
			})
		})
	}
}

// A forged acknowledgement opens nothing.
func TestForgedNonce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("a.shop", "10.0.0.1"))
		c := w.delta(rawxds.Silence)
		must(t, c.Subscribe(rawxds.EDS, "a.shop"))
		other := w.delta(rawxds.Silence)
		must(t, other.Subscribe(rawxds.EDS, "a.shop"))
		w.settle()
		theirs := other.Responses(rawxds.EDS)[0].Nonce
		w.put(svc("a.shop", "10.0.0.1", "10.0.0.2"))
		for _, nonce := range []string{theirs, "1", "1-", "1-0", "-", "x", "1-ffffffff", "99999999999-1", strings.Repeat("1", 1000)} {
			must(t, c.SendDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: rawxds.EDS, ResponseNonce: nonce}))
		}
		w.settle()
		w.responses(c, rawxds.EDS, 1)
		// Subscription changes count whatever the nonce.
		must(t, c.SendDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: rawxds.EDS, ResponseNonce: "stale", ResourceNamesSubscribe: []string{"b.shop"}}))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 2)[1], nil, "b.shop")
		w.end(c, other)
	})
}

// C43.1: what does not fit one response is split, and all of it arrives once.
func TestSplit(t *testing.T) {
	inWorld(t, func(w *world) {
		var hosts []string
		for i := range 1200 {
			s := svc(fmt.Sprintf("s%04d.shop", i), addresses(50)...)
			s.pad = 60
			w.put(s)
			hosts = append(hosts, s.host)
		}
		c := w.delta(nil)
		must(t, c.Subscribe(rawxds.CDS))
		must(t, c.Subscribe(rawxds.EDS, hosts...))
		time.Sleep(5 * time.Second)
		for _, typ := range []string{rawxds.CDS, rawxds.EDS} {
			times := make(map[string]int)
			for _, r := range c.Responses(typ) {
				for _, n := range r.Names() {
					times[n]++
				}
			}
			if len(times) != len(hosts) {
				t.Errorf("%d of %d arrived", len(times), len(hosts))
			}
			for n, k := range times {
				if k != 1 && typ == rawxds.CDS || k > 2 {
					t.Errorf("%s arrived %d times", n, k)
				}
			}
		}
		if n := len(c.Responses(rawxds.EDS)); n < 2 {
			t.Errorf("%d responses", n)
		}
		w.end(c)
	})
}

// C43.2: a request with the versions of 60,000 long names is taken in, and what
// it removes is split as well.
func TestManyOfferedVersions(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("a.shop", "10.0.0.1"))
		offered := make(map[string]string)
		for i := range 60000 {
			offered[fmt.Sprintf("%s-%05d.%s", strings.Repeat("s", 50), i, strings.Repeat("n", 60))] = "7.1-00000000"
		}
		c := w.delta(nil)
		must(t, c.Resume(rawxds.CDS, offered, "*"))
		must(t, c.Await(10*time.Second, func() bool {
			n := 0
			for _, r := range c.Responses(rawxds.CDS) {
				n += len(r.Removed)
			}
			return n == len(offered)
		}))
		if len(c.Responses(rawxds.CDS)) < 3 {
			t.Errorf("%d responses", len(c.Responses(rawxds.CDS)))
		}
		w.end(c)
	})
}

// A client that acknowledges nothing is ended, with the reason, after 30 s and
// what its oldest response needs at 16 KiB/s; its neighbours notice nothing.
func TestStuckClientIsEnded(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(service{host: "a.shop", addrs: addresses(2000), pad: 100})
		stuck, good := w.delta(rawxds.Silence), w.delta(nil)
		must(t, stuck.Subscribe(rawxds.EDS, "a.shop"))
		must(t, good.Subscribe(rawxds.EDS, "a.shop"))
		began := time.Now()
		err := stuck.Await(5*time.Minute, func() bool { return stuck.Err() != nil })
		must(t, ignoreEnd(err))
		size := w.responses(stuck, rawxds.EDS, 1)[0].Size
		want := 30*time.Second + time.Duration(size)*time.Second/(16<<10)
		if d := time.Since(began); size < 100<<10 || d < want || d > want+3*time.Second {
			t.Errorf("ended after %s, want %s for %d bytes", d, want, size)
		}
		if status.Code(stuck.Err()) != codes.DeadlineExceeded && status.Code(stuck.Err()) != codes.Unavailable && status.Code(stuck.Err()) != codes.Aborted {
			t.Errorf("ended with %v", stuck.Err())
		}
		if good.Err() != nil || len(w.srv.Clients()) != 1 {
			t.Errorf("the other client: %v, %d streams", good.Err(), len(w.srv.Clients()))
		}
		w.end(stuck, good)
	})
}

// A client that never reads costs only itself: others get their withdrawals, and
// it is ended.
func TestClientsThatNeverRead(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(service{host: "a.shop", addrs: addresses(300), pad: 400})
		var stuck []discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
		for range 20 {
			cc := w.dial()
			defer cc.Close()
			s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(context.Background())
			must(t, err)
			must(t, s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: rawxds.EDS, ResourceNamesSubscribe: []string{"a.shop"}}))
			stuck = append(stuck, s)
		}
		c := w.delta(nil)
		must(t, c.Subscribe(rawxds.EDS, "a.shop"))
		w.settle()
		for i := range 20 {
			began := time.Now()
			w.urge(service{host: "a.shop", addrs: addresses(300 - i), pad: 400})
			r, err := c.Count(rawxds.EDS, i+2, 2*time.Second)
			must(t, err)
			if d := r.At.Sub(began); d > 50*time.Millisecond { // nobody waits for a blocked worker to be replaced
				t.Errorf("withdrawal %d took %s", i, d)
			}
		}
		time.Sleep(90 * time.Second)
		if n := len(w.srv.Clients()); n != 1 {
			t.Errorf("%d streams are open", n)
		}
		_ = stuck
		w.end(c)
	})
}

// Over a limit a stream ends with the limit's name, and only that stream.
func TestLimits(t *testing.T) {
	inWorld(t, func(w *world) {
		good := w.delta(nil)
		must(t, good.Subscribe(rawxds.EDS, "a.shop"))
		c := w.delta(nil)
		began := time.Now()
		must(t, c.Subscribe(rawxds.EDS, "a.shop", "b.shop", "c.shop"))
		must(t, ignoreEnd(c.Await(5*time.Second, func() bool { return c.Err() != nil })))
		if st := status.Convert(c.Err()); st.Code() != codes.ResourceExhausted || time.Since(began) < time.Second {
			t.Errorf("too many names: %v after %s", st, time.Since(began)) // at once would be a loop
		}
		var more []*rawxds.Client
		for range 3 {
			c := w.delta(nil)
			_ = c.Subscribe(rawxds.EDS, "a.shop")
			more = append(more, c)
		}
		w.settle()
		if n := len(w.srv.Clients()); n != 3 {
			t.Errorf("%d streams, the limit is 3", n)
		}
		must(t, good.Err())
		w.end(append(more, c, good)...)
	}, within(func(l *limits.XDS) { l.Names, l.StreamsPerSource = 2, 3 }))
}

// Requests that come too fast wait; acknowledgements do not count.
func TestRequestRate(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("a.shop", "10.0.0.1"))
		c := w.delta(nil)
		began := time.Now()
		for range 300 {
			must(t, c.Subscribe(rawxds.EDS, "a.shop"))
		}
		must(t, c.Subscribe(rawxds.EDS, "last.shop"))
		must(t, c.Await(time.Minute, func() bool { return find(c, -1, rawxds.EDS, drops("last.shop")) != nil }))
		if d := time.Since(began); d < 9*time.Second || d > 12*time.Second {
			t.Errorf("300 requests beyond 100 at once took %s at 20 a second", d)
		}
		w.end(c)
	})
}

// A stream without an identity is refused.
func TestNoIdentity(t *testing.T) {
	inWorld(t, func(w *world) {
		s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(w.cc).DeltaAggregatedResources(as("none"))
		must(t, err)
		if _, err = s.Recv(); status.Code(err) != codes.Unauthenticated {
			t.Errorf("got %v", err)
		}
	})
}

// Drain ends the streams and refuses new ones.
func TestDrain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("a.shop", "10.0.0.1"))
		c := w.delta(nil)
		must(t, c.Subscribe(rawxds.EDS, "a.shop"))
		w.settle()
		must(t, w.srv.Drain(context.Background()))
		w.settle()
		if status.Code(c.Err()) != codes.Unavailable {
			t.Errorf("ended with %v", c.Err())
		}
		late := w.delta(nil)
		w.settle()
		if status.Code(late.Err()) != codes.Unavailable {
			t.Errorf("a late stream ended with %v", late.Err())
		}
		w.end(c, late)
	})
}

// The fan-out is measured, once the last stream had its turn.
func TestFanOut(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("a.shop", "10.0.0.1"))
		w.settle()
		if w.fanOuts != 1 {
			t.Errorf("%d fan-outs were reported", w.fanOuts)
		}
	})
}

// A stream that never asks for anything is ended too, and does not hold a drain.
func TestSilentStream(t *testing.T) {
	inWorld(t, func(w *world) {
		c := w.delta(nil)
		must(t, ignoreEnd(c.Await(time.Minute, func() bool { return c.Err() != nil })))
		if status.Code(c.Err()) != codes.Aborted {
			t.Errorf("ended with %v", c.Err())
		}
		silent := w.delta(nil)
		w.settle()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		must(t, w.srv.Drain(ctx))
		w.end(c, silent)
	})
}

// A drain while the snapshot is not complete ends the streams that wait for it.
func TestDrainBeforeLoaded(t *testing.T) {
	inWorld(t, func(w *world) {
		w.snap.Store(views.NewSnapshot(false))
		w.restart()
		c := w.delta(nil)
		must(t, c.Subscribe(rawxds.EDS, "a.shop"))
		w.settle()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		must(t, w.srv.Drain(ctx))
		w.settle()
		if status.Code(c.Err()) != codes.Unavailable {
			t.Errorf("ended with %v", c.Err())
		}
		w.end(c)
	})
}

// The inventory says what a stream holds, waits for and refused.
func TestClients(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("a.shop", "10.0.0.1"))
		w.put(svc("b.shop", "10.0.0.1"))
		c := w.delta(rawxds.Silence)
		must(t, c.Subscribe(rawxds.EDS, "a.shop", "b.shop", "ghost.shop"))
		s := w.sotw("gRPC Go", nil)
		must(t, s.Ask(rawxds.EDS, "a.shop"))
		w.settle()
		w.put(svc("a.shop", "10.0.0.1", "10.0.0.2"))
		w.settle()
		for _, got := range w.srv.Clients() {
			if len(got.Types) != 1 || got.Node != "n1" || got.Zone != "z1" || got.Principal.String() != "spiffe://region.test/ns/shop/sa/caller" {
				t.Fatalf("%+v", got)
			}
			ty := got.Types[0]
			switch got.Protocol {
			case "delta":
				if got.Kind != "envoy" || ty.Names != 3 || ty.Held != 2 || ty.Unacked != 1 || ty.Waiting != 1 || got.UnackedSize == 0 || !ty.Acked.IsZero() {
					t.Errorf("%+v", got)
				}
			case "sotw":
				if got.Kind != "grpc-go" || ty.Names != 1 || ty.Unacked != 0 || ty.Acked.Seq != 3 || got.UnackedSize != 0 {
					t.Errorf("%+v", got)
				}
			}
		}
		w.end(c, s)
	})
}
