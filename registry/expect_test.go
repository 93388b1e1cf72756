package registry_test

import (
	"errors"
	"testing"

	"github.com/sightlinedev/sightline/registry"
)

// TestExpect: a change made on an older state of a row is refused, whichever
// kind of row it is, and changes nothing.
func TestExpect(t *testing.T) {
	ix := registry.NewIndex(0)
	n := registry.Name{Namespace: "shop", Service: "checkout"}
	svc := registry.Service{Name: n, Source: "api", Ports: []registry.Port{{Name: "grpc", Number: 8080}}}
	seed := ix.Begin()
	if _, err := seed.PlanAll([]registry.Mutation{
		registry.PutService{Row: svc},
		registry.PutContract{Row: registry.Contract{Name: n, Source: "api"}},
		registry.PutProfile{Row: registry.Profile{Namespace: "shop", Name: "p", Source: "api"}},
	}); err != nil {
		t.Fatal(err)
	}
	ix.Apply(seed)
	held, _ := ix.Service(n)
	svc.Ports[0].Number = 8081
	const stale = 1 << 40
	for name, m := range map[string]registry.Mutation{
		"service":         registry.PutService{Row: svc, Expect: stale},
		"contract":        registry.PutContract{Row: registry.Contract{Name: n, Source: "api", GuardPercent: 60}, Expect: stale},
		"profile":         registry.PutProfile{Row: registry.Profile{Namespace: "shop", Name: "p", Source: "api", External: true}, Expect: stale},
		"delete service":  registry.DeleteService{Name: n, By: "api", Expect: stale},
		"delete contract": registry.DeleteContract{Name: n, By: "api", Expect: stale},
	} {
		o := ix.Begin()
		_, err := o.Plan(m)
		var no *registry.Refusal
		if !errors.As(err, &no) || no.Reason != registry.Conflict || !o.Empty() {
			t.Errorf("%s on an older revision: %v, overlay empty: %t", name, err, o.Empty())
		}
	}
	o := ix.Begin()
	if out, err := o.Plan(registry.PutService{Row: svc, Expect: held.Revision}); err != nil || !out.Changed {
		t.Errorf("on the held revision: %+v, %v", out, err)
	}
}
