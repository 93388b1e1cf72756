package xds

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/views"
)

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
		checkShares(t, v, rd, cla)
	})
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
			if w := e.GetLoadBalancingWeight().GetValue(); rd.envoy && (w == 0 || !v.PreferZone && w != m.Weight) {
				t.Fatalf("member %s has weight %d, want %d", m.UID, w, m.Weight)
			}
			if first := v.PreferZone && rd.zone != "" && m.Zone == rd.zone && !m.LastResort; first && l.Priority != 0 {
				t.Fatalf("member %s of the caller's zone has priority %d", m.UID, l.Priority)
			}
		}
		if !rd.envoy && !v.PreferZone && v.Forms[rd.size] != views.Flat && l.LoadBalancingWeight.GetValue() != sum {
			t.Fatalf("locality %v weighs %d, its members %d", l.Locality, l.LoadBalancingWeight.GetValue(), sum)
		}
	}
	if len(want) > 0 {
		t.Fatalf("members are missing: %v", want)
	}
}

// checkShares judges what part of the calls of the first priority stays in the
// caller's zone: all of it while 1.4 times its serving members are as many as its
// members, else that part; and that each member has its share by weight.
func checkShares(t *rapid.T, v *views.View, rd rendering, cla *endpointv3.ClusterLoadAssignment) {
	if !v.PreferZone || !rd.envoy && v.Forms[rd.size] != views.PerEndpoint {
		return
	}
	var all, serving, far, weight float64
	rendered := map[netip.AddrPort]*views.Member{}
	for _, m := range v.Members {
		if m.Endpoint.Addr.IsValid() && m.Listed {
			rendered[netip.AddrPortFrom(m.Endpoint.Addr, 9090)] = m
		}
	}
	near := func(m *views.Member) bool { return rd.zone != "" && m.Zone == rd.zone }
	for _, m := range v.Members {
		if m.Endpoint.Addr.IsValid() && near(m) {
			all += float64(m.BaseWeight)
		}
	}
	for _, m := range rendered {
		switch {
		case m.LastResort:
		case near(m):
			serving += float64(m.BaseWeight)
			weight += float64(m.Weight)
		default:
			far += float64(m.Weight)
		}
	}
	keep := min(1, 1.4*serving/all)
	if serving == 0 || far == 0 {
		return
	}
	first := 0.0
	got := map[*views.Member]float64{}
	for _, l := range cla.Endpoints {
		for _, e := range l.LbEndpoints {
			w := float64(e.GetLoadBalancingWeight().GetValue())
			if !rd.envoy {
				w = float64(l.GetLoadBalancingWeight().GetValue())
			}
			if l.Priority == 0 {
				first += w
				got[rendered[address(e)]] = w
			}
		}
	}
	for m, w := range got {
		want := keep * float64(m.Weight) / weight
		if !near(m) {
			want = (1 - keep) * float64(m.Weight) / far
		}
		if m.LastResort || math.Abs(w/first-want) > 0.002 {
			t.Fatalf("member %s in zone %q has %.4f of the calls of zone %q, want %.4f", m.UID, m.Zone, w/first, rd.zone, want)
		}
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
