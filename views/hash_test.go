package views

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/identity"
)

// neverHashed are the fields that no version may move with: a view that differs
// in nothing else is the same view.
var neverHashed = map[string]string{
	"View.Endpoint":     "the version itself",
	"View.Config":       "the version itself",
	"View.EndpointHash": "the hash itself",
	"View.ConfigHash":   "the hash itself",
	"View.Revision":     "what it was computed from",
	"View.PublishedAt":  "time",
	"Member.Evidence":   "explains, decides nothing",
}

func sampleView() *View {
	v := &View{
		Name: Name{Namespace: "shop", Service: "checkout"}, Revision: 3, Ports: []Port{{Name: "grpc", Number: 8080, Protocol: 4}},
		Identities: []identity.ID{identity.MustParse("spiffe://example.org/ns/shop/sa/checkout")},
		Contract:   Name{Namespace: "shop", Service: "checkout"}, Guard: Guard{Floor: 50, Serving: 1, Members: 1, Zones: []string{"a"}},
		ListedCount: 1,
		Members: []*Member{{
			UID: 17, Label: "one", Identity: identity.MustParse("spiffe://example.org/ns/shop/sa/checkout"),
			Endpoint: Endpoint{Addr: netip.MustParseAddr("10.0.0.1")}, Ports: []PortNumber{{Name: "grpc", Number: 8080}},
			Region: "local", Zone: "a", Capability: "grpc", BaseWeight: 100, Weight: 100, State: Eligible, Listed: true,
		}},
	}
	v.EndpointHash, v.ConfigHash = HashEndpoint(v), HashConfig(v)
	return v
}

// TestEveryRenderedFieldIsHashed changes each field of a view and of a member
// in turn: one of the two hashes must move, or the field must say why not.
func TestEveryRenderedFieldIsHashed(t *testing.T) {
	want := sampleView()
	check := func(field string, v *View) {
		t.Helper()
		moved := HashEndpoint(v) != want.EndpointHash || HashConfig(v) != want.ConfigHash
		if _, never := neverHashed[field]; never == moved {
			t.Errorf("%s: a hash moved: %v, on the list of what is never hashed: %v", field, moved, never)
		}
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[View]()) {
		if f.Name == "Members" { // its fields follow
			continue
		}
		for _, change := range changes(f.Type) {
			v := sampleView()
			change(reflect.ValueOf(v).Elem().FieldByIndex(f.Index))
			check("View."+f.Name, v)
		}
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Member]()) {
		for _, change := range changes(f.Type) {
			v := sampleView()
			change(reflect.ValueOf(v.Members[0]).Elem().FieldByIndex(f.Index))
			check("Member."+f.Name, v)
		}
	}
	empty := sampleView()
	empty.Members = nil
	check("View.Members", empty)
}

// changes returns one change for every leaf of a type, so that no part of a
// struct hides behind another.
func changes(t reflect.Type) []func(reflect.Value) {
	set := func(v any) []func(reflect.Value) {
		return []func(reflect.Value){func(f reflect.Value) { f.Set(reflect.ValueOf(v).Convert(t)) }}
	}
	switch t {
	case reflect.TypeFor[identity.ID]():
		return append(set(identity.MustParse("spiffe://example.org/ns/shop/sa/other")),
			set(identity.MustParse("spiffe://example.com/ns/shop/sa/checkout"))...)
	case reflect.TypeFor[netip.Addr]():
		return set(netip.MustParseAddr("10.0.0.2"))
	case reflect.TypeFor[time.Time]():
		return set(time.Unix(1, 0))
	}
	switch t.Kind() {
	case reflect.Bool:
		return []func(reflect.Value){func(f reflect.Value) { f.SetBool(!f.Bool()) }}
	case reflect.String:
		return []func(reflect.Value){func(f reflect.Value) { f.SetString(f.String() + "x") }}
	case reflect.Int:
		return []func(reflect.Value){func(f reflect.Value) { f.SetInt(f.Int() + 1) }}
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return []func(reflect.Value){func(f reflect.Value) { f.SetUint(f.Uint() + 1) }}
	case reflect.Array:
		return within(changes(t.Elem()), func(f reflect.Value) reflect.Value { return f.Index(f.Len() - 1) })
	case reflect.Slice:
		grow := func(f reflect.Value) { f.Set(reflect.Append(f, reflect.Zero(t.Elem()))) }
		return append(within(changes(t.Elem()), func(f reflect.Value) reflect.Value { return f.Index(0) }), grow)
	case reflect.Struct:
		var out []func(reflect.Value)
		for _, sub := range reflect.VisibleFields(t) {
			out = append(out, within(changes(sub.Type), func(f reflect.Value) reflect.Value { return f.FieldByIndex(sub.Index) })...)
		}
		return out
	}
	panic("a view has a field of a kind that this test cannot change: " + t.String())
}

func within(inner []func(reflect.Value), at func(reflect.Value) reflect.Value) []func(reflect.Value) {
	var out []func(reflect.Value)
	for _, change := range inner {
		out = append(out, func(f reflect.Value) { change(at(f)) })
	}
	return out
}
