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
	"pgregory.net/rapid"

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

func drawView(t *rapid.T) *views.View {
	var ms []*views.Member
	uid := views.UID(0)
	for range rapid.IntRange(0, 80).Draw(t, "members") {
		uid += views.UID(rapid.IntRange(1, 3).Draw(t, "gap"))
		m := member(uid)
		m.Zone = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "zone")
		m.Weight = rapid.Uint32Range(1, 1000).Draw(t, "weight")
		m.State = rapid.SampledFrom([]views.State{views.Unknown, views.Eligible, views.Degraded, views.Ineligible}).Draw(t, "state")
		m.Listed = rapid.IntRange(0, 9).Draw(t, "listed") > 0
		m.LastResort = rapid.IntRange(0, 9).Draw(t, "last") == 0
		m.OwnLocality = rapid.Bool().Draw(t, "own")
		switch rapid.IntRange(0, 9).Draw(t, "endpoint") {
		case 0:
			m.Endpoint = views.Endpoint{Addr: netip.MustParseAddr("10.9.9.9")} // an address that others have too
		case 1:
			m.Endpoint = views.Endpoint{Addr: netip.MustParseAddr(fmt.Sprintf("fd00::%d", uid))}
		case 2:
			m.Endpoint = views.Endpoint{URL: "https://functions.example/f"}
		}
		ms = append(ms, m)
	}
	v := viewOf(rapid.Uint64Range(1, 1000).Draw(t, "seq"), ms...)
	v.PreferZone = rapid.Bool().Draw(t, "prefer")
	for i := range v.Forms {
		v.Forms[i] = rapid.SampledFrom([]views.Form{views.PerEndpoint, views.Grouped, views.Flat}).Draw(t, "form")
	}
	v.Guard.Tripped = rapid.Bool().Draw(t, "guard")
	return v
}

func drawRendering(t *rapid.T) rendering {
	return rendering{
		envoy: rapid.Bool().Draw(t, "envoy"),
		size:  rapid.SampledFrom([]views.SizeClass{views.SizeCore, views.SizeJava, views.SizeGo, views.SizeNode}).Draw(t, "size"),
		java:  rapid.Bool().Draw(t, "java"),
		zone:  rapid.SampledFrom([]string{"", "a", "b", "elsewhere"}).Draw(t, "caller's zone"),
	}
}

// What every client demands of an assignment, and what a view promises.
func TestAssignmentsKeepTheRulesOfEveryClient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, rd := drawView(t), drawRendering(t)
		cla := assignmentOf(t, newTestRenderer(t).resource(eds, v, named("checkout.shop"), rd))
		if rd.java && !rd.envoy && len(cla.GetPolicy().GetDropOverloads()) > 0 {
			return // TestEmptyServiceTowardsJava
		}
		checkLocalities(t, v, rd, cla)
		checkMembers(t, v, rd, cla)
	})
}

func newTestRenderer(t interface{ Errorf(string, ...any) }) *renderer {
	return newRenderer(renderConfig{outbound: netip.MustParseAddrPort("127.0.0.1:15001"),
		refused: func(ty typ, name string, err error) { t.Errorf("refused %s %s: %v", ty, name, err) }})
}

func checkLocalities(t *rapid.T, v *views.View, rd rendering, cla *endpointv3.ClusterLoadAssignment) {
	seen := map[string]bool{}
	next := uint32(0)
	for _, l := range cla.Endpoints {
		id := l.Locality.String()
		if rd.envoy {
			id += fmt.Sprint(l.Priority)
		}
		if seen[id] {
			t.Fatalf("locality %s appears twice", id)
		}
		seen[id] = true
		if l.Priority > next || l.Priority+1 < next {
			t.Fatalf("priority %d follows %d", l.Priority, next)
		}
		next = max(next, l.Priority+1)
		if !rd.envoy && (l.GetLoadBalancingWeight().GetValue() == 0 || proto.Size(l.Locality) == 0) {
			t.Fatalf("locality %v has no weight or no id", l.Locality)
		}
		if len(l.LbEndpoints) == 0 {
			t.Fatalf("locality %v is empty", l.Locality)
		}
	}
	if !rd.envoy && v.Forms[rd.size] == views.Flat && len(cla.Endpoints) > int(tiers) {
		t.Fatalf("the flat form has %d localities", len(cla.Endpoints))
	}
}

func checkMembers(t *rapid.T, v *views.View, rd rendering, cla *endpointv3.ClusterLoadAssignment) {
	want := map[netip.AddrPort]*views.Member{}
	for _, m := range v.Members {
		if m.Listed && m.Endpoint.Addr.IsValid() {
			want[netip.AddrPortFrom(m.Endpoint.Addr, 9090)] = m // the newest at an address
		}
	}
	for _, l := range cla.Endpoints {
		sum := uint32(0)
		for _, e := range l.LbEndpoints {
			m := want[address(e)]
			if m == nil {
				t.Fatalf("%v is not a listed member, or appears twice", address(e))
			}
			delete(want, address(e))
			sum += m.Weight
			if rd.envoy && e.GetLoadBalancingWeight().GetValue() != m.Weight {
				t.Fatalf("member %s has weight %v, want %d", m.UID, e.LoadBalancingWeight, m.Weight)
			}
			if first := v.PreferZone && rd.zone != "" && m.Zone == rd.zone && !m.LastResort; first && l.Priority != 0 {
				t.Fatalf("member %s of the caller's zone has priority %d", m.UID, l.Priority)
			}
		}
		if !rd.envoy && v.Forms[rd.size] != views.Flat && l.LoadBalancingWeight.GetValue() != sum {
			t.Fatalf("locality %v weighs %d, its members %d", l.Locality, l.LoadBalancingWeight.GetValue(), sum)
		}
	}
	if len(want) > 0 {
		t.Fatalf("members are missing: %v", want)
	}
}

// The same view gives the same bytes, whoever renders it and in whatever order
// it is asked.
func TestBytesAreStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, rd := drawView(t), drawRendering(t)
		twin := *v
		for ty := range types {
			a := newTestRenderer(t).resource(ty, v, named("checkout.shop"), rd)
			b := newTestRenderer(t).resource(ty, &twin, named("checkout.shop"), rd)
			if (a == nil) != (b == nil) || a != nil && !bytes.Equal(a.delta, b.delta) {
				t.Fatalf("%s differs between two renderings of one view", ty)
			}
		}
	})
}

func TestGroupsAreFiftyAndNoWeightMovesAMember(t *testing.T) {
	var ms []*views.Member
	for uid := range views.UID(2000) {
		ms = append(ms, member(uid+1))
	}
	v := viewOf(1, ms...)
	v.Forms[views.SizeGo] = views.Grouped
	rd := rendering{size: views.SizeGo}
	cla := assignmentOf(t, newTestRenderer(t).resource(eds, v, named("checkout.shop"), rd))
	if len(cla.Endpoints) != groups {
		t.Fatalf("%d localities, want %d", len(cla.Endpoints), groups)
	}
	home := map[netip.AddrPort]string{}
	for _, l := range cla.Endpoints {
		if n := len(l.LbEndpoints); n < 15 || n > 75 {
			t.Errorf("locality %s holds %d of 2000 members", l.Locality.SubZone, n)
		}
		for _, e := range l.LbEndpoints {
			home[address(e)] = l.Locality.SubZone
		}
	}
	ramping := *ms[700]
	ramping.Weight, ramping.OwnLocality = 10, true
	next := viewOf(2, slices.Concat(ms[:700], []*views.Member{&ramping}, ms[701:1990])...)
	next.Forms = v.Forms
	own := 0
	for _, l := range assignmentOf(t, newTestRenderer(t).resource(eds, next, named("checkout.shop"), rd)).Endpoints {
		if l.Locality.SubZone == ramping.UID.String() {
			own++
			continue
		}
		for _, e := range l.LbEndpoints {
			if home[address(e)] != l.Locality.SubZone {
				t.Fatalf("%v moved from %s to %s", address(e), home[address(e)], l.Locality.SubZone)
			}
		}
	}
	if own != 1 {
		t.Errorf("the ramping member has %d localities of its own", own)
	}
	v.PreferZone = true
	ms[3].LastResort = true
	preferring := assignmentOf(t, newTestRenderer(t).resource(eds, v, named("checkout.shop"), rendering{size: views.SizeGo, zone: "a"}))
	if n := len(preferring.Endpoints); n > groups {
		t.Errorf("%d localities for a caller that prefers its zone, at most %d", n, groups)
	}
}

func TestEmptyServiceTowardsJava(t *testing.T) {
	gone := member(17)
	gone.Listed = false
	function := member(18)
	function.Endpoint = views.Endpoint{URL: "https://functions.example/f"}
	r := newTestRenderer(t)
	java := rendering{size: views.SizeJava, java: true}
	for name, c := range map[string]struct {
		e    *encoded
		want string
	}{
		"no member left":           {r.resource(eds, viewOf(1, gone), named("checkout.shop"), java), "10.0.0.17:9090"},
		"other port":               {r.resource(eds, viewOf(1, gone), named("checkout.shop:9091"), java), "10.0.0.17:9091"},
		"deleted":                  {r.withdrawn(viewOf(1, gone), views.Version{Epoch: 1, Seq: 9}, named("checkout.shop"), java), "10.0.0.17:9090"},
		"nothing that xDS carries": {newTestRenderer(t).resource(eds, viewOf(2, function), named("checkout.shop"), java), "192.0.2.1:9"},
		"never had a member":       {newTestRenderer(t).resource(eds, viewOf(2), named("checkout.shop"), java), "192.0.2.1:9"},
		"unknown":                  {r.withdrawn(nil, views.Version{Epoch: 1, Seq: 9}, named("checkout.shop"), java), "192.0.2.1:9"},
	} {
		cla := assignmentOf(t, c.e)
		drops := cla.GetPolicy().GetDropOverloads()
		if len(cla.Endpoints) != 1 || len(cla.Endpoints[0].LbEndpoints) != 1 || len(drops) != 1 || drops[0].DropPercentage.Numerator != 100 || drops[0].Category == "" {
			t.Errorf("%s: %v is not one endpoint with a full drop", name, cla)
			continue
		}
		if got := address(cla.Endpoints[0].LbEndpoints[0]).String(); got != c.want {
			t.Errorf("%s: endpoint %s, want %s", name, got, c.want)
		}
	}
	for name, rd := range map[string]rendering{"Go": {size: views.SizeGo}, "Envoy": {envoy: true}} {
		if cla := assignmentOf(t, r.withdrawn(viewOf(1, gone), views.Version{Epoch: 1, Seq: 9}, named("checkout.shop"), rd)); len(cla.Endpoints) != 0 || cla.ClusterName != "checkout.shop" {
			t.Errorf("%s: a deleted service is %v", name, cla)
		}
	}
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

func TestAssignmentThatFitsInNoResponseIsRefused(t *testing.T) {
	path := "/" + strings.Repeat("a", 400)
	id, err := identity.Parse("spiffe://test" + path)
	if err != nil {
		t.Fatal(err)
	}
	var ms []*views.Member
	for uid := range views.UID(10_000) {
		m := member(uid + 1)
		m.Identity = id
		ms = append(ms, m)
	}
	var reports []string
	r := newRenderer(renderConfig{refused: func(_ typ, name string, err error) { reports = append(reports, err.Error()) }})
	v := viewOf(1, ms...)
	if r.resource(eds, v, named("checkout.shop"), rendering{envoy: true}) != nil || len(reports) != 1 || !strings.Contains(reports[0], "XDS.AssignmentBytes") {
		t.Errorf("5 MB were accepted as one assignment; reports %q", reports)
	}
	if r.resource(eds, v, named("checkout.shop"), rendering{size: views.SizeGo}) == nil {
		t.Errorf("10,000 endpoints do not fit towards gRPC: %q", reports)
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

func TestOutboundRoutesHaveNoCatchAll(t *testing.T) {
	r := newTestRenderer(t)
	envoy := rendering{envoy: true}
	ledger := viewOf(1)
	ledger.Name.Service = "ledger"
	set := serviceSet{key: 1, at: views.Version{Epoch: 1, Seq: 5}, members: func() []setMember {
		return []setMember{
			{view: viewOf(1), clusters: []string{"checkout.shop", "checkout.shop:9091"}},
			{view: ledger, clusters: []string{"ledger.shop:9091"}}, // its default Cluster is not on the stream yet
		}
	}}
	e := r.composite(rds, set, envoy)
	rc := decode(t, e, &routev3.RouteConfiguration{})
	got := map[string]string{}
	for _, h := range rc.VirtualHosts {
		for _, d := range h.Domains {
			got[d] = h.Name
		}
		for _, rt := range h.Routes {
			a := rt.GetRoute()
			//lint:ignore SA1019 the deprecated fields are the ones that make Envoy count a hang
			if a.Timeout == nil || a.GetMaxGrpcTimeout() == nil || a.GetGrpcTimeoutOffset().AsDuration() <= 0 {
				t.Errorf("%s: a hang would not be counted: %v", h.Name, a)
			}
		}
	}
	want := map[string]string{"checkout.shop": "checkout.shop", "checkout.shop:9090": "checkout.shop", "checkout.shop:9091": "checkout.shop", "ledger.shop:9091": "ledger.shop"}
	if fmt.Sprint(got) != fmt.Sprint(want) || rc.Name != outboundName {
		t.Errorf("domains %v, want %v", got, want)
	}
	set.at = views.Version{Epoch: 1, Seq: 9}
	if again := r.composite(rds, set, envoy); again.render != e.render || &again.any[0] != &e.any[0] {
		t.Error("an unchanged set was encoded again")
	}
	later := e.withAt(set.at)
	if !bytes.Equal(later.any, e.any) || later.version() == e.version() {
		t.Error("withAt changed more than the version")
	}
	l := decode(t, r.composite(lds, serviceSet{}, envoy), &listenerv3.Listener{})
	if p := l.GetAddress().GetSocketAddress().GetPortValue(); p != 15001 {
		t.Errorf("the outbound listener binds to port %d", p)
	}
	envoy.outbound = netip.MustParseAddrPort("127.0.0.1:16001")
	l = decode(t, r.composite(lds, serviceSet{}, envoy), &listenerv3.Listener{})
	if p := l.GetAddress().GetSocketAddress().GetPortValue(); p != 16001 {
		t.Errorf("the outbound listener that was asked for binds to port %d", p)
	}
	if r.composite(lds, serviceSet{}, rendering{}) != nil || r.composite(cds, set, envoy) != nil {
		t.Error("a composite exists for gRPC, or for another type")
	}
}

func TestCompositesKeptAreBounded(t *testing.T) {
	r := newTestRenderer(t)
	ports := []views.Port{{Name: "grpc", Number: 9090, Protocol: views.GRPC}}
	var ms []setMember
	for i := range 2000 {
		v := &views.View{Name: views.Name{Namespace: "shop", Service: fmt.Sprintf("s%d", i)}, Ports: ports}
		ms = append(ms, setMember{view: v, clusters: []string{v.Name.Host()}})
	}
	for key := range uint64(200) {
		set := serviceSet{key: key, members: func() []setMember { return ms[:2000-key] }}
		if e := r.composite(rds, set, rendering{envoy: true}); e == nil {
			t.Fatal("no routes")
		}
	}
	kept := 0
	for _, g := range []map[compositeKey]*encoded{r.composites.young, r.composites.old} {
		for _, e := range g {
			kept += len(e.delta)
		}
	}
	if kept > 2*compositeBytes+maxResponse {
		t.Errorf("%d bytes of composites are kept", kept)
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

func BenchmarkAssignment(b *testing.B) {
	for _, n := range []int{133, 10_000} {
		var ms []*views.Member
		for uid := range views.UID(n) {
			ms = append(ms, member(uid+1))
		}
		v := viewOf(1, ms...)
		for name, rd := range map[string]rendering{"grpc": {size: views.SizeGo}, "envoy": {envoy: true}} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				s := newServiceBytes(v, nil)
				k := s.key(eds, 0, rd)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := encode(v, "checkout.shop", 0, k, false); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
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

func BenchmarkRoutesOf3000Services(b *testing.B) {
	var ms []setMember
	for i := range 3000 {
		v := viewOf(1)
		v.Name = views.Name{Namespace: "shop", Service: fmt.Sprintf("service-%d", i)}
		ms = append(ms, setMember{view: v, clusters: (*renderer)(nil).clusterNames(v)})
	}
	set := serviceSet{members: func() []setMember { return ms }}
	r := newTestRenderer(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.encodeComposite(compositeKey{typ: rds}, set); err != nil {
			b.Fatal(err)
		}
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
