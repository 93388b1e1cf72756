package xds

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/views"
)

// sink is a stream whose client acknowledges at once, without a transport.
type sink struct {
	st  *stream
	got *sync.WaitGroup
	ctx context.Context
}

func (*sink) SetHeader(metadata.MD) error  { return nil }
func (*sink) SendHeader(metadata.MD) error { return nil }
func (*sink) SetTrailer(metadata.MD)       {}
func (s *sink) Context() context.Context   { return s.ctx }
func (*sink) RecvMsg(any) error            { return nil }
func (s *sink) SendMsg(any) error {
	s.st.mu.Lock()
	ts := &s.st.typ[eds]
	nonce := ts.inflight[len(ts.inflight)-1].nonce()
	s.st.mu.Unlock()
	_, err := s.st.receive(&request{typ: eds, nonce: nonce, same: true}, time.Now())
	s.got.Done()
	return err
}

// BenchmarkDelivery is the engine's own part of a delivered and acknowledged
// update: no transport, no parsing.
func BenchmarkDelivery(b *testing.B) {
	for _, names := range []int{10, 200} {
		b.Run(fmt.Sprintf("names=%d", names), func(b *testing.B) { benchDelivery(b, names) })
	}
}

func benchDelivery(b *testing.B, names int) {
	const streams = 1000
	snap := views.NewSnapshot(true)
	var hosts []string
	for i := range names {
		v := benchView(i, 1)
		snap = snap.With(v)
		hosts = append(hosts, v.Name.Host())
	}
	policy := &authz.Policy{Generation: 1, TrustDomain: "t", Default: authz.WholeTrustDomain}
	s := New(Config{
		Snapshot: func() *views.Snapshot { return snap }, Policy: func() *authz.Policy { return policy },
		Principal: func(context.Context) (identity.Principal, bool) { return identity.Principal{}, true },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	for !s.ready() {
		runtime.Gosched()
	}
	var got sync.WaitGroup
	before := heap()
	for range streams {
		st := &stream{srv: s, end: func(error) {}, opened: time.Now(), names: 5000, delta: true, met: true, kind: kindOf("envoy", true)}
		st.scope = s.scopeOf(identity.Principal{ID: identity.MustParse("spiffe://t/ns/a/sa/b")})
		st.conn = &sink{st: st, got: &got, ctx: ctx}
		s.feed.enter(st)
		got.Add(1)
		if _, err := st.receive(&request{typ: eds, subscribe: hosts}, time.Now()); err != nil {
			b.Fatal(err)
		}
	}
	got.Wait()
	size := heap() - before
	v := snap.Get(views.Name{Namespace: "shop", Service: "s1"})
	b.ResetTimer()
	for n := 0; b.Loop(); n++ {
		next := benchView(1, uint64(n+2))
		snap = snap.With(next)
		got.Add(streams)
		s.feed.Publish(views.Publication{Version: next.Endpoint, Name: v.Name, Old: v, New: next, Lane: views.Withdrawals})
		got.Wait()
		v = next
	}
	b.ReportMetric(float64(size)/streams, "B/stream")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/streams, "ns/delivery")
	cancel()
	<-done
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func benchView(i int, seq uint64) *views.View {
	v := &views.View{
		Name: views.Name{Namespace: "shop", Service: fmt.Sprintf("s%d", i)}, Endpoint: views.Version{Epoch: 1, Seq: seq}, Config: views.Version{Epoch: 1, Seq: 1},
		Ports: []views.Port{{Name: "p", Number: 8080}}, ListedCount: 1,
	}
	v.Members = []*views.Member{{UID: 1, Endpoint: views.Endpoint{Addr: netip.MustParseAddr("10.0.0.1")}, Weight: 100, BaseWeight: 100, Listed: true,
		Ports: []views.PortNumber{{Name: "p", Number: 8080}}}}
	return v
}
