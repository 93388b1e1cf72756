package probe_test

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sightlinedev/sightline/health/probe"
	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

// headerBytes are those of IPv4 and TCP with its time stamps, of a segment; a
// SYN has 8 more. Closing takes three segments that are not counted yet when
// the connection is looked at.
const (
	headerBytes     = 20 + 32
	synExtraBytes   = 8
	closingSegments = 3
)

// weighed looks at its connection in the kernel as it closes.
type weighed struct {
	net.Conn
	once sync.Once
	wire *int
}

// Close notes what the connection has cost on the wire, both ways.
func (w *weighed) Close() error {
	w.once.Do(func() {
		raw, err := w.Conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			return
		}
		_ = raw.Control(func(fd uintptr) {
			if i, err := unix.GetsockoptTCPInfo(int(fd), syscall.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				segments := int(i.Segs_out+i.Segs_in) + closingSegments
				*w.wire = segments*headerBytes + 2*synExtraBytes + int(i.Bytes_sent+i.Bytes_received)
			}
		})
	})
	return w.Conn.Close()
}

// TestCostOfAProbe measures the bytes of one probe of each kind, above TCP and on
// the wire. The package document promises them: each has to stay under its bound.
func TestCostOfAProbe(t *testing.T) {
	ca := authority(t)
	hs := health.NewServer()
	hs.SetServingStatus("shop.Web", healthpb.HealthCheckResponse_SERVING)
	grpcServer := grpc.NewServer()
	healthpb.RegisterHealthServer(grpcServer, hs)
	httpServer := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("ok")) })}
	workload := source(t, ca, web)
	for _, row := range []struct {
		kind  probe.Kind
		edit  func(*healthv1.Target)
		serve func(net.Listener) error
		stop  func()
		most  int // bytes on the wire
	}{
		{probe.TCP, func(*healthv1.Target) {}, accepting(func(net.Conn) {}), func() {}, 400},
		{probe.HTTP, overHTTP, httpServer.Serve, func() { _ = httpServer.Close() }, 950},
		{probe.GRPC, overGRPC, grpcServer.Serve, grpcServer.Stop, 1500},
		{probe.DialBack, dialBack, accepting(asWorkload(workload)), func() {}, 5000},
	} {
		t.Run(row.kind.String(), func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan struct{})
			go func() { defer close(served); _ = row.serve(l) }()
			defer func() { row.stop(); _ = l.Close(); <-served }()
			r, wire := weigh(t, l.Addr().String(), row.edit, source(t, ca, "spiffe://prod.example/sightline/prober/p1"))
			t.Logf("%-9s %5d bytes on the wire; above TCP %d sent, %d received; %v", row.kind, wire, r.Sent, r.Received, r.Latency)
			if r.Outcome != probe.OK || r.Kind != row.kind {
				t.Fatalf("%v %v %q", r.Kind, r.Outcome, r.Detail)
			}
			if wire > row.most || wire < r.Sent+r.Received+6*headerBytes {
				t.Errorf("%d bytes on the wire, the bound is %d", wire, row.most)
			}
		})
	}
}

// accepting serves connections one after the other.
func accepting(serve func(net.Conn)) func(net.Listener) error {
	return func(l net.Listener) error {
		for {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			serve(c)
			_ = c.Close()
		}
	}
}

// weigh probes a real address once.
func weigh(t *testing.T, addr string, edit func(*healthv1.Target), s *svid.Source) (probe.Result, int) {
	t.Helper()
	plane := newPlane()
	plane.assign(full(1, target("i1", addr, edit, every(time.Second, 900*time.Millisecond))))
	wire := 0
	got := make(chan probe.Result, 10)
	p, err := probe.New(probe.Config{Zone: "z1", Client: plane.serve(t), SVID: s, AllowLoopback: true,
		Events: probe.Events{Changed: func(r probe.Result, _ probe.Outcome) { got <- r }},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
			if err != nil {
				return nil, err
			}
			return &weighed{Conn: c, wire: &wire}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	var r probe.Result
	select {
	case r = <-got:
	case <-ctx.Done():
		t.Error("no result")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return r, wire
}
