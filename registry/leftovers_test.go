package registry

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/identity"
)

// TestNothingIsLeftBehind: when every row of a random history is gone, so is
// everything that was derived from them. An index that keeps a trace of each
// instance it has seen would grow for as long as the process lives.
func TestNothingIsLeftBehind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ix := NewIndex(0)
		apply := func(m Mutation) {
			o := ix.Begin()
			_, _ = o.Plan(m) // a refusal leaves nothing behind either
			ix.Apply(o)
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			n := Name{"a", rapid.SampledFrom([]string{"x", "y"}).Draw(t, "service")}
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				apply(PutService{Row: Service{Name: n, Source: "api", Profile: rapid.SampledFrom([]string{"", "p"}).Draw(t, "profile"),
					Ports: []Port{{Name: "main", Number: rapid.SampledFrom([]uint16{80, 81}).Draw(t, "port")}}}})
			case 1:
				apply(PutProfile{Row: Profile{Namespace: "a", Name: "p", Source: "api"}})
				apply(PutContract{Row: Contract{Name: n, Source: "api", GuardPercent: rapid.Uint32Range(1, 9).Draw(t, "guard")}})
			case 2:
				apply(RemoveInstance{UID: UID(rapid.IntRange(1, 20).Draw(t, "uid")), By: "api", Removal: Deregistered})
			default:
				apply(PutInstance{Register: rapid.Bool().Draw(t, "register"), Row: Instance{Service: n, Source: "api", Proof: ByOperator,
					Label:    rapid.SampledFrom([]string{"", "one", "two", "three"}).Draw(t, "label"),
					Profile:  rapid.SampledFrom([]string{"", "p"}).Draw(t, "own profile"),
					Identity: identity.MustParse("spiffe://t.test/ns/a/sa/s"),
					Endpoint: Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, rapid.ByteRange(1, 3).Draw(t, "addr")})}}})
			}
		}
		for _, n := range []Name{{"a", "x"}, {"a", "y"}} {
			apply(DeleteService{Name: n, By: "api"})
			apply(DeleteContract{Name: n, By: "api"})
		}
		apply(DeleteProfile{Name: Name{"a", "p"}, By: "api"})
		s := ix.state
		for what, left := range map[string]int{
			"services": len(s.services.rows), "instances": len(s.instances.rows), "contracts": len(s.contracts.rows),
			"profiles": len(s.profiles.rows), "labels": len(s.labels.rows), "claims": len(s.claims.rows), "lost": len(s.lost.rows),
			"lost to": len(s.lostTo.rows), "sizes": len(s.sizes.rows), "members": len(s.members.rows),
			"contract users": len(s.contractUsers.rows), "profile users": len(s.profileUsers.rows), "owned": len(s.owned.rows),
			"applied": len(ix.applied),
		} {
			if left > 0 {
				t.Fatalf("%d of %s are left behind", left, what)
			}
		}
	})
}
