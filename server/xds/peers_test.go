package xds

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/views"
)

// plainServer answers whatever is asked with the newest rendering, without the
// engine's rules: it exists to show real clients what the renderer makes.
type plainServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	addr string
	rd   rendering
	r    *renderer

	mu    sync.Mutex
	vs    map[views.Name]*views.View
	seq   int
	wake  chan struct{} // closed at every change
	nacks []string
}

func startPlainServer(t *testing.T, rd rendering) *plainServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &plainServer{addr: l.Addr().String(), rd: rd, vs: map[views.Name]*views.View{}, wake: make(chan struct{})}
	s.r = newRenderer(renderConfig{refused: func(ty typ, name string, err error) { s.note(fmt.Sprintf("refused %s %s: %v", ty, name, err)) }})
	g := grpc.NewServer(ServerOption(), grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l) // ends with Stop
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return s
}

// set replaces the views and tells every stream.
func (s *plainServer) set(vs ...*views.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range vs {
		s.vs[v.Name] = v
	}
	s.seq++
	close(s.wake)
	s.wake = make(chan struct{})
}

func (s *plainServer) note(nack string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nacks = append(s.nacks, nack)
}

func (s *plainServer) assertNoNACK(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.nacks) > 0 {
		t.Errorf("refused or NACKed: %q", s.nacks)
	}
}

func (s *plainServer) now() (seq int, wake chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq, s.wake
}

// resources renders what the names mean; no name means everything (Envoy).
func (s *plainServer) resources(ty typ, names []string) []*encoded {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rd.envoy && (ty == lds || ty == rds) {
		return []*encoded{s.r.composite(ty, setOf(s.all()...), s.rd)}
	}
	if s.rd.envoy && ty == cds {
		names = nil
		for _, v := range s.all() {
			names = append(names, s.r.clusterNames(v)...)
		}
	}
	var res []*encoded
	for _, text := range names {
		n, ok := resolveName(text)
		if v := s.vs[n.service]; ok && v != nil {
			if e := s.r.resource(ty, v, n, s.rd); e != nil {
				res = append(res, e)
			}
		}
	}
	return res
}

func (s *plainServer) all() []*views.View {
	var vs []*views.View
	for _, v := range s.vs {
		vs = append(vs, v)
	}
	slices.SortFunc(vs, func(a, b *views.View) int { return a.Name.Compare(b.Name) })
	return vs
}

func setOf(vs ...*views.View) serviceSet {
	set := serviceSet{members: func() []setMember {
		var ms []setMember
		for _, v := range vs {
			ms = append(ms, setMember{view: v, clusters: (*renderer)(nil).clusterNames(v)})
		}
		return ms
	}}
	for _, v := range vs {
		set.key = set.key*31 + v.Config.Seq
		if set.at.Less(v.Config) {
			set.at = v.Config
		}
	}
	return set
}

func typeOf(url string) typ { return typ(slices.Index(typeURLs[:], url)) }

func (s *plainServer) StreamAggregatedResources(st grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	reqs := receive(st.Context().Done(), st.Recv)
	var names [types][]string
	send := func(ty typ) error {
		seq, _ := s.now()
		return st.SendMsg(sotwResponse(ty, fmt.Sprintf("1.%d", seq), fmt.Sprintf("n%d", time.Now().UnixNano()), s.resources(ty, names[ty]), "plain"))
	}
	for {
		_, wake := s.now()
		select {
		case req, ok := <-reqs:
			if !ok {
				return nil
			}
			if req.ErrorDetail != nil {
				s.note(req.ErrorDetail.GetMessage())
			}
			ty := typeOf(req.TypeUrl)
			slices.Sort(req.ResourceNames)
			if req.ResponseNonce != "" && slices.Equal(names[ty], req.ResourceNames) {
				continue
			}
			names[ty] = req.ResourceNames
			if err := send(ty); err != nil {
				return err
			}
		case <-wake:
			for ty := range types {
				if names[ty] != nil {
					if err := send(ty); err != nil {
						return err
					}
				}
			}
		}
	}
}

func (s *plainServer) DeltaAggregatedResources(st grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]) error {
	reqs := receive(st.Context().Done(), st.Recv)
	var asked [types]map[string]bool
	send := func(ty typ, names []string) error {
		return st.SendMsg(deltaResponse(ty, fmt.Sprintf("n%d", time.Now().UnixNano()), s.resources(ty, names), nil, "plain"))
	}
	for {
		_, wake := s.now()
		select {
		case req, ok := <-reqs:
			if !ok {
				return nil
			}
			if req.ErrorDetail != nil {
				s.note(req.ErrorDetail.GetMessage())
			}
			ty := typeOf(req.TypeUrl)
			fresh := asked[ty] == nil
			if fresh {
				asked[ty] = map[string]bool{}
			}
			for _, n := range req.ResourceNamesSubscribe {
				asked[ty][n] = true
			}
			if fresh || len(req.ResourceNamesSubscribe) > 0 {
				if err := send(ty, req.ResourceNamesSubscribe); err != nil {
					return err
				}
			}
		case <-wake:
			for ty := range types {
				if asked[ty] == nil {
					continue
				}
				var names []string
				for n := range asked[ty] {
					names = append(names, n)
				}
				if err := send(ty, names); err != nil {
					return err
				}
			}
		}
	}
}

// receive reads a stream into a channel until it ends.
func receive[M any](done <-chan struct{}, recv func() (M, error)) <-chan M {
	ch := make(chan M)
	go func() {
		defer close(ch)
		for {
			m, err := recv()
			if err != nil {
				return
			}
			select {
			case ch <- m:
			case <-done:
				return
			}
		}
	}()
	return ch
}

// backends starts n instances and the members that describe them.
func backends(t *testing.T, first views.UID, n int) ([]*harness.Backend, []*views.Member) {
	t.Helper()
	var bs []*harness.Backend
	var ms []*views.Member
	for i := range n {
		uid := first + views.UID(i)
		b := harness.StartBackend(t, uid.String())
		bs = append(bs, b)
		m := member(uid)
		m.Endpoint.Addr = b.Addr.Addr()
		m.Ports = []views.PortNumber{{Name: "grpc", Number: b.Addr.Port()}}
		ms = append(ms, m)
	}
	return bs, ms
}

// within reports a share that is off by more than a tenth of the calls.
func within(t *testing.T, got map[string]int, total int, want map[string]float64) {
	t.Helper()
	for name, share := range want {
		if f := float64(got[name]) / float64(total); f < share-0.06 || f > share+0.06 {
			t.Errorf("%s was given %.2f of the calls, want %.2f: %v", name, f, share, got)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("unexpected answers: %v", got)
		}
	}
}

func TestGRPCGoAcceptsEveryForm(t *testing.T) {
	_, ms := backends(t, 17, 2)
	for _, form := range []views.Form{views.PerEndpoint, views.Grouped, views.Flat} {
		for _, prefer := range []bool{false, true} {
			t.Run(fmt.Sprintf("form %d prefer-zone %v", form, prefer), func(t *testing.T) {
				s := startPlainServer(t, rendering{size: views.SizeGo, zone: "a"})
				v := viewOf(1, ms...)
				v.PreferZone = prefer
				for i := range v.Forms {
					v.Forms[i] = form
				}
				s.set(v)
				for _, target := range []string{"checkout.shop", "checkout.shop:9090"} {
					c := harness.Dial(t, harness.Bootstrap{Server: s.addr, NodeID: "go"}, target)
					c.WaitFor(t, 10*time.Second)
					c.WaitOnly(t, 10*time.Second, "i17", "i18")
				}
				s.assertNoNACK(t)
			})
		}
	}
}

// Weights 1:9 must be weights of calls, and following them must not reconnect.
func TestGRPCGoHonoursWeights(t *testing.T) {
	_, ms := backends(t, 17, 2)
	s := startPlainServer(t, rendering{size: views.SizeGo})
	weighted := func(seq uint64, a, b uint32) *views.View {
		x, y := *ms[0], *ms[1]
		x.Weight, y.Weight = a, b
		return viewOf(seq, &x, &y)
	}
	s.set(weighted(1, 10, 90))
	c := harness.Dial(t, harness.Bootstrap{Server: s.addr, NodeID: "go"}, "checkout.shop")
	c.WaitOnly(t, 10*time.Second, "i17", "i18")
	within(t, c.Calls(1000, time.Second), 1000, map[string]float64{"i17": 0.1, "i18": 0.9})
	s.set(weighted(2, 90, 10))
	harness.Eventually(t, 10*time.Second, "the new weights", func() error {
		if got := c.Calls(100, time.Second); got["i17"] < got["i18"] {
			return fmt.Errorf("still %v", got)
		}
		return nil
	})
	within(t, c.Calls(1000, time.Second), 1000, map[string]float64{"i17": 0.9, "i18": 0.1})
	s.assertNoNACK(t)
}

func TestGRPCGoFollowsWithdrawalAndPrefersItsZone(t *testing.T) {
	_, ms := backends(t, 17, 3)
	ms[1].Zone, ms[2].Zone = "b", "b"
	ms[2].LastResort, ms[2].Weight = true, 1
	s := startPlainServer(t, rendering{size: views.SizeGo, zone: "a"})
	preferring := func(seq uint64, ms ...*views.Member) *views.View {
		v := viewOf(seq, ms...)
		v.PreferZone = true
		return v
	}
	s.set(preferring(1, ms...))
	c := harness.Dial(t, harness.Bootstrap{Server: s.addr, NodeID: "go"}, "checkout.shop")
	c.WaitOnly(t, 10*time.Second, "i17")
	s.set(preferring(2, ms[1], ms[2]))
	c.WaitOnly(t, 10*time.Second, "i18")
	s.set(preferring(3, ms[2]))
	c.WaitOnly(t, 10*time.Second, "i19")
	s.set(preferring(4))
	harness.Eventually(t, 10*time.Second, "an empty service fails", func() error {
		if got := c.Calls(5, time.Second); got["ERR Unavailable"] != 5 {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	s.set(preferring(5, ms...))
	c.WaitOnly(t, 10*time.Second, "i17")
	s.assertNoNACK(t)
}

// The rendering of an empty service for gRPC Java is valid for other clients
// too: every call is dropped.
func TestGRPCGoObeysTheDropThatStandsForEmpty(t *testing.T) {
	_, ms := backends(t, 17, 1)
	s := startPlainServer(t, rendering{size: views.SizeJava, java: true})
	s.set(viewOf(1, ms...))
	c := harness.Dial(t, harness.Bootstrap{Server: s.addr, NodeID: "go"}, "checkout.shop")
	c.WaitOnly(t, 10*time.Second, "i17")
	out := *ms[0]
	out.Listed = false
	s.set(viewOf(2, &out))
	harness.Eventually(t, 10*time.Second, "every call is dropped", func() error {
		if got := c.Calls(5, time.Second); got["ERR Unavailable"] != 5 {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	s.assertNoNACK(t)
}

// 150 equal members in three zones (case C10): in every form, from both kinds of
// client, each of them is called, and nothing is refused.
func TestEachOf150MembersIsCalled(t *testing.T) {
	_, ms := backends(t, 1, 150)
	for i, m := range ms {
		m.Zone = string(rune('a' + i%3))
	}
	ms[7].Weight, ms[7].State, ms[7].OwnLocality = 1, views.Degraded, true // just admitted
	everyone := func(name string, c *harness.Caller) {
		t.Helper()
		c.WaitFor(t, 10*time.Second)
		called := map[string]bool{}
		harness.Eventually(t, 20*time.Second, name+": every member is called", func() error {
			for answer := range c.Calls(300, 2*time.Second) {
				called[answer] = true
			}
			delete(called, ms[7].UID.String()) // a hundredth of a share: seldom called
			if len(called) != 149 {
				return fmt.Errorf("%d of 149", len(called))
			}
			return nil
		})
	}
	for _, form := range []views.Form{views.PerEndpoint, views.Grouped, views.Flat} {
		s := startPlainServer(t, rendering{size: views.SizeGo})
		v := viewOf(1, ms...)
		v.Forms[views.SizeGo] = form
		s.set(v)
		everyone(fmt.Sprintf("grpc-go, form %d", form), harness.Dial(t, harness.Bootstrap{Server: s.addr, NodeID: "go"}, "checkout.shop"))
		s.assertNoNACK(t)
	}
	s, e := envoyFor(t, "a", viewOf(1, ms...))
	everyone("envoy", harness.DialPlain(t, e.Outbound.String(), "checkout.shop"))
	s.assertNoNACK(t)
	assertNoneRejected(t, e)
}
