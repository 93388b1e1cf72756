package authz_test

import (
	"testing"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
)

func TestCanServe(t *testing.T) {
	shop := authz.Service{Namespace: "shop", Name: "checkout"}
	own, other := identity.MustParse("spiffe://td.test/ns/shop/sa/checkout"), identity.MustParse("spiffe://td.test/ns/shopping/sa/checkout")
	for _, c := range []struct {
		name   string
		id     identity.ID
		serves []identity.ID
		want   bool
	}{
		{"own namespace", own, nil, true},
		{"a namespace that begins alike", other, nil, false},
		{"nobody", identity.ID{}, nil, false},
		{"named by the contract", other, []identity.ID{other}, true},
		{"own namespace, but the contract names another", own, []identity.ID{other}, false},
		{"not a workload's path", identity.MustParse("spiffe://td.test/sightline/operator/ann"), nil, false},
	} {
		if d := authz.CanServe(c.id, shop, c.serves); d.Allowed != c.want || d.Rule == "" {
			t.Errorf("%s: %+v, want allowed=%t", c.name, d, c.want)
		}
	}
}
