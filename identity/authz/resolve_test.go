package authz_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
)

func pattern(t interface{ Fatal(...any) }, s string) identity.Pattern {
	p, err := identity.ParsePattern(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCanResolve: who sees what, by which rule.
func TestCanResolve(t *testing.T) {
	strict := &authz.Policy{TrustDomain: td, Grants: []authz.Grant{
		{Caller: pattern(t, "spiffe://prod.example/ns/front/*"), Callee: authz.Callee{Namespace: "shop", Name: "cart"}},
		{Caller: pattern(t, "spiffe://partner.example/ns/x/sa/y"), Callee: authz.Callee{Namespace: "shop", Name: "cart"}},
		{Caller: pattern(t, "spiffe://prod.example/sightline/reader/dash"), Callee: authz.Callee{Namespace: "shop"}},
	}}
	dev := &authz.Policy{TrustDomain: td, Default: authz.WholeTrustDomain}
	who := func(s string) identity.Principal { return identity.Principal{ID: identity.MustParse(s)} }
	cart, open := authz.Service{Namespace: "shop", Name: "cart"}, authz.Service{Namespace: "shop", Name: "open", DNSAnonymous: true}
	for _, row := range []struct {
		name   string
		policy *authz.Policy
		who    identity.Principal
		what   authz.Service
		want   bool
	}{
		{"own namespace", strict, callers[identity.Workload], cart, true},
		{"another namespace", strict, who("spiffe://prod.example/ns/back/sa/a"), cart, false},
		{"granted namespace", strict, who("spiffe://prod.example/ns/front/sa/a"), cart, true},
		{"a prefix is whole segments", strict, who("spiffe://prod.example/ns/frontier/sa/a"), cart, false},
		{"granted, another service", strict, who("spiffe://prod.example/ns/front/sa/a"), open, false},
		{"partner by grant", strict, who("spiffe://partner.example/ns/x/sa/y"), cart, true},
		{"partner, same namespace name", strict, who("spiffe://partner.example/ns/shop/sa/web"), cart, false},
		{"foreign operator", strict, who("spiffe://partner.example/sightline/operator/x"), cart, false},
		{"operator", strict, callers[identity.Operator], cart, true},
		{"reader by grant", strict, callers[identity.Reader], cart, true},
		{"prober without grant", strict, callers[identity.Prober], cart, false},
		{"anonymous", strict, identity.Principal{}, cart, false},
		{"anonymous, exposed", strict, identity.Principal{}, open, true},
		{"dev: whole trust domain", dev, who("spiffe://prod.example/ns/back/sa/a"), cart, true},
		{"dev: other trust domain", dev, who("spiffe://partner.example/ns/back/sa/a"), cart, false},
		{"no policy", nil, callers[identity.Operator], cart, false},
	} {
		if d := row.policy.CanResolve(row.who, row.what); d.Allowed != row.want || d.Rule == "" {
			t.Errorf("%s: %+v", row.name, d)
		}
	}
}

// TestGrantsOnlyAdd: taking a grant away never lets anybody see more.
func TestGrantsOnlyAdd(t *testing.T) {
	ids := []string{"spiffe://prod.example/ns/a/sa/x", "spiffe://prod.example/ns/b/sa/y", "spiffe://other.example/ns/a/sa/x",
		"spiffe://prod.example/sightline/reader/r", "spiffe://other.example/sightline/operator/o"}
	patterns := append([]string{"*", "spiffe://prod.example/*", "spiffe://prod.example/ns/a/*"}, ids...)
	rapid.Check(t, func(t *rapid.T) {
		label := rapid.SampledFrom([]string{"a", "b", ""})
		grants := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) authz.Grant {
			return authz.Grant{Caller: pattern(t, rapid.SampledFrom(patterns).Draw(t, "caller")),
				Callee: authz.Callee{Namespace: label.Draw(t, "ns"), Name: label.Draw(t, "name")}}
		}), 1, 5).Draw(t, "grants")
		fewer := grants[:rapid.IntRange(0, len(grants)-1).Draw(t, "keep")]
		s := authz.Service{Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "sns"), Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "sname"),
			DNSAnonymous: rapid.Bool().Draw(t, "dns")}
		who := identity.Principal{ID: identity.MustParse(rapid.SampledFrom(ids).Draw(t, "id"))}
		more := (&authz.Policy{TrustDomain: td, Grants: grants}).CanResolve(who, s)
		less := (&authz.Policy{TrustDomain: td, Grants: fewer}).CanResolve(who, s)
		if less.Allowed && !more.Allowed {
			t.Fatalf("fewer grants allow more: %v sees %v by %q", who, s, less.Rule)
		}
	})
}
