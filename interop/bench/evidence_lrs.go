package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// overLRS sends the same counts as stock gRPC clients do: a locality for each
// instance, on the xDS port.
func (m *ingest) overLRS(ctx context.Context, lasts time.Duration) error {
	d, err := newDialer(m.srv.xds, m.srv.identities)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	streams := m.streams / 2
	for n := range streams {
		send, err := m.loadReporter(running, d, n, &work)
		if err != nil {
			return fmt.Errorf("load reporter %d: %w", n, err)
		}
		work.Go(func() { m.repeat(running, n, send) })
	}
	m.r.say("%d reporters over LRS are up, %d localities a report", streams, perReport)
	if _, err := m.window(ctx, 3*ingestEvery); err != nil {
		return err
	}
	busy, err := m.window(ctx, lasts)
	if err != nil {
		return err
	}
	spent := busy.cpu - time.Duration(float64(m.idle.cpu)*float64(busy.took)/float64(m.idle.took))
	each := float64(spent.Nanoseconds()) / float64(max(busy.samples, 1))
	m.r.alone("lrs_cpu_per_sample", "ns", []float64{each})
	m.r.alone("lrs_cores_at_1.2M", "cores", []float64{each * targetSamples / 1e9})
	return nil
}

// loadReporter opens one stream and returns what sends a report on it.
func (m *ingest) loadReporter(ctx context.Context, d *dialer, n int, work *sync.WaitGroup) (send func() error, err error) {
	conn, err := d.dial(2*clientIdentities + m.streams + n)
	if err != nil {
		return nil, err
	}
	stream, err := loadv3.NewLoadReportingServiceClient(conn).StreamLoadStats(ctx)
	if err != nil {
		return nil, err
	}
	node := &corev3.Node{Id: fmt.Sprintf("lrs-%d", n), UserAgentName: "gRPC Go", Locality: &corev3.Locality{Region: "local", Zone: "zone-a"}}
	if err := stream.Send(&loadv3.LoadStatsRequest{Node: node}); err != nil {
		return nil, err
	}
	if _, err := stream.Recv(); err != nil {
		return nil, err
	}
	work.Go(func() {
		defer conn.Close()
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	})
	rng := rand.New(rand.NewPCG(uint64(n), 11)) //nolint:gosec // traffic
	req := &loadv3.LoadStatsRequest{}
	for half, service := range [2]int{2 * n % m.services, (2*n + 1) % m.services} {
		c := &endpointv3.ClusterStats{ClusterName: serviceName(service).Host(), ClusterServiceName: serviceName(service).Host(), LoadReportInterval: durationpb.New(ingestEvery)}
		uids := m.uids[service]
		if half == 1 {
			uids = uids[:perReport-ingestInstances]
		}
		for _, uid := range uids {
			c.UpstreamLocalityStats = append(c.UpstreamLocalityStats, &endpointv3.UpstreamLocalityStats{
				Locality: &corev3.Locality{Region: "local", Zone: "zone-a", SubZone: uid}})
		}
		req.ClusterStats = append(req.ClusterStats, c)
	}
	return func() error {
		for _, c := range req.ClusterStats {
			for _, l := range c.UpstreamLocalityStats {
				calls := uint64(callsEach/2 + rng.IntN(callsEach+1)) //nolint:gosec // small
				l.TotalIssuedRequests, l.TotalSuccessfulRequests = calls, calls
			}
		}
		if err := stream.Send(req); err != nil {
			return err
		}
		m.samples.Add(perReport)
		m.reports.Add(1)
		return nil
	}, nil
}

var (
	nsPerSample = regexp.MustCompile(`([0-9.]+) ns/sample`)
	allocsPerOp = regexp.MustCompile(`([0-9]+) allocs/op`)
)

// decodeAndApply runs the package's own benchmark of one frame, from its bytes to
// the evaluator's scores: nothing outside the package may decode.
func (m *ingest) decodeAndApply(ctx context.Context) error {
	var each, allocs []float64
	for range 3 {
		cmd := exec.CommandContext(ctx, "go", "test", "./server/report", "-run", "^$", "-bench", "^BenchmarkDecodeAndApply$", "-benchtime", "1s")
		out, err := cmd.CombinedOutput()
		ns, al := nsPerSample.FindSubmatch(out), allocsPerOp.FindSubmatch(out)
		if err != nil || ns == nil || al == nil {
			return fmt.Errorf("go test ./server/report (run it from the repository's root): %w: %s", err, bytes.TrimSpace(out))
		}
		n, _ := strconv.ParseFloat(string(ns[1]), 64) // of digits and a point
		a, _ := strconv.ParseFloat(string(al[1]), 64)
		each, allocs = append(each, n), append(allocs, a/perReport)
	}
	m.r.alone("decode_apply", "ns", each)
	m.r.alone("allocs_per_sample", "1", allocs)
	return nil
}
