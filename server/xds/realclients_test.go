package xds_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/server/xds"
	"github.com/sightlinedev/sightline/views"
)

// region is an xDS server on a loopback port, over mTLS, that real clients dial.
type region struct {
	testing.TB
	ca   *harness.CA
	addr string
	snap atomic.Pointer[views.Snapshot]
	srv  *xds.Server
	stop func()
	seq  uint64

	mu    sync.Mutex
	nacks []xds.Rejection
	bad   []string
	loads []xds.LoadReport
	drops map[xds.LoadDrop]int
}

func startRegion(t *testing.T) *region {
	r := &region{TB: t, ca: harness.NewCA(t, "region.test"), addr: "127.0.0.1:0", drops: make(map[xds.LoadDrop]int)}
	r.snap.Store(views.NewSnapshot(true))
	r.start()
	t.Cleanup(func() {
		r.stop()
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.nacks) > 0 || len(r.bad) > 0 {
			t.Errorf("rejected by clients: %+v; not rendered: %v", r.nacks, r.bad)
		}
	})
	return r
}

// start serves the snapshot; after stop it is a restarted process on the same port.
func (r *region) start() {
	r.Helper()
	var l net.Listener
	harness.Eventually(r, 5*time.Second, "the port is free", func() (err error) {
		l, err = net.Listen("tcp", r.addr)
		return err
	})
	r.addr = l.Addr().String()
	policy := &authz.Policy{Generation: 1, TrustDomain: "region.test", Default: authz.WholeTrustDomain}
	r.srv = xds.New(xds.Config{
		Snapshot: r.snap.Load, Policy: func() *authz.Policy { return policy }, Principal: peerID, Identifier: "test",
		Outbound: netip.MustParseAddrPort("127.0.0.1:15001"),
		Loads:    func(l xds.LoadReport) { r.mu.Lock(); r.loads = append(r.loads, l); r.mu.Unlock() },
		Events: xds.Events{
			LoadDropped: func(_ identity.Principal, _ views.Name, why xds.LoadDrop, n int) {
				r.mu.Lock()
				r.drops[why] += n
				r.mu.Unlock()
			},
			Nack: func(n xds.Rejection) { r.mu.Lock(); r.nacks = append(r.nacks, n); r.mu.Unlock() },
			Unrenderable: func(typ, name string, reason error) {
				r.mu.Lock()
				r.bad = append(r.bad, typ+" "+name+": "+reason.Error())
				r.mu.Unlock()
			},
		},
	})
	g := grpc.NewServer(xds.ServerOption(), grpc.InTapHandle(xds.Tap), grpc.MaxRecvMsgSize(64<<20),
		grpc.Creds(credentials.NewTLS(r.ca.Mint(r, "/sightline/server/test").ServerTLS())),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
	r.srv.Register(g)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Serve(l) }) // ends with Stop
	wg.Go(func() { _ = r.srv.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		g.Stop()
		wg.Wait()
	})
}

func peerID(ctx context.Context) (identity.Principal, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return identity.Principal{}, false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || info.SPIFFEID == nil {
		return identity.Principal{}, false
	}
	id, err := identity.Parse(info.SPIFFEID.String())
	return identity.Principal{ID: id, Addr: netip.MustParseAddr("127.0.0.1")}, err == nil
}

// set publishes a service with the members that its backends are.
func (r *region) set(host string, ports []views.Port, bs ...*harness.Backend) {
	r.seq++
	at := views.Version{Epoch: 7, Seq: r.seq}
	v := &views.View{Name: nameOf(host), Endpoint: at, Config: at, Ports: ports, PublishedAt: time.Now()}
	for i, b := range bs {
		v.Members = append(v.Members, &views.Member{
			UID: views.UID(i + 1), Identity: identity.MustParse("spiffe://region.test/ns/shop/sa/" + v.Name.Service),
			Endpoint: views.Endpoint{Addr: b.Addr.Addr()}, Ports: []views.PortNumber{{Name: ports[0].Name, Number: b.Addr.Port()}},
			Region: "local", Zone: "a", BaseWeight: 100, Weight: 100, State: views.Eligible, Listed: true,
		})
		v.ListedCount++
	}
	old := r.snap.Load().Get(v.Name)
	p := views.Publication{Version: at, Name: v.Name, Old: old, New: v, Lane: views.Additions, Kinds: views.Admit}
	if old != nil {
		if fmt.Sprint(old.Ports) == fmt.Sprint(ports) {
			v.Config = old.Config
		}
		if v.ListedCount < old.ListedCount {
			p.Lane, p.Kinds = views.Withdrawals, views.Withdraw
		}
	}
	r.snap.Store(r.snap.Load().With(v))
	r.srv.Feed().Publish(p)
}

func (r *region) drop(host string) {
	r.seq++
	at := views.Version{Epoch: 7, Seq: r.seq}
	old := r.snap.Load().Get(nameOf(host))
	r.snap.Store(r.snap.Load().Without(old.Name, at))
	r.srv.Feed().Publish(views.Publication{Version: at, Name: old.Name, Old: old, Lane: views.Withdrawals, Kinds: views.Withdraw})
}

func (r *region) envoy(id string, sotw bool) *harness.Envoy {
	r.Helper()
	return harness.StartEnvoy(r, harness.EnvoyConfig{
		XDS: r.addr, SVID: r.ca.Mint(r, "/ns/shop/sa/web"), ServerID: "spiffe://region.test/sightline/server/test",
		NodeID: id, Region: "local", Zone: "a", SotW: sotw,
	})
}

func (r *region) dial(target string) *harness.Caller {
	r.Helper()
	return harness.Dial(r, harness.Bootstrap{Server: r.addr, SVID: r.ca.Mint(r, "/ns/shop/sa/web"), NodeID: "go", Region: "local", Zone: "a"}, target)
}

func backend(t *testing.T, names ...string) []*harness.Backend {
	var bs []*harness.Backend
	for _, n := range names {
		bs = append(bs, harness.StartBackend(t, n))
	}
	return bs
}

var (
	grpcPort  = []views.Port{{Name: "grpc", Number: 9090, Protocol: views.GRPC}}
	morePorts = append(grpcPort[:1:1], views.Port{Name: "admin", Number: 9091, Protocol: views.HTTP})
)

// Every kind of client at once, through the life of a service: empty, populated,
// reduced, reconfigured, deleted, created again; and through a restart of the
// server. Nobody refuses anything, and no call fails that should not.
func TestRealClientsFollowAServiceThroughItsLife(t *testing.T) {
	r := startRegion(t)
	bs := backend(t, "one", "two", "three")
	r.set("quotes.shop", grpcPort) // nobody is in it, and nobody waits for it (case C07)
	r.set("checkout.shop", grpcPort, bs...)
	delta, sotw := r.envoy("delta", false), r.envoy("sotw", true)
	for _, e := range []*harness.Envoy{delta, sotw} {
		e.WaitLive(t, 10*time.Second)
		if got := e.Stats(t, `^cluster_manager\.warming_clusters$`)["cluster_manager.warming_clusters"]; got != 0 {
			t.Errorf("%s: %d clusters are warming", e.Name, got)
		}
	}
	callers := map[string]*harness.Caller{
		"grpc-go":    r.dial("checkout.shop"),
		"with port":  r.dial("checkout.shop:9090"),
		"envoy":      harness.DialPlain(t, delta.Outbound.String(), "checkout.shop"),
		"envoy sotw": harness.DialPlain(t, sotw.Outbound.String(), "checkout.shop:9090"),
	}
	only := func(want ...string) {
		t.Helper()
		for name, c := range callers {
			t.Log(name, "is to reach only", want)
			c.WaitOnly(t, 5*time.Second, want...)
		}
	}
	only("one", "two", "three")
	r.set("checkout.shop", grpcPort, bs[:2]...)
	only("one", "two")
	load := underLoad(t, callers)
	r.set("checkout.shop", morePorts, bs[:2]...) // every Cluster and route changes
	load.more(50)
	r.stop()
	load.more(50) // nobody is there to ask, and calls go on
	r.start()
	r.set("checkout.shop", morePorts, bs...)
	only("one", "two", "three")
	load.stop()

	r.drop("checkout.shop")
	for name, c := range callers {
		harness.Eventually(t, 20*time.Second, name+": a deleted service answers nobody", func() error {
			if got := c.Calls(3, time.Second); got["ERR Unavailable"]+got["ERR Unimplemented"] != 3 {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
	}
	r.set("checkout.shop", grpcPort, bs[2])
	only("three")
	for _, e := range []*harness.Envoy{delta, sotw} {
		if n := e.Rejected(t); n != 0 {
			t.Errorf("%s refused %d updates", e.Name, n)
		}
	}
}

// load is calls in the background, none of which may fail.
type load struct {
	t    *testing.T
	end  chan struct{}
	wg   sync.WaitGroup
	mu   sync.Mutex
	sums map[string]map[string]int // caller -> answer -> calls
}

func underLoad(t *testing.T, callers map[string]*harness.Caller) *load {
	l := &load{t: t, end: make(chan struct{}), sums: make(map[string]map[string]int)}
	for name := range callers {
		l.sums[name] = make(map[string]int)
	}
	for name, c := range callers {
		l.wg.Go(func() { l.run(name, c) })
	}
	return l
}

func (l *load) run(name string, c *harness.Caller) {
	for {
		select {
		case <-l.end:
			return
		case <-time.After(2 * time.Millisecond):
		}
		got := c.Calls(1, 5*time.Second)
		l.mu.Lock()
		for answer, n := range got {
			l.sums[name][answer] += n
		}
		l.mu.Unlock()
	}
}

func (l *load) totals() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	totals := make(map[string]int)
	for name, sum := range l.sums {
		for _, n := range sum {
			totals[name] += n
		}
	}
	return totals
}

// more waits until every caller has made n more calls.
func (l *load) more(n int) {
	l.t.Helper()
	before := l.totals()
	harness.Eventually(l.t, 20*time.Second, "calls go on", func() error {
		for name, now := range l.totals() {
			if now < before[name]+n {
				return fmt.Errorf("%s made %d of %d", name, now-before[name], n)
			}
		}
		return nil
	})
}

func (l *load) stop() {
	close(l.end)
	l.wg.Wait()
	for name, sum := range l.sums {
		for answer := range sum {
			if strings.HasPrefix(answer, "ERR ") {
				l.t.Errorf("%s: calls failed: %v", name, sum)
				break
			}
		}
	}
}

// A target that does not exist yet works without a new dial once it does.
func TestGRPCGoFindsAServiceThatComesLater(t *testing.T) {
	r := startRegion(t)
	c := r.dial("later.shop")
	if got := c.Calls(1, 200*time.Millisecond); got["ERR DeadlineExceeded"]+got["ERR Unavailable"] != 1 {
		t.Errorf("a service that nobody has: %v", got)
	}
	r.set("later.shop", grpcPort, backend(t, "late")...)
	c.WaitOnly(t, 5*time.Second, "late")
}

// grpcurl links another release of grpc-go, and takes its bootstrap from the
// environment.
func TestGrpcurlDialsXDSTargets(t *testing.T) {
	r := startRegion(t)
	r.set("checkout.shop", grpcPort, backend(t, "one")...)
	b := harness.Bootstrap{Server: r.addr, SVID: r.ca.Mint(r, "/ns/shop/sa/web"), NodeID: "grpcurl"}
	for _, target := range []string{"checkout.shop", "checkout.shop:9090"} {
		out, code := harness.RunGrpcurlXDS(t, b, target, "list")
		if code != 0 || !strings.Contains(out, "grpc.health.v1.Health") {
			t.Errorf("grpcurl xds:///%s list: exit code %d, %q", target, code, out)
		}
	}
}
