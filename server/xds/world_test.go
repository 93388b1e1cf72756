package xds_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/xds"
	"github.com/sightlinedev/sightline/views"
)

const epoch = 7

// soon is long enough for anything that waits for nothing. Time is a bubble's.
const soon = 500 * time.Millisecond

// world is a region of services, an xDS server over it, and its clients.
type world struct {
	testing.TB
	srv    *xds.Server
	grpc   *grpc.Server
	lis    *bufconn.Listener
	cc     *grpc.ClientConn
	stop   context.CancelFunc
	ran    chan error
	snap   atomic.Pointer[views.Snapshot]
	policy atomic.Pointer[authz.Policy]
	seq    uint64

	mu      sync.Mutex
	nacks   []xds.Rejection
	ended   []error
	streams int
	fanOuts int
	restamp []views.Name
	grant   bool
}

// option changes a world's config before it is built.
type option func(*xds.Config)

func within(limit func(*limits.XDS)) option {
	return func(c *xds.Config) {
		c.Limits = limits.Default().XDS
		limit(&c.Limits)
	}
}

// inWorld runs a test in a bubble with a running server.
func inWorld(t *testing.T, test func(w *world), opts ...option) {
	synctest.Test(t, func(t *testing.T) { runWorld(t, test, opts...) })
}

func runWorld(t testing.TB, test func(w *world), opts ...option) {
	w := &world{TB: t, ran: make(chan error, 1)}
	w.snap.Store(views.NewSnapshot(true))
	w.policy.Store(&authz.Policy{Generation: 1, TrustDomain: "region.test", Default: authz.WholeTrustDomain})
	w.start(opts...)
	defer w.close()
	test(w)
}

func (w *world) start(opts ...option) {
	cfg := xds.Config{
		Snapshot: w.snap.Load, Policy: w.policy.Load, Principal: principal, Identifier: "test",
		Outbound: netip.MustParseAddrPort("127.0.0.1:15001"),
		Restamp:  w.askRestamp,
		Events: xds.Events{
			Nack:    func(r xds.Rejection) { w.mu.Lock(); w.nacks = append(w.nacks, r); w.mu.Unlock() },
			Streams: func(_, _ string, n int) { w.mu.Lock(); w.streams += n; w.mu.Unlock() },
			FanOut:  func(time.Duration) { w.mu.Lock(); w.fanOuts++; w.mu.Unlock() },
			Ended: func(_ identity.Principal, _, _ string, err error) {
				w.mu.Lock()
				w.ended = append(w.ended, err)
				w.mu.Unlock()
			},
		},
	}
	for _, o := range opts {
		o(&cfg)
	}
	w.srv = xds.New(cfg)
	w.grpc = grpc.NewServer(xds.ServerOption(), grpc.InTapHandle(xds.Tap), grpc.MaxRecvMsgSize(64<<20), grpc.WaitForHandlers(true))
	w.srv.Register(w.grpc)
	w.lis = bufconn.Listen(1 << 20)
	go func() { _ = w.grpc.Serve(w.lis) }()
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	go func() { w.ran <- w.srv.Run(ctx) }()
	w.cc = w.dial()
}

func (w *world) dial() *grpc.ClientConn {
	cc, err := grpc.NewClient("passthrough:///region", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.lis.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		w.Fatal(err)
	}
	return cc
}

// restart ends the server and starts another over the same snapshot.
func (w *world) restart(opts ...option) {
	w.close()
	w.start(opts...)
}

func (w *world) close() {
	_ = w.cc.Close()
	w.stop()
	if err := <-w.ran; err != nil {
		w.Errorf("Run: %v", err)
	}
	w.grpc.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.streams != 0 {
		w.Errorf("%d streams are still counted after the end", w.streams)
	}
}

// principal takes the caller from a header, as interceptors take it from a
// certificate.
func principal(ctx context.Context) (identity.Principal, bool) {
	md, _ := metadata.FromIncomingContext(ctx)
	id := "spiffe://region.test/ns/shop/sa/caller"
	if v := md.Get("caller"); len(v) > 0 {
		id = v[0]
	}
	if id == "none" {
		return identity.Principal{}, false
	}
	return identity.Principal{ID: identity.MustParse(id), Addr: netip.MustParseAddr("127.0.0.1")}, true
}

func as(id string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "caller", id)
}

func (w *world) askRestamp(n views.Name) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.restamp = append(w.restamp, n)
	return w.grant
}

// service describes a view to publish.
type service struct {
	host  string // checkout.shop
	addrs []string
	ports []uint16 // 8080 when none
	pad   int      // bytes of zone name, to make it large
}

func svc(host string, addrs ...string) service { return service{host: host, addrs: addrs} }

func nameOf(host string) views.Name {
	s, ns, _ := strings.Cut(host, ".")
	return views.Name{Namespace: ns, Service: s}
}

// put publishes a service: as a withdrawal if an address left, else as an addition.
func (w *world) put(s service) *views.View {
	old := w.snap.Load().Get(nameOf(s.host))
	return w.publish(old, w.view(s, old), false)
}

// urge publishes a service in the urgent lane.
func (w *world) urge(s service) *views.View {
	old := w.snap.Load().Get(nameOf(s.host))
	return w.publish(old, w.view(s, old), true)
}

func (w *world) publish(old, v *views.View, urgent bool) *views.View {
	w.snap.Store(w.snap.Load().With(v))
	p := views.Publication{Version: v.Version(), Name: v.Name, Old: old, New: v, Lane: views.Additions, Kinds: views.Admit}
	if urgent || old != nil && v.ListedCount < old.ListedCount {
		p.Lane, p.Kinds = views.Withdrawals, views.Withdraw
	}
	w.srv.Feed().Publish(p)
	return v
}

func (w *world) next() views.Version {
	w.seq++
	return views.Version{Epoch: epoch, Seq: w.seq}
}

func (w *world) view(s service, old *views.View) *views.View {
	if len(s.ports) == 0 {
		s.ports = []uint16{8080}
	}
	v := &views.View{Name: nameOf(s.host), PublishedAt: time.Now()}
	for i, n := range s.ports {
		v.Ports = append(v.Ports, views.Port{Name: fmt.Sprintf("p%d", i), Number: n, Protocol: 4})
	}
	for i, a := range s.addrs {
		addr := netip.MustParseAddr(a)
		m := &views.Member{
			UID: views.UID(i + 1), Identity: identity.MustParse("spiffe://region.test/ns/shop/sa/" + v.Name.Service),
			Endpoint: views.Endpoint{Addr: addr}, Region: "local", Zone: "z1" + strings.Repeat("z", s.pad),
			BaseWeight: 100, Weight: 100, State: views.Eligible, Listed: true,
		}
		for _, p := range v.Ports {
			m.Ports = append(m.Ports, views.PortNumber{Name: p.Name, Number: p.Number})
		}
		v.Members = append(v.Members, m)
		v.ListedCount++
	}
	at := w.next()
	v.Endpoint, v.Config = at, at
	if old != nil && slices.Equal(old.Ports, v.Ports) {
		v.Config = old.Config
	}
	return v
}

// drop deletes a service.
func (w *world) drop(host string) {
	old := w.snap.Load().Get(nameOf(host))
	at := w.next()
	w.snap.Store(w.snap.Load().Without(old.Name, at))
	w.srv.Feed().Publish(views.Publication{Version: at, Name: old.Name, Old: old, Lane: views.Withdrawals, Kinds: views.Withdraw})
}

// many publishes n services s000.shop, ... with one endpoint each.
func (w *world) many(n int) []string {
	hosts := make([]string, n)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("s%04d.shop", i)
		w.put(svc(hosts[i], "10.0.0.1"))
	}
	return hosts
}

func (w *world) delta(react rawxds.Reaction) *rawxds.Client {
	return w.open(true, "envoy", react)
}

func (w *world) sotw(agent string, react rawxds.Reaction) *rawxds.Client {
	return w.open(false, agent, react)
}

func (w *world) open(delta bool, agent string, react rawxds.Reaction) *rawxds.Client {
	w.Helper()
	open := rawxds.Sotw
	if delta {
		open = rawxds.Delta
	}
	c, err := open(context.Background(), w.cc, rawxds.Node("n1", agent, "local", "z1"), react)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

// end closes clients and reports what the server did wrong towards them.
func (w *world) end(clients ...*rawxds.Client) {
	w.Helper()
	for _, c := range clients {
		c.Close()
		for _, v := range c.Violations() {
			w.Errorf("violation: %s", v)
		}
	}
}

// settle lets everything that can happen now happen.
func (w *world) settle() { time.Sleep(soon); synctest.Wait() }

// responses asserts the number of responses of a type so far, and returns them.
func (w *world) responses(c *rawxds.Client, typ string, n int) []*rawxds.Response {
	w.Helper()
	all := c.Responses(typ)
	if len(all) != n {
		w.Fatalf("%d responses of %s, want %d: %s", len(all), typ, n, brief(all))
	}
	return all
}

// brief writes responses as a person would note them.
func brief(rs []*rawxds.Response) string {
	var b strings.Builder
	for _, r := range rs {
		fmt.Fprintf(&b, "\n  #%d %s %s +%v -%v", r.Sequence, r.Type[strings.LastIndexByte(r.Type, '.')+1:], r.Version, r.Names(), r.Removed)
	}
	return b.String()
}

// gave asserts what a response holds, in any order.
func (w *world) gave(r *rawxds.Response, names []string, removed ...string) {
	w.Helper()
	if !same(r.Names(), names) || !same(r.Removed, removed) {
		w.Errorf("response has +%v -%v, want +%v -%v", r.Names(), r.Removed, names, removed)
	}
}

func same(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ignoreEnd makes the end of a stream, which a test waits for, no failure.
func ignoreEnd(err error) error {
	if err != nil && strings.Contains(err.Error(), "stream ended") {
		return nil
	}
	return err
}

// addresses lists n of them.
func addresses(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)
	}
	return list
}
