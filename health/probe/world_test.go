package probe_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/health/probe"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is what a prober sees: a control plane in memory, and a network in
// memory where addresses listen, hang or cannot be reached, and every other one
// refuses.
type world struct {
	t      *testing.T
	client healthv1.ReportServiceClient
	plane  *plane

	mu          sync.Mutex
	listeners   map[netip.AddrPort]*bufconn.Listener
	hang        map[netip.AddrPort]bool
	unreachable map[netip.AddrPort]bool
	broken      error // of our own machine, for every dial
	dialled     []dialled
	open, most  int // dials in flight now, and at once at most
}

type dialled struct {
	to netip.AddrPort
	at time.Time
}

// newWorld is called inside the bubble that its test runs in.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, plane: newPlane(), listeners: map[netip.AddrPort]*bufconn.Listener{},
		hang: map[netip.AddrPort]bool{}, unreachable: map[netip.AddrPort]bool{}}
	w.client = w.plane.serve(t)
	return w
}

// listen serves an address with a function per connection.
func (w *world) listen(addr string, serve func(net.Conn)) {
	l := w.listener(addr)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { defer c.Close(); serve(c) })
		}
	})
	w.t.Cleanup(func() { _ = l.Close(); conns.Wait() })
}

func (w *world) listener(addr string) net.Listener {
	l := bufconn.Listen(256 << 10)
	w.mu.Lock()
	w.listeners[netip.MustParseAddrPort(addr)] = l
	w.mu.Unlock()
	return l
}

func (w *world) stopListening(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.listeners, netip.MustParseAddrPort(addr))
}

func (w *world) set(m map[netip.AddrPort]bool, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m[netip.MustParseAddrPort(addr)] = true
}

func (w *world) breakUs(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = err
}

// dials lists the connections tried to an address.
func (w *world) dials(addr string) (out []time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.dialled {
		if d.to.String() == addr {
			out = append(out, d.at)
		}
	}
	return out
}

func (w *world) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	w.dialled = append(w.dialled, dialled{to, time.Now()})
	w.open++
	w.most = max(w.most, w.open)
	l, hang, away, broken := w.listeners[to], w.hang[to], w.unreachable[to], w.broken
	w.mu.Unlock()
	defer func() { w.mu.Lock(); w.open--; w.mu.Unlock() }()
	fail := func(errno error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)}
	}
	switch {
	case broken != nil:
		return nil, fail(broken)
	case hang:
		<-ctx.Done()
		return nil, ctx.Err()
	case away:
		return nil, fail(syscall.EHOSTUNREACH)
	case l == nil:
		return nil, fail(syscall.ECONNREFUSED)
	}
	return l.DialContext(ctx)
}

// config is a prober's configuration in this world.
func (w *world) config() probe.Config {
	return probe.Config{Name: "p1", Zone: "z1", Client: w.client, Dial: w.dial}
}

// run starts a prober that ends with the test, or with the function returned.
func (w *world) run(c probe.Config) (p *probe.Prober, stop func()) {
	w.t.Helper()
	p, err := probe.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	w.t.Cleanup(stop)
	return p, stop
}

// askOnce runs a prober on one target until its first result.
func (w *world) askOnce(c probe.Config, m *healthv1.Target) probe.Result {
	w.t.Helper()
	got := make(chan probe.Result, 100)
	c.Events.Changed = func(r probe.Result, _ probe.Outcome) { got <- r }
	c.Events.Unusable = func(uid, reason string) { got <- probe.Result{UID: uid, Detail: reason} }
	w.plane.assign(full(1, m))
	_, stop := w.run(c)
	defer stop()
	select {
	case r := <-got:
		return r
	case <-time.After(time.Minute):
		w.t.Fatal("no result within a minute")
		return probe.Result{}
	}
}

// target is a TCP target at ip:port.
func target(uid, addr string, edit ...func(*healthv1.Target)) *healthv1.Target {
	ap := netip.MustParseAddrPort(addr)
	m := &healthv1.Target{Uid: uid, Service: "shop/web", Zone: "z2", Port: uint32(ap.Port()),
		Endpoint: &healthv1.Target_Address{Address: ap.Addr().String()}, Member: true,
		Probe: &registryv1.Probe{Kind: registryv1.ProbeKind_PROBE_KIND_TCP}}
	for _, e := range edit {
		e(m)
	}
	return m
}

func asking(kind registryv1.ProbeKind, service, path string) func(*healthv1.Target) {
	return func(m *healthv1.Target) { m.Probe.Kind, m.Probe.Service, m.Probe.Path = kind, service, path }
}

func every(interval, timeout time.Duration) func(*healthv1.Target) {
	return func(m *healthv1.Target) {
		m.Probe.Interval, m.Probe.Timeout = durationpb.New(interval), durationpb.New(timeout)
	}
}

func named(host string) func(*healthv1.Target) {
	return func(m *healthv1.Target) { m.Endpoint = &healthv1.Target_Host{Host: host} }
}

func full(generation uint64, targets ...*healthv1.Target) *healthv1.WatchAssignmentResponse {
	return &healthv1.WatchAssignmentResponse{Generation: generation, Full: true, Targets: targets}
}

// plane is the control plane's side of the two streams.
type plane struct {
	healthv1.UnimplementedReportServiceServer

	mu      sync.Mutex
	answer  *healthv1.WatchAssignmentResponse // what a watch that begins is told
	changed chan *healthv1.WatchAssignmentResponse
	asked   []*healthv1.WatchAssignmentRequest
	streams [][]frame // of results, one list for each stream
	down    bool
	cut     chan struct{} // closed: every stream ends
}

type frame struct {
	at time.Time
	m  *healthv1.ReportProbesRequest
}

func newPlane() *plane {
	return &plane{changed: make(chan *healthv1.WatchAssignmentResponse, 100), cut: make(chan struct{})}
}

func (p *plane) serve(t *testing.T) healthv1.ReportServiceClient {
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer()
	healthv1.RegisterReportServiceServer(s, p)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///plane", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); s.Stop(); <-done })
	return healthv1.NewReportServiceClient(conn)
}

// assign sets what a watch that begins is told, and tells it to the one that is open.
func (p *plane) assign(r *healthv1.WatchAssignmentResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = r
	select {
	case p.changed <- r:
	default:
	}
}
