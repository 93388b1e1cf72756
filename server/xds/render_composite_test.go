package xds

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/sightlinedev/sightline/views"
)

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
