package xds_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/views"
)

// What each kind of client sends, as it was recorded (PEERS.md part 2 §5), is
// understood from its first request on.
func TestLoadReportsOfEachKindOfClient(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2", "10.0.0.3"))
		grpc := []string{"grpc shop/checkout i1:50/50/0/0 i2:42/0/42/0"}
		for _, c := range []struct {
			agent  string
			repeat bool
			sent   *endpointv3.ClusterStats
			want   []string
		}{
			{"gRPC Go", false, cluster("checkout.shop", locality("i1", 50, 50), locality("i2", 42, 0, 42)), grpc},
			{"gRPC Node Pure JS", false, cluster("checkout.shop", locality("i1", 50, 50), locality("i2", 42, 0, 42)), grpc},
			{"gRPC C-core linux Python", false, cluster("checkout.shop", locality("i1", 50, 50), locality("i2", 42, 0, 42), locality("i3")), grpc},
			{"gRPC Java", true, cluster("checkout.shop", locality("i1", 50, 50), locality("i2", 42, 0, 42), locality("i3")), grpc},
			{"gRPC Go", false, cluster("checkout.shop", locality("i1", 8, 3, 1, 4)), []string{"grpc shop/checkout i1:8/3/1/4"}},
			{"envoy", false, envoyCluster("checkout.shop", endpoint("10.0.0.1:8080", 50, 49, 1), endpoint("10.0.0.3:8080", 0, 0, 1)),
				[]string{"envoy shop/checkout i1:50/49/1/0 i3:0/0/1/0"}},
		} {
			r := w.reporter(context.Background(), c.agent)
			r.repeat = c.repeat
			r.send(c.sent) // Node and Envoy have counts in their first request
			l.expect(w, c.want...)
			idle := strings.Fields(c.want[0])[0] + " shop/checkout"
			for _, nothing := range [][]*endpointv3.ClusterStats{nil, {cluster("checkout.shop", locality("i1"), locality("i2"))}, {cluster("checkout.shop")}} {
				time.Sleep(2 * time.Second)
				r.send(nothing...) // nothing at all, or nothing but zeros
				l.expect(w, idle)
			}
			time.Sleep(6 * time.Second)
			r.send() // one was missing: that it called nobody says nothing
			l.expect(w)
			time.Sleep(2 * time.Second)
			r.send()
			l.expect(w, idle)
			time.Sleep(20 * time.Second)
			r.send()
			time.Sleep(2 * time.Second)
			r.send()
			l.expect(w)
			r.send(c.sent)
			l.expect(w, c.want...)
			r.close()
		}
	})
}

// A report that covers longer than 2.5 times what was asked for, or no time at
// all, is dropped as a whole, with the Clusters that are in order.
func TestLoadReportOverTooLongATimeIsDroppedWhole(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1"))
		w.put(svc("orders.shop", "10.0.0.2"))
		r := w.reporter(context.Background(), "envoy")
		part := func(host, at string, d time.Duration) *endpointv3.ClusterStats {
			c := envoyCluster(host, endpoint(at, 5, 5))
			c.LoadReportInterval = &durationpb.Duration{Seconds: int64(d / time.Second), Nanos: int32(d % time.Second)}
			return c
		}
		r.send(part("checkout.shop", "10.0.0.1:8080", 5*time.Second))
		l.expect(w, "envoy shop/checkout i1:5/5/0/0")
		for _, d := range []time.Duration{5*time.Second + 1, time.Hour, 1<<63 - 1, 0, -time.Second} {
			r.send(part("checkout.shop", "10.0.0.1:8080", d), part("orders.shop", "10.0.0.2:8080", 2*time.Second))
			l.expect(w, "- / interval 2")
		}
		r.send(part("orders.shop", "10.0.0.2:8080", 2*time.Second))
		l.expect(w, "envoy shop/orders i1:5/5/0/0")
		r.close()
	})
}

// A report that covers a time when this server was not there is dropped, however
// short it is: what it tells of may have been repaired in that time.
func TestLoadReportOverOurAbsenceIsDropped(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1"))
		for _, wait := range []time.Duration{0, 1900 * time.Millisecond, 2 * time.Second} {
			w.restart(hearing(&w, l))
			synctest.Wait()
			time.Sleep(wait)
			r := w.reporter(context.Background(), "envoy")
			r.send(envoyCluster("checkout.shop", endpoint("10.0.0.1:8080", 5, 0, 5)))
			if wait < 2*time.Second {
				l.expect(w, "- / interval 1")
			} else {
				l.expect(w, "envoy shop/checkout i1:5/0/5/0")
			}
			r.close()
		}
	})
}

// A caller speaks of services that it may resolve, and of instances that they
// have; what cannot be attributed is counted by its reason.
func TestLoadReportsThatCannotBeAttributed(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2"))
		w.put(svc("vault.safe", "10.0.0.9"))
		policy := *w.policy.Load()
		policy.Default = 0 // the own namespace
		w.policy.Store(&policy)
		r := w.reporter(context.Background(), "gRPC Go")
		r.send(
			cluster("checkout.shop", locality("i1", 5, 5), locality("i7", 5, 5), locality("g3", 5, 5), locality("all", 1, 1), locality("", 1, 1)),
			cluster("vault.safe", locality("i1", 9, 0, 9)),
			cluster("nobody.shop", locality("i1", 9, 0, 9)),
			cluster("checkout.shop:99", locality("i1", 9, 0, 9)),
			cluster("xds", locality("i1", 9, 0, 9)),
			cluster("UPPER.shop", locality("i1", 9, 0, 9)),
		)
		l.expect(w, "grpc shop/checkout i1:5/5/0/0",
			"- shop/checkout shared-locality 3", "- shop/checkout unknown-endpoint 1",
			"- safe/vault out-of-scope 1", "- shop/nobody unknown-service 1", "- shop/checkout unknown-service 1")
		r.close()

		e := w.reporter(context.Background(), "envoy")
		e.send(envoyCluster("checkout.shop", endpoint("10.0.0.1:8080", 5, 5), endpoint("10.0.0.1:8081", 5, 5), endpoint("10.0.0.9:8080", 5, 5)),
			envoyCluster("sightline", endpoint("127.0.0.1:15010", 1, 1)), envoyCluster("vault.safe"))
		l.expect(w, "envoy shop/checkout i1:5/5/0/0", "- shop/checkout unknown-endpoint 2")
		e.close()
	})
}

// Counts of one instance are added up: over its ports, and over what a client
// says twice.
func TestLoadOfOneInstanceIsAddedUp(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		s := svc("checkout.shop", "10.0.0.1", "10.0.0.2")
		s.ports = []uint16{8080, 9090}
		w.put(s)
		r := w.reporter(context.Background(), "envoy")
		r.send(envoyCluster("checkout.shop:9090", endpoint("10.0.0.1:9090", 1, 1), endpoint("10.0.0.2:9090", 4, 0, 4)),
			envoyCluster("other.shop"),
			envoyCluster("checkout.shop", endpoint("10.0.0.1:8080", 10, 10), endpoint("10.0.0.1:8080", 10, 10)))
		l.expect(w, "envoy shop/checkout i1:21/21/0/0 i2:4/0/4/0")
		r.send(envoyCluster("checkout.shop", endpoint("10.0.0.1:8080", 1<<40, 1<<63), endpoint("10.0.0.1:8080", 1)))
		l.expect(w, "envoy shop/checkout i1:4294967295/4294967295/0/0")
		r.close()
		g := w.reporter(context.Background(), "gRPC Go")
		g.send(cluster("checkout.shop", locality("i1", 1, 1), locality("i2", 1, 1), locality("i1", 2, 1, 1)))
		l.expect(w, "grpc shop/checkout i1:3/2/1/0 i2:1/1/0/0")
		g.close()
	})
}

// An address that went to a new instance speaks for neither while a report may
// be about both; one that was just withdrawn still speaks for its instance.
func TestLoadAtAnAddressThatChangedHands(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2"))
		r := w.reporter(context.Background(), "envoy")
		both := func() {
			r.send(envoyCluster("checkout.shop", endpoint("10.0.0.1:8080", 5, 5), endpoint("10.0.0.2:8080", 5, 5)))
		}
		both()
		l.expect(w, "envoy shop/checkout i1:5/5/0/0 i2:5/5/0/0")

		old := w.snap.Load().Get(nameOf("checkout.shop"))
		next := w.view(svc("checkout.shop", "10.0.0.1", "10.0.0.2"), old)
		next.Members[1].UID = 7
		w.publish(old, next, true)
		both()
		l.expect(w, "envoy shop/checkout i1:5/5/0/0", "- shop/checkout address-reused 1")
		time.Sleep(3 * time.Second)
		both()
		l.expect(w, "envoy shop/checkout i1:5/5/0/0 i7:5/5/0/0")

		gone := w.view(svc("checkout.shop", "10.0.0.1"), next)
		w.publish(next, gone, true)
		both()
		l.expect(w, "envoy shop/checkout i1:5/5/0/0 i7:5/5/0/0")
		time.Sleep(31 * time.Second)
		w.publish(gone, w.view(svc("checkout.shop", "10.0.0.1"), gone), false)
		both()
		l.expect(w, "envoy shop/checkout i1:5/5/0/0", "- shop/checkout unknown-endpoint 1")
		r.close()
	})
}

// The reporter is the peer of the connection: two streams with other node ids
// are one caller.
func TestLoadReporterIsThePeer(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1"))
		for _, caller := range []string{"spiffe://region.test/ns/shop/sa/web", "spiffe://region.test/ns/shop/sa/app"} {
			r := w.reporter(as(caller), "gRPC Go")
			r.send(cluster("checkout.shop", locality("i1", 5, 5)))
			r.close()
			w.mu.Lock()
			if n := len(l.reports); n != 1 || l.reports[0].Who.ID.String() != caller || l.reports[0].Who.Addr.String() != "127.0.0.1" ||
				!l.reports[0].At.Equal(time.Now()) || l.reports[0].Interval != 1999986874 {
				t.Errorf("of %s: %+v", caller, l.reports)
			}
			l.reports = nil
			w.mu.Unlock()
		}
		r := w.reporter(as("none"), "gRPC Go")
		if _, err := r.stream.Recv(); status.Code(err) != codes.Unauthenticated {
			t.Errorf("a reporter without an identity: %v", err)
		}
	})
}

// LRS streams are counted apart from ADS streams, per caller.
func TestLRSStreamsAreLimited(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		open := func(ctx context.Context) (*reporter, error) {
			r := w.reporter(ctx, "gRPC Go")
			_ = r.stream.Send(&loadstatsv3.LoadStatsRequest{Node: &corev3.Node{UserAgentName: "gRPC Go"}})
			_, err := r.stream.Recv()
			return r, err
		}
		ads := w.sotw("gRPC Go", nil)
		must(t, ads.Ask(rawxds.EDS, "checkout.shop"))
		var rs []*reporter
		for range 2 {
			r, err := open(context.Background())
			must(t, err)
			rs = append(rs, r)
		}
		if _, err := open(context.Background()); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "LRS") {
			t.Errorf("a third LRS stream: %v", err)
		}
		other, err := open(as("spiffe://region.test/ns/shop/sa/other"))
		must(t, err)
		other.close()
		rs[0].close()
		synctest.Wait()
		again, err := open(context.Background())
		must(t, err)
		again.close()
		rs[1].close()
		w.end(ads)
	}, within(func(l *limits.XDS) { l.LRSStreamsPerCaller = 2; l.StreamsPerCaller = 1 }))
}

// A report over the limit ends its stream with the limit's name, a flood is
// slowed down, and what is no report ends the stream.
func TestLoadReportsAreBounded(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1"))
		r := w.reporter(context.Background(), "gRPC Go")
		r.send(cluster("checkout.shop", locality("i1", 5, 5)))
		l.expect(w, "grpc shop/checkout i1:5/5/0/0")
		var many []*endpointv3.UpstreamLocalityStats
		for i := range 100 {
			many = append(many, locality(fmt.Sprintf("i%d", i+1), 5, 5))
		}
		must(t, r.stream.Send(&loadstatsv3.LoadStatsRequest{ClusterStats: []*endpointv3.ClusterStats{cluster("checkout.shop", many...)}}))
		if _, err := r.stream.Recv(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "limit is 2048") {
			t.Errorf("a report over the limit: %v", err)
		}
		l.expect(w)

		flood := w.reporter(context.Background(), "gRPC Go")
		began := time.Now()
		for range 40 {
			flood.send(cluster("checkout.shop", locality("i1", 5, 5)))
		}
		time.Sleep(5 * time.Second)
		w.mu.Lock()
		n := len(l.reports)
		w.mu.Unlock()
		if per := float64(n) / time.Since(began).Seconds(); n < 9 || per > 4 {
			t.Errorf("%d reports were taken in %s", n, time.Since(began))
		}
		flood.stream.CloseSend()
		time.Sleep(time.Minute)
	}, within(func(l *limits.XDS) { l.LoadReportBytes = 2048 }))
}

// A stream on which nothing comes is ended; one that reported is not, however
// long it is silent. Before the views are complete nobody is asked for anything.
func TestLRSStreamsThatSayNothing(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.snap.Store(views.NewSnapshot(false))
		w.restart(hearing(&w, l))
		mute, quiet := w.reporter(context.Background(), "gRPC Go"), w.reporter(context.Background(), "gRPC Go")
		must(t, quiet.stream.Send(&loadstatsv3.LoadStatsRequest{Node: &corev3.Node{UserAgentName: "gRPC Go"}}))
		answered := make(chan error, 1)
		go func() { _, err := quiet.stream.Recv(); answered <- err }()
		time.Sleep(10 * time.Second)
		select {
		case err := <-answered:
			t.Fatalf("answered before the views were complete: %v", err)
		default:
		}
		w.snap.Store(views.NewSnapshot(true))
		must(t, <-answered)
		if _, err := mute.stream.Recv(); status.Code(err) != codes.Unavailable && !strings.Contains(err.Error(), "no request within 30s") {
			t.Errorf("a stream without a request: %v", err)
		}
		time.Sleep(10 * time.Minute)
		quiet.met = true
		quiet.send()
		quiet.close()
	})
}

// The end of the server ends LRS streams with its reason.
func TestDrainEndsLRSStreams(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		r := w.reporter(context.Background(), "gRPC Go")
		r.send()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		must(t, w.srv.Drain(ctx))
		if _, err := r.stream.Recv(); !strings.Contains(err.Error(), "stopping") {
			t.Errorf("the end is told as %v", err)
		}
		late := w.reporter(context.Background(), "gRPC Go")
		if _, err := late.stream.Recv(); !strings.Contains(err.Error(), "stopping") {
			t.Errorf("a stream after it: %v", err)
		}
	})
}

// A Cluster that one report names twice counts once: what a report costs is
// bounded by the members of the services that it names, not by how often it
// names them.
func TestLoadReportThatRepeatsACluster(t *testing.T) {
	inLoadWorld(t, func(w *world, l *loads) {
		w.put(svc("checkout.shop", "10.0.0.1", "10.0.0.2"))
		for _, c := range []struct {
			agent string
			part  func() *endpointv3.ClusterStats
		}{
			{"envoy", func() *endpointv3.ClusterStats {
				return envoyCluster("checkout.shop", endpoint("10.0.0.1:8080", 5, 4, 1))
			}},
			{"gRPC Go", func() *endpointv3.ClusterStats { return cluster("checkout.shop", locality("i1", 5, 4, 1)) }},
		} {
			r := w.reporter(context.Background(), c.agent)
			kind := strings.ToLower(strings.Fields(c.agent)[0])
			r.send(c.part(), c.part(), c.part())
			l.expect(w, kind+" shop/checkout i1:5/4/1/0", "- shop/checkout repeated-cluster 1", "- shop/checkout repeated-cluster 1")
			time.Sleep(2 * time.Second)
			r.send(c.part()) // the next report may name it again
			l.expect(w, kind+" shop/checkout i1:5/4/1/0")
			r.close()
		}
	})
}
