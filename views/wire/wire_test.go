package wire

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/identity"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/views"
)

// genView draws views with every field in use.
func genView(t *rapid.T) *views.View {
	bit := func(name string) bool { return rapid.Bool().Draw(t, name) }
	pick := func(name string, of int) int { return rapid.IntRange(0, of-1).Draw(t, name) }
	id := identity.MustParse("spiffe://example.org/ns/shop/sa/checkout")
	v := &views.View{
		Name:     views.Name{Namespace: "shop", Service: "checkout"},
		Endpoint: views.Version{Epoch: 7, Seq: uint64(pick("endpoint", 1000))}, Config: views.Version{Epoch: 6, Seq: 3},
		Revision: uint64(pick("revision", 100)), DNSAnonymous: bit("anonymous"), PreferZone: bit("prefer"),
		Ports:      []views.Port{{Name: "grpc", Number: 8080, Protocol: views.Protocol(pick("protocol", 5))}},
		Identities: []identity.ID{id}, Contract: views.Name{Namespace: "shop", Service: "slow"},
		Guard:      views.Guard{Tripped: bit("tripped"), Zones: []string{"", "a"}, Floor: 50, Serving: pick("serving", 9), Members: pick("members", 9)},
		Confidence: views.Confidence(pick("confidence", 4)), PublishedAt: time.Unix(1700000000, 5).UTC(),
	}
	for class := range v.Forms {
		v.Forms[class] = views.Form(pick("form", 3))
	}
	endpoints := []views.Endpoint{{Addr: netip.MustParseAddr("10.0.0.1")}, {Addr: netip.MustParseAddr("fd00::1")}, {Host: "api.example.org"}, {URL: "https://example.org/f"}}
	for n := range pick("count", 6) {
		m := &views.Member{
			UID: views.UID(n*3 + 1 + pick("gap", 3)), Label: rapid.SampledFrom([]string{"", "one"}).Draw(t, "label"), Identity: id,
			Endpoint: endpoints[pick("endpoint", 4)], Ports: []views.PortNumber{{Name: "grpc", Number: uint16(1 + pick("port", 65535))}},
			Region: "local", Zone: "a", Capability: "grpc", BaseWeight: 100, Weight: uint32(1 + pick("weight", 100)),
			State: views.State(pick("state", 4)), Draining: bit("draining"), Listed: bit("listed"), LastResort: bit("last"), OwnLocality: bit("own"),
			Evidence: views.Evidence{Rule: "R4", Detail: "3 of 5", Since: time.Unix(1700000001, 0).UTC()},
		}
		if m.Listed {
			v.ListedCount++
		}
		v.Members = append(v.Members, m)
	}
	v.EndpointHash, v.ConfigHash = views.HashEndpoint(v), views.HashConfig(v)
	return v
}

// TestRoundTrip: a view that went over the wire has the same contents, proved
// by its hashes taken anew and by comparing every field.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := genView(t)
		got, err := ParseView(throughBytes(t, View(v)))
		if err != nil {
			t.Fatal(err)
		}
		if views.HashEndpoint(got) != v.EndpointHash || views.HashConfig(got) != v.ConfigHash {
			t.Fatalf("other hashes after the wire")
		}
		if len(v.Members) == 0 {
			v.Members = []*views.Member{}
		}
		if !reflect.DeepEqual(got, v) {
			t.Fatalf("got  %+v\nwant %+v", got, v)
		}
	})
}

// TestDeltaRoundTrip: who holds one view and gets the delta has the other.
func TestDeltaRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, next := genView(t), genView(t)
		d := throughBytes(t, Delta(views.MakeDelta(old, next)))
		got, err := ParseDelta(d, old)
		if err != nil {
			t.Fatal(err)
		}
		if views.HashEndpoint(got) != next.EndpointHash || got.ListedCount != next.ListedCount {
			t.Fatalf("the delta leads elsewhere")
		}
		other := *old
		other.Endpoint.Seq += 5000
		if _, err := ParseDelta(d, &other); !errors.Is(err, ErrBase) {
			t.Fatalf("applied to another base: %v", err)
		}
		if _, err := ParseDelta(d, nil); !errors.Is(err, ErrBase) {
			t.Fatalf("applied to nothing: %v", err)
		}
	})
}

func throughBytes[M proto.Message](t *rapid.T, m M) M {
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out := m.ProtoReflect().New().Interface().(M)
	if err := proto.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestBadViews: what is out of range is refused by the field's name.
func TestBadViews(t *testing.T) {
	good := func() *viewv1.View {
		v := &views.View{Name: views.Name{Namespace: "shop", Service: "checkout"}, Members: []*views.Member{{
			UID: 1, Endpoint: views.Endpoint{Host: "h"}, BaseWeight: 1, Weight: 1,
			Ports: []views.PortNumber{{Name: "p", Number: 1}},
		}}, Ports: []views.Port{{Name: "p", Number: 1}}}
		return View(v)
	}
	if _, err := ParseView(good()); err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(*viewv1.View){
		"no name":           func(v *viewv1.View) { v.Name = "" },
		"an upper-case one": func(v *viewv1.View) { v.Name = "Checkout" },
		"a slash in it":     func(v *viewv1.View) { v.Name = "a/b" },
		"no version":        func(v *viewv1.View) { v.EndpointVersion = "" },
		"a bad version":     func(v *viewv1.View) { v.ConfigVersion = "1.x" },
		"a short hash":      func(v *viewv1.View) { v.EndpointHash = v.EndpointHash[:31] },
		"port 0":            func(v *viewv1.View) { v.Ports[0].Number = 0 },
		"port 65536":        func(v *viewv1.View) { v.Ports[0].Number = 65536 },
		"a new protocol":    func(v *viewv1.View) { v.Ports[0].Protocol = 99 },
		"a bad identity":    func(v *viewv1.View) { v.Identities = []string{"me"} },
		"a bad contract":    func(v *viewv1.View) { v.Contract = "x" },
		"a new form":        func(v *viewv1.View) { v.Forms[0].Form = 9 },
		"a new size class":  func(v *viewv1.View) { v.Forms[0].SizeClass = 9 },
		"no confidence":     func(v *viewv1.View) { v.Confidence = 0 },
		"a bad uid":         func(v *viewv1.View) { v.Members[0].Uid = "17" },
		"no state":          func(v *viewv1.View) { v.Members[0].State = 0 },
		"weight 0":          func(v *viewv1.View) { v.Members[0].Weight = 0 },
		"no endpoint":       func(v *viewv1.View) { v.Members[0].Endpoint = nil },
		"an empty host":     func(v *viewv1.View) { v.Members[0].Endpoint = &viewv1.Member_Host{} },
		"a bad address":     func(v *viewv1.View) { v.Members[0].Endpoint = &viewv1.Member_Address{Address: "x"} },
		"a member's port 0": func(v *viewv1.View) { v.Members[0].Ports[0].Number = 0 },
		"a member's bad id": func(v *viewv1.View) { v.Members[0].Identity = "me" },
		"a member twice":    func(v *viewv1.View) { v.Members = append(v.Members, v.Members[0]) },
	} {
		v := good()
		spoil(v)
		if got, err := ParseView(v); err == nil {
			t.Errorf("%s: accepted as %+v", what, got)
		}
	}
	for _, r := range []*viewv1.Removed{nil, {Namespace: "shop", Name: "x"}, {Namespace: "shop", Name: "", Version: "1.2"}} {
		if _, _, err := ParseRemoved(r); err == nil {
			t.Errorf("removal %v accepted", r)
		}
	}
	n, at, err := ParseRemoved(Removed(views.Name{Namespace: "shop", Service: "x"}, views.Version{Epoch: 1, Seq: 2}))
	if err != nil || n.String() != "shop/x" || at.String() != "1.2" {
		t.Errorf("removal: %v %v %v", n, at, err)
	}
}

// FuzzParseView: no bytes make it panic, and what it accepts survives a round trip.
func FuzzParseView(f *testing.F) {
	b, err := proto.Marshal(View(&views.View{Name: views.Name{Namespace: "shop", Service: "checkout"}, Members: []*views.Member{
		{UID: 1, Endpoint: views.Endpoint{Host: "h"}, BaseWeight: 1, Weight: 1},
	}}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var in viewv1.View
		if proto.Unmarshal(b, &in) != nil {
			return
		}
		v, err := ParseView(&in)
		if err != nil {
			return
		}
		again, err := ParseView(View(v))
		if err != nil || views.HashEndpoint(again) != views.HashEndpoint(v) || views.HashConfig(again) != views.HashConfig(v) {
			t.Fatalf("accepted, and different after a round trip: %v", err)
		}
	})
}
