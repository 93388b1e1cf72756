package xds

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/views"
)

var checkout = views.Name{Namespace: "shop", Service: "checkout"}

// member is a listed member in zone a at full weight, at an address made from
// its uid.
func member(uid views.UID) *views.Member {
	return &views.Member{
		UID:        uid,
		Identity:   identity.MustParse("spiffe://test/ns/shop/sa/checkout"),
		Endpoint:   views.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(uid >> 16), byte(uid >> 8), byte(uid)})},
		Region:     "local",
		Zone:       "a",
		Capability: "grpc-native",
		BaseWeight: 100,
		Weight:     100,
		State:      views.Eligible,
		Listed:     true,
	}
}

// viewOf is the view of checkout at a version with the members given.
func viewOf(seq uint64, ms ...*views.Member) *views.View {
	v := &views.View{
		Name:     checkout,
		Endpoint: views.Version{Epoch: 1, Seq: seq},
		Config:   views.Version{Epoch: 1, Seq: 1},
		Ports:    []views.Port{{Name: "grpc", Number: 9090, Protocol: views.GRPC}, {Name: "admin", Number: 9091, Protocol: views.HTTP}},
		Members:  ms,
	}
	for _, m := range ms {
		if m.Listed {
			v.ListedCount++
		}
	}
	return v
}

func named(text string) resourceName {
	n, ok := resolveName(text)
	if !ok {
		panic("not a resource name: " + text)
	}
	return n
}

// decode reads a resource as a client of the delta stream does.
func decode[M resourceMessage](t interface{ Fatalf(string, ...any) }, e *encoded, msg M) M {
	if e == nil {
		t.Fatalf("there is no such resource")
	}
	var resp discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(e.delta, &resp); err != nil || len(resp.Resources) != 1 {
		t.Fatalf("entry of %s does not parse: %v", e.name, err)
	}
	r := resp.Resources[0]
	if r.Name != e.name || r.Version != e.version() {
		t.Fatalf("entry of %s is named %s at %s, want %s", e.name, r.Name, r.Version, e.version())
	}
	if err := r.Resource.UnmarshalTo(msg); err != nil {
		t.Fatalf("%s: %v", e.name, err)
	}
	if err := msg.ValidateAll(); err != nil {
		t.Fatalf("%s is invalid: %v", e.name, err)
	}
	// What is written by hand says nothing twice, and nothing that is unknown.
	if n := proto.Size(msg); n != len(r.Resource.Value) || len(msg.ProtoReflect().GetUnknown()) > 0 {
		t.Fatalf("%s takes %d bytes, its message %d", e.name, len(r.Resource.Value), n)
	}
	return msg
}

func assignmentOf(t interface{ Fatalf(string, ...any) }, e *encoded) *endpointv3.ClusterLoadAssignment {
	return decode(t, e, &endpointv3.ClusterLoadAssignment{})
}

func address(e *endpointv3.LbEndpoint) netip.AddrPort {
	s := e.GetEndpoint().GetAddress().GetSocketAddress()
	return netip.AddrPortFrom(netip.MustParseAddr(s.GetAddress()), uint16(s.GetPortValue()))
}

func newTestRenderer(t interface{ Errorf(string, ...any) }) *renderer {
	return newRenderer(renderConfig{outbound: netip.MustParseAddrPort("127.0.0.1:15001"),
		refused: func(ty typ, name string, err error) { t.Errorf("refused %s %s: %v", ty, name, err) }})
}

func TestClusterBytesDependOnNoMember(t *testing.T) {
	r := newTestRenderer(t)
	weak := member(18)
	weak.Weight = 3
	for name, rd := range map[string]rendering{"Go": {size: views.SizeGo}, "Envoy": {envoy: true}} {
		a := r.resource(cds, viewOf(1, member(17)), named("checkout.shop"), rd)
		b := r.resource(cds, viewOf(2, weak), named("checkout.shop"), rd)
		if !bytes.Equal(a.delta, b.delta) {
			t.Errorf("%s: a change of members changed the Cluster", name)
		}
	}
	c := decode(t, r.resource(cds, viewOf(1), named("checkout.shop"), rendering{envoy: true}), &clusterv3.Cluster{})
	if c.CommonLbConfig.HealthyPanicThreshold == nil || c.CommonLbConfig.HealthyPanicThreshold.Value != 0 || c.CommonLbConfig.UpdateMergeWindow == nil {
		t.Errorf("panic threshold or merge window is left to Envoy: %v", c.CommonLbConfig)
	}
	if len(c.TypedExtensionProtocolOptions) != 1 {
		t.Error("a gRPC port has no HTTP/2 towards its instances")
	}
	c = decode(t, r.resource(cds, viewOf(1), named("checkout.shop:9091"), rendering{envoy: true}), &clusterv3.Cluster{})
	if len(c.TypedExtensionProtocolOptions) != 0 || c.Name != "checkout.shop:9091" {
		t.Errorf("an HTTP port is given %v", c)
	}
}

func TestNamesOfPorts(t *testing.T) {
	r := newTestRenderer(t)
	v := viewOf(1, member(17))
	if got := r.clusterNames(v); !slices.Equal(got, []string{"checkout.shop", "checkout.shop:9091"}) {
		t.Errorf("Clusters %v", got)
	}
	grpc := rendering{size: views.SizeGo}
	for dial, cluster := range map[string]string{"checkout.shop": "checkout.shop", "checkout.shop:9090": "checkout.shop", "checkout.shop:9091": "checkout.shop:9091"} {
		l := decode(t, r.resource(lds, v, named(dial), grpc), &listenerv3.Listener{})
		var hcm hcmv3.HttpConnectionManager
		if err := l.ApiListener.ApiListener.UnmarshalTo(&hcm); err != nil {
			t.Fatal(err)
		}
		alone := decode(t, r.resource(rds, v, named(dial), grpc), &routev3.RouteConfiguration{})
		if l.Name != dial || !proto.Equal(hcm.GetRouteConfig(), alone) {
			t.Errorf("%s: Listener %s with routes %v, asked alone %v", dial, l.Name, hcm.GetRouteConfig(), alone)
		}
		h := alone.VirtualHosts[0]
		if !slices.Equal(h.Domains, []string{dial}) || h.Routes[0].GetRoute().GetCluster() != cluster {
			t.Errorf("%s: domains %v, Cluster %s, want %s", dial, h.Domains, h.Routes[0].GetRoute().GetCluster(), cluster)
		}
	}
	for ty := range types {
		if r.resource(ty, v, named("checkout.shop:9999"), grpc) != nil {
			t.Errorf("%s of an undeclared port exists", ty)
		}
	}
	if r.resource(lds, v, named("checkout.shop"), rendering{envoy: true}) != nil {
		t.Error("Envoy is given a Listener of its own for a service")
	}
	moved := member(18)
	moved.Ports = []views.PortNumber{{Name: "admin", Number: 7777}}
	cla := assignmentOf(t, r.resource(eds, viewOf(2, moved), named("checkout.shop:9091"), grpc))
	if got := address(cla.Endpoints[0].LbEndpoints[0]).String(); got != "10.0.0.18:7777" {
		t.Errorf("an instance with its own port number is at %s", got)
	}
}

// A resource that no client could take is reported once, and what was last sent
// stays; a service of that name that comes after a deletion starts from nothing.
func TestRefusedResourceKeepsItsLastGoodBytes(t *testing.T) {
	var reports []string
	r := newRenderer(renderConfig{refused: func(ty typ, name string, err error) {
		reports = append(reports, fmt.Sprintf("%s %s: %v", ty, name, err))
	}})
	rd, n := rendering{size: views.SizeGo}, named("checkout.shop")
	good := r.resource(eds, viewOf(1, member(17)), n, rd)
	bad := member(18)
	bad.Weight = 0
	worse := viewOf(2, bad)
	for range 2 {
		if got := r.resource(eds, worse, n, rd); got != good {
			t.Errorf("a refused assignment is answered with %v", got)
		}
	}
	if got := r.resource(eds, viewOf(3, bad), n, rd); got != good {
		t.Error("the last good bytes were lost with the second bad view")
	}
	if len(reports) != 2 || !strings.Contains(reports[0], "checkout.shop") || !strings.Contains(reports[0], "i18") {
		t.Errorf("reports %q", reports)
	}
	if e := r.resource(cds, worse, n, rd); e == nil {
		t.Error("a bad assignment took the Cluster with it")
	}
	r.forget(checkout)
	if got := r.resource(eds, viewOf(4, bad), n, rd); got != nil {
		t.Error("a new service is answered with the bytes of a deleted one")
	}
}

func TestBytesAreSharedWhileNothingThatShapesThemDiffers(t *testing.T) {
	r := newTestRenderer(t)
	n := named("checkout.shop")
	v := viewOf(1, member(17))
	v.Forms[views.SizeCore] = views.Grouped
	go1 := r.resource(eds, v, n, rendering{size: views.SizeGo, zone: "a"})
	if r.resource(eds, v, n, rendering{size: views.SizeNode, zone: "b"}) != go1 {
		t.Error("kind or zone alone made other bytes, although neither shapes them")
	}
	if r.resource(eds, v, n, rendering{size: views.SizeCore}).version() == go1.version() {
		t.Error("two forms have the same version")
	}
	p := viewOf(2, member(17))
	p.PreferZone = true
	near := r.resource(eds, p, n, rendering{size: views.SizeGo, zone: "a"})
	far := r.resource(eds, p, n, rendering{size: views.SizeGo, zone: "b"})
	if near.version() == far.version() {
		t.Error("callers in two zones have the same version")
	}
	if r.resource(eds, p, n, rendering{size: views.SizeGo, zone: "any other"}) != far {
		t.Error("zones without members are rendered one by one")
	}
	if r.resource(eds, v, n, rendering{size: views.SizeGo}).at != v.Endpoint {
		t.Error("an older view, read a moment ago, is answered with a newer one")
	}
	if r.resource(eds, p, n, rendering{size: views.SizeGo, zone: "a"}) != near {
		t.Error("asking for an older view dropped the newer one's bytes")
	}
}

// The bytes of a few views are those recorded under rendererRevision. When this
// fails, clients would take changed bytes for the ones they hold: raise
// rendererRevision, and write what the test prints into the file.
func TestRevisionNamesTheseBytes(t *testing.T) {
	h := sha256.New()
	second, last := member(18), member(19)
	second.Zone, second.Weight, second.State, second.OwnLocality = "b", 40, views.Degraded, true
	last.State, last.LastResort = views.Ineligible, true
	for _, prefer := range []bool{false, true} {
		for _, form := range []views.Form{views.PerEndpoint, views.Grouped, views.Flat} {
			v := viewOf(3, member(17), second, last)
			v.PreferZone, v.Forms[views.SizeGo], v.Guard.Tripped = prefer, form, prefer
			r := newTestRenderer(t)
			for _, rd := range []rendering{{size: views.SizeGo, zone: "a"}, {envoy: true, zone: "a"}} {
				for ty := range types {
					for _, n := range []string{"checkout.shop", "checkout.shop:9091"} {
						if e := r.resource(ty, v, named(n), rd); e != nil {
							h.Write(e.any)
						}
					}
				}
			}
			h.Write(r.withdrawn(v, v.Endpoint, named("checkout.shop"), rendering{java: true}).any)
		}
	}
	got := fmt.Sprintf("revision %d: %s\n", rendererRevision, hex.EncodeToString(h.Sum(nil)))
	want, err := os.ReadFile("testdata/revision.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("bytes are %shave been    %s", got, want)
	}
}

func BenchmarkResourceFromCache(b *testing.B) {
	r := newTestRenderer(b)
	v := viewOf(1, member(17))
	n, rd := named("checkout.shop"), rendering{size: views.SizeGo}
	b.ReportAllocs()
	for b.Loop() {
		r.resource(eds, v, n, rd)
	}
}

// Streams read views of different moments, from many goroutines, while newer
// ones are published: each is answered with its own view's bytes.
func TestRenderingFromManyGoroutines(t *testing.T) {
	r := newTestRenderer(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for seq := range uint64(200) {
				v := viewOf(seq+1, member(17), member(views.UID(18+g)))
				rd := rendering{size: views.SizeClass(g % int(views.SizeClasses)), envoy: g%3 == 0}
				if e := r.resource(eds, v, named("checkout.shop"), rd); e == nil || e.at != v.Endpoint {
					t.Errorf("asked for the view at %s, answered %v", v.Endpoint, e)
				}
				set := serviceSet{key: seq % 5, members: func() []setMember { return []setMember{{view: v, clusters: r.clusterNames(v)}} }}
				if e := r.composite(rds, set, rendering{envoy: true}); e == nil {
					t.Error("no routes")
				}
				if seq%50 == 0 {
					r.forget(checkout)
				}
			}
		})
	}
	wg.Wait()
}
