package xds_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/server/xds"
	"github.com/sightlinedev/sightline/views"
)

// loads is what a world's server was told by load reports.
type loads struct {
	reports []xds.LoadReport
	drops   []string
	streams map[xds.LoadKind]int
}

// hearing makes a world keep what its load reports say. All streams of a context
// made by connected are on one connection.
func hearing(w **world, l *loads) option {
	l.streams = make(map[xds.LoadKind]int)
	return func(c *xds.Config) {
		c.Connection = func(ctx context.Context) string {
			md, _ := metadata.FromIncomingContext(ctx)
			return strings.Join(md.Get("conn-id"), "")
		}
		c.Loads = func(r xds.LoadReport) { (*w).mu.Lock(); l.reports = append(l.reports, r); (*w).mu.Unlock() }
		c.Events.LoadStreams = func(k xds.LoadKind, n int) { (*w).mu.Lock(); l.streams[k] += n; (*w).mu.Unlock() }
		c.Events.LoadDropped = func(who identity.Principal, n views.Name, why xds.LoadDrop, entries int) {
			(*w).mu.Lock()
			l.drops = append(l.drops, fmt.Sprintf("%s %s %d", n, why, entries))
			(*w).mu.Unlock()
		}
	}
}

// inLoadWorld runs a test in a bubble with a server whose load reports are kept.
func inLoadWorld(t *testing.T, test func(w *world, l *loads), opts ...option) {
	synctest.Test(t, func(t *testing.T) {
		var w *world
		l := &loads{}
		runWorld(t, func(is *world) {
			w = is
			time.Sleep(time.Minute) // it has been there for a while
			test(is, l)
		}, append(opts, hearing(&w, l))...)
		for k, n := range l.streams {
			if n != 0 {
				t.Errorf("%d LRS streams of %s are still counted after the end", n, k)
			}
		}
	})
}

func connected(id string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "conn-id", id)
}

// reporter is a raw LRS client.
type reporter struct {
	w      *world
	stream loadstatsv3.LoadReportingService_StreamLoadStatsClient
	agent  string
	repeat bool // the node is in every request, as from Java
	met    bool
}

func (w *world) reporter(ctx context.Context, agent string) *reporter {
	w.Helper()
	s, err := loadstatsv3.NewLoadReportingServiceClient(w.cc).StreamLoadStats(ctx)
	must(w, err)
	return &reporter{w: w, stream: s, agent: agent}
}

// send sends a report, and says how long its Clusters cover where they do not.
func (r *reporter) send(clusters ...*endpointv3.ClusterStats) {
	r.w.Helper()
	req := &loadstatsv3.LoadStatsRequest{ClusterStats: clusters}
	if !r.met || r.repeat {
		req.Node = &corev3.Node{Id: "n1", UserAgentName: r.agent, Locality: &corev3.Locality{Region: "local", Zone: "z1"}}
	}
	for _, c := range clusters {
		if c.LoadReportInterval == nil {
			c.LoadReportInterval = durationpb.New(1999986874 * time.Nanosecond)
		}
	}
	must(r.w, r.stream.Send(req))
	if !r.met {
		r.met = true
		resp, err := r.stream.Recv()
		must(r.w, err)
		if !resp.SendAllClusters || !resp.ReportEndpointGranularity || resp.LoadReportingInterval.AsDuration() != 2*time.Second || len(resp.Clusters) > 0 {
			r.w.Errorf("asked for %v", resp)
		}
	}
	synctest.Wait()
}

func (r *reporter) close() { _ = r.stream.CloseSend(); _, _ = r.stream.Recv() }

// take returns what was handed on since the last time, as a person would note it.
func (l *loads) take(w *world) (reports []string, drops []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range l.reports {
		text := fmt.Sprintf("%s %s", r.Kind, r.Service)
		slices.SortFunc(r.Entries, func(a, b xds.LoadEntry) int { return int(a.UID) - int(b.UID) })
		for _, e := range r.Entries {
			text += fmt.Sprintf(" %s:%d/%d/%d/%d", e.UID, e.Issued, e.OK, e.Failed, e.InProgress)
			if e.Weight > 0 {
				text += fmt.Sprintf("@%d", e.Weight)
			}
		}
		reports = append(reports, text)
	}
	slices.Sort(reports)
	drops = l.drops
	l.reports, l.drops = nil, nil
	return reports, drops
}

// expect asserts what was handed on since the last time; lines that begin with a
// minus are drops.
func (l *loads) expect(w *world, want ...string) {
	w.Helper()
	reports, drops := l.take(w)
	for _, d := range drops {
		reports = append(reports, "- "+d)
	}
	if !same(reports, want) {
		w.Errorf("handed on %q, want %q", reports, want)
	}
}

// locality is one entry as gRPC clients report it, in the order of the dumps:
// issued, ok, failed, in progress.
func locality(subZone string, n ...uint64) *endpointv3.UpstreamLocalityStats {
	n = append(n, 0, 0, 0, 0)
	return &endpointv3.UpstreamLocalityStats{
		Locality:            &corev3.Locality{Region: "local", Zone: "z1", SubZone: subZone},
		TotalIssuedRequests: n[0], TotalSuccessfulRequests: n[1], TotalErrorRequests: n[2], TotalRequestsInProgress: n[3],
	}
}

func cluster(name string, ls ...*endpointv3.UpstreamLocalityStats) *endpointv3.ClusterStats {
	return &endpointv3.ClusterStats{ClusterName: name, UpstreamLocalityStats: ls}
}

// endpoint is one entry as Envoy reports it.
func endpoint(at string, n ...uint64) *endpointv3.UpstreamEndpointStats {
	n = append(n, 0, 0, 0, 0)
	a := netip.MustParseAddrPort(at)
	return &endpointv3.UpstreamEndpointStats{
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: a.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
		}}},
		TotalIssuedRequests: n[0], TotalSuccessfulRequests: n[1], TotalErrorRequests: n[2], TotalRequestsInProgress: n[3],
	}
}

// envoyCluster has the shape of Envoy's reports: totals beside the endpoints.
func envoyCluster(name string, es ...*endpointv3.UpstreamEndpointStats) *endpointv3.ClusterStats {
	l := &endpointv3.UpstreamLocalityStats{Locality: &corev3.Locality{Region: "local", Zone: "z1"}, UpstreamEndpointStats: es}
	for _, e := range es {
		l.TotalIssuedRequests += e.TotalIssuedRequests
		l.TotalSuccessfulRequests += e.TotalSuccessfulRequests
		l.TotalErrorRequests += e.TotalErrorRequests
	}
	return cluster(name, l)
}
