package authz

import (
	"testing"

	"github.com/sightlinedev/sightline/identity"
)

// TestWhoMayInspect: RELIABILITY.md §5, "own service" and "per grant".
func TestWhoMayInspect(t *testing.T) {
	id := func(path string) identity.ID { return identity.MustParse("spiffe://" + path) }
	p := &Policy{TrustDomain: "example.org", Default: WholeTrustDomain, Grants: []Grant{
		{Caller: identity.Pattern{ID: id("example.org/sightline/reader/dash")}, Callee: Callee{Namespace: "shop"}},
		{Caller: identity.Pattern{ID: id("example.org/ns/web/sa/front")}, Callee: Callee{}},
	}}
	strict := &Policy{TrustDomain: "example.org", Grants: p.Grants}
	checkout := Service{Namespace: "shop", Name: "checkout"}
	named := []identity.ID{id("example.org/ns/pay/sa/pay")}
	for _, c := range []struct {
		policy *Policy
		who    string
		what   Service
		serves []identity.ID
		want   bool
	}{
		{strict, "example.org/ns/shop/sa/checkout", checkout, nil, true},
		{strict, "example.org/ns/shop/sa/checkout", checkout, named, false},
		{strict, "example.org/ns/pay/sa/pay", checkout, named, true},
		{p, "example.org/ns/bank/sa/ledger", checkout, nil, false},    // it may resolve it
		{strict, "example.org/ns/web/sa/front", checkout, nil, false}, // it may resolve it
		{strict, "other.org/ns/shop/sa/checkout", checkout, nil, false},
		{strict, "example.org/sightline/reader/dash", checkout, nil, true},
		{strict, "example.org/sightline/reader/dash", Service{Namespace: "shop"}, nil, true},
		{strict, "example.org/sightline/reader/dash", Service{}, nil, false},
		{strict, "example.org/sightline/reader/other", checkout, nil, false},
		{strict, "example.org/sightline/operator/ann", Service{}, named, true},
		{strict, "other.org/sightline/operator/ann", checkout, nil, false},
		{strict, "example.org/sightline/reconciler/k", checkout, nil, true},
		{strict, "other.org/sightline/reconciler/k", checkout, nil, false},
		{nil, "example.org/sightline/operator/ann", checkout, nil, false},
	} {
		d := c.policy.CanInspect(identity.Principal{ID: id(c.who)}, c.what, c.serves)
		if d.Allowed != c.want || d.Rule == "" {
			t.Errorf("%s on %v (served by %v): %+v", c.who, c.what, c.serves, d)
		}
	}
}
