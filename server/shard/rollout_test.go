package shard

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// threeZones is a change of a service with four instances in each of the zones a, b
// and c: i1 to i4, i5 to i8, i9 to i12.
func threeZones(revision uint64, adjust func(*registry.Contract)) registry.Change {
	c := rows(checkout, revision, 0, self, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
	for k := range c.Instances {
		c.Instances[k].Row.Zone = string(rune('a' + k/4))
	}
	return contract(c, adjust)
}

// contract gives a change its contract, and leaves instances out where it is not
// the first one.
func contract(c registry.Change, adjust func(*registry.Contract)) registry.Change {
	c.Contract.Revision = c.Revision
	if adjust != nil {
		adjust(&c.Contract)
	}
	c.Contract = c.Contract.WithDefaults()
	return c
}

// changed is the newest contract without any rows of instances.
func changed(revision uint64, adjust func(*registry.Contract)) registry.Change {
	return contract(rows(checkout, revision, 0, self), adjust)
}

func silenceCounts(c *registry.Contract) { c.Silence = registry.SilenceIneligible }

// staged is a region that notes the steps of rollouts, and in which zones probers
// were told of which silence.
type staged struct {
	*region
	steps []string
	told  []string
}

func newStaged(t *testing.T) *staged {
	s := &staged{}
	s.region = newRegion(t, func(c *Config) {
		c.Events.Rollout = func(_ registry.Name, r Rollout) {
			s.locked(func() { s.steps = append(s.steps, fmt.Sprintf("%v %v", r.State, r.Zones)) })
		}
		c.Events.Contract = func(_ registry.Name, c registry.Contract, zone string) {
			s.locked(func() { s.told = append(s.told, fmt.Sprintf("%q %d", zone, c.Silence)) })
		}
	})
	return s
}

func (s *staged) expectSteps(want ...string) {
	s.t.Helper()
	s.locked(func() {
		if !slices.Equal(s.steps, want) {
			s.t.Errorf("steps %q, want %q", s.steps, want)
		}
	})
}

func (s *staged) rollout() *Rollout {
	s.t.Helper()
	i, ok, err := s.set.Inspect(s.t.Context(), checkout)
	if err != nil || !ok {
		s.t.Fatalf("inspect: %v %v", ok, err)
	}
	return i.Rollout
}

func all(except ...registry.UID) (uids []registry.UID) {
	for uid := registry.UID(1); uid <= 12; uid++ {
		if !slices.Contains(except, uid) {
			uids = append(uids, uid)
		}
	}
	return uids
}

// TestAContractIsRolledOut: 60 s in shadow, then zone by zone, 60 s each, in the
// order of their names.
func TestAContractIsRolledOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaged(t)
		s.start(Boot{Services: []registry.Change{threeZones(1, nil)}})
		quiet := all(1, 5, 9) // one of each zone says nothing
		s.run(time.Minute, quiet...)
		s.expectListed(all()...)
		s.expectSteps()
		s.set.SubmitChange(changed(2, silenceCounts))
		s.run(55*time.Second, quiet...)
		s.expectListed(all()...)
		r := s.rollout()
		if r == nil || r.State != RolloutShadow || r.WouldWithdraw != 3 || r.Members != 12 || r.Revision != 2 || r.ZonesTotal != 3 ||
			r.Next.Sub(r.Since) != time.Minute || r.Detail != "in shadow: would withdraw 3 of 12" {
			t.Errorf("in shadow: %+v", r)
		}
		s.run(10*time.Second, quiet...)
		s.expectListed(all(1)...)
		if r := s.rollout(); r.State != RolloutZones || !slices.Equal(r.Zones, []string{"a"}) || r.WouldWithdraw != 1 {
			t.Errorf("in the first zone: %+v", r)
		}
		// Any other change leaves the zones where they are, and their probers too.
		s.set.SubmitChange(contract(removal(checkout, 3, registry.Deregistered, 12), func(c *registry.Contract) { silenceCounts(c) }))
		s.run(60*time.Second, quiet...)
		s.expectListed(all(1, 5, 12)...)
		s.run(60*time.Second, quiet...)
		s.expectListed(all(1, 5, 9, 12)...)
		if r := s.rollout(); len(r.Zones) != 3 {
			t.Errorf("in every zone: %+v", r)
		}
		s.run(60*time.Second, quiet...)
		if r := s.rollout(); r != nil {
			t.Errorf("at the end: %+v", r)
		}
		s.expectSteps("shadow []", "zones [a]", "zones [a b]", "zones [a b c]", "done []")
		s.locked(func() {
			want := []string{`"" 0`, `"" 0`, `"a" 1`, `"b" 1`, `"" 1`}
			if !slices.Equal(s.told, want) {
				t.Errorf("probers were told %q, want %q", s.told, want)
			}
		})
		s.stop()
	})
}

// TestAContractThatWouldTripIsRefused: it stays what it was, and says what would
// have been withdrawn; the next change is tried again.
func TestAContractThatWouldTripIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaged(t)
		s.start(Boot{Services: []registry.Change{threeZones(1, nil)}})
		quiet := all(1, 2, 3, 5)
		s.run(time.Minute, quiet...)
		// A guard that the contract lowers too does not help it.
		lowered := func(c *registry.Contract) { silenceCounts(c); c.GuardPercent = 1 }
		s.set.SubmitChange(changed(2, lowered))
		s.run(time.Minute, quiet...)
		s.expectSteps("shadow []", "refused []")
		r := s.rollout()
		if r.WouldWithdraw != 4 || r.Members != 12 || r.Detail != "would withdraw 4 of 12: the guard of zone a would trip" || !r.Next.IsZero() {
			t.Errorf("refused: %+v", r)
		}
		s.run(5*time.Minute, quiet...)
		s.set.SubmitChange(changed(3, lowered)) // the same again
		s.run(5*time.Minute, quiet...)
		s.expectSteps("shadow []", "refused []")
		s.expectListed(all()...)
		if v := s.publisher.Snapshot().Get(checkout); v.Guard.Tripped || v.Guard.Floor != 50 {
			t.Errorf("guard %+v", v.Guard)
		}
		// Over a restart it stays refused; another one is tried.
		memories := maps.Clone(s.memories)
		s.stop()
		again := newStaged(t)
		again.start(Boot{Services: []registry.Change{contract(threeZones(4, nil), lowered)}, Memories: memories})
		again.run(2*time.Minute, quiet...)
		again.expectSteps()
		if r := again.rollout(); r == nil || r.State != RolloutRefused || r.WouldWithdraw != 4 || !strings.HasPrefix(r.Detail, "would withdraw 4 of 12") {
			t.Errorf("after a restart: %+v", r)
		}
		again.set.SubmitChange(changed(5, func(c *registry.Contract) { c.ReturnHold = time.Minute }))
		again.run(5*time.Minute, quiet...)
		again.expectSteps("shadow []", "zones [a]", "zones [a b]", "zones [a b c]", "done []")
		again.expectListed(all()...)
		again.stop()
	})
}

// TestBothSidesAreToldOfRows: of an instance that comes while a contract is in
// its shadow, that contract has its own opinion too.
func TestBothSidesAreToldOfRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaged(t)
		s.start(Boot{Services: []registry.Change{threeZones(1, nil)}})
		s.run(time.Minute, all()...)
		s.set.SubmitChange(changed(2, silenceCounts))
		s.run(2*time.Second, all()...)
		s.set.SubmitChange(contract(rows(checkout, 3, 0, self, 13), silenceCounts))
		s.run(35*time.Second, all()...) // silence admits it by the contract in effect alone
		if r := s.rollout(); r.WouldWithdraw != 1 || r.Members != 13 {
			t.Errorf("with a silent instance: %+v", r)
		}
		s.run(3*time.Second, append(all(), 13)...)
		if r := s.rollout(); r.WouldWithdraw != 0 || r.Members != 13 {
			t.Errorf("after it spoke: %+v", r)
		}
		s.set.SubmitChange(contract(removal(checkout, 4, registry.Deregistered, 13), silenceCounts))
		s.run(2*time.Second, all()...)
		if r := s.rollout(); r.Members != 12 || len(r.Zones) != 0 {
			t.Errorf("after it left: %+v", r)
		}
		// A whole zone comes, and falls silent: the guard that would trip is its.
		c := contract(rows(checkout, 5, 0, self, 14, 15, 16, 17), silenceCounts)
		for k := range c.Instances {
			c.Instances[k].Row.Zone = "d"
		}
		s.set.SubmitChange(c)
		s.run(3*time.Second, append(all(), 14, 15, 16, 17)...)
		s.run(20*time.Second, all()...)
		if r := s.rollout(); r.State != RolloutRefused || r.Detail != "would withdraw 4 of 16: the guard of zone d would trip" {
			t.Errorf("of the zone that came: %+v", r)
		}
		s.stop()
	})
}

// TestAZoneIsGivenBack: what trips only once it is in effect is undone.
func TestAZoneIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaged(t)
		s.start(Boot{Services: []registry.Change{threeZones(1, nil)}})
		s.run(time.Minute, all()...)
		s.set.SubmitChange(changed(2, silenceCounts))
		s.run(130*time.Second, all()...)
		s.expectSteps("shadow []", "zones [a]", "zones [a b]")
		quiet := all(5, 6, 7) // the others of zone b are silent from now on
		s.run(10*time.Second, quiet...)
		if v := s.publisher.Snapshot().Get(checkout); !v.Guard.Tripped || v.Guard.Serving != 9 || v.ListedCount != 12 {
			t.Errorf("before it is undone: %+v, %d listed", v.Guard, v.ListedCount)
		}
		s.run(15*time.Second, quiet...)
		s.expectSteps("shadow []", "zones [a]", "zones [a b]", "refused []")
		if r := s.rollout(); r.WouldWithdraw != 3 || r.Detail != "withdrew 3 of 12 where it was in effect: the guard of zone b tripped, and the contract before is back" {
			t.Errorf("undone: %+v", r)
		}
		if v := s.publisher.Snapshot().Get(checkout); v.Guard.Serving != 12 {
			t.Errorf("after it was undone: %+v", v.Guard)
		}
		if last := s.told[len(s.told)-1]; last != `"" 0` {
			t.Errorf("probers were told last %q", last)
		}
		s.stop()
	})
}

// TestAFaultIsNotTheContracts: what both contracts see stops no rollout.
func TestAFaultIsNotTheContracts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaged(t)
		s.start(Boot{Services: []registry.Change{threeZones(1, nil)}})
		s.run(time.Minute, all()...)
		s.set.SubmitChange(changed(2, silenceCounts))
		s.run(20*time.Second, all()...)
		for range 10 { // in the shadow
			s.say(health.NotServing, 1, 2, 3)
			s.run(4*time.Second, all(1, 2, 3)...)
		}
		s.run(65*time.Second, all()...)
		for range 10 { // and in the zones
			s.say(health.NotServing, 1, 2, 3, 5, 6, 7)
			s.run(4*time.Second, all(1, 2, 3, 5, 6, 7)...)
		}
		s.run(3*time.Minute, all()...)
		s.expectSteps("shadow []", "zones [a]", "zones [a b]", "zones [a b c]", "done []")
		s.stop()
	})
}

// TestWhatNeedsNoRollout: a new service's contract, one where nothing is
// observed, who may serve, how zones are preferred, and a guard that is raised.
func TestWhatNeedsNoRollout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaged(t)
		s.start(Boot{})
		s.set.SubmitChange(threeZones(1, silenceCounts))
		s.run(3*time.Second, all()...)
		s.set.SubmitChange(changed(2, func(c *registry.Contract) {
			silenceCounts(c)
			c.Identities = []identity.ID{identity.MustParse("spiffe://example.org/ns/shop/sa/checkout")}
			c.Locality, c.GRPC, c.GuardPercent = registry.PreferZone, registry.FormFlat, 80
		}))
		s.run(2*time.Second, all()...)
		v := s.publisher.Snapshot().Get(checkout)
		if len(v.Identities) != 1 || !v.PreferZone || v.Forms[views.SizeGo] != views.Flat || v.Guard.Floor != 80 {
			t.Errorf("view %+v", v)
		}
		s.expectSteps()
		// In a contract that also judges otherwise these still do not wait, and a
		// guard that is lowered waits for the end.
		s.set.SubmitChange(changed(3, func(c *registry.Contract) { c.GuardPercent = 60 }))
		s.run(2*time.Second, all()...)
		if v := s.publisher.Snapshot().Get(checkout); v.PreferZone || v.Guard.Floor != 80 {
			t.Errorf("in shadow: prefers zones %v, guard %d", v.PreferZone, v.Guard.Floor)
		}
		s.run(5*time.Minute, all()...)
		if v := s.publisher.Snapshot().Get(checkout); v.Guard.Floor != 60 {
			t.Errorf("in effect: guard %d", v.Guard.Floor)
		}
		s.set.SubmitChange(changed(4, func(c *registry.Contract) { silenceCounts(c); c.GuardPercent = 90 }))
		s.run(2*time.Second, all()...)
		if v := s.publisher.Snapshot().Get(checkout); v.Guard.Floor != 90 {
			t.Errorf("a guard that is raised, in shadow: %d", v.Guard.Floor)
		}
		s.expectSteps("shadow []", "zones [a]", "zones [a b]", "zones [a b c]", "done []", "shadow []")
		// Where no class is supplied, no contract can withdraw anything.
		other := registry.Name{Namespace: "shop", Service: "static"}
		s.set.SubmitChange(rows(other, 4, 0, 0, 101, 102))
		s.run(2 * time.Second)
		c := rows(other, 5, 0, 0)
		c.Contract.Silence = registry.SilenceIneligible
		s.set.SubmitChange(c)
		s.run(2 * time.Second)
		if i, _, _ := s.set.Inspect(t.Context(), other); i.Rollout != nil {
			t.Errorf("rollout %+v", i.Rollout)
		}
		s.stop()
	})
}

// TestARolloutThatIsTakenBack: the contract before is put again, or yet another
// one, or the service goes.
func TestARolloutThatIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaged(t)
		s.start(Boot{Services: []registry.Change{threeZones(1, nil)}})
		quiet := all(1)
		s.run(time.Minute, quiet...)
		s.set.SubmitChange(changed(2, silenceCounts))
		s.run(65*time.Second, quiet...)
		s.expectListed(all(1)...)
		s.set.SubmitChange(changed(3, nil))
		s.run(2*time.Second, quiet...)
		s.expectListed(all()...)
		if r := s.rollout(); r != nil {
			t.Errorf("taken back: %+v", r)
		}
		s.set.SubmitChange(changed(4, silenceCounts))
		s.run(65*time.Second, quiet...)
		s.set.SubmitChange(changed(5, func(c *registry.Contract) { silenceCounts(c); c.ReturnHold = time.Minute }))
		s.run(2*time.Second, quiet...)
		if r := s.rollout(); r == nil || r.State != RolloutShadow || r.Revision != 5 {
			t.Errorf("another: %+v", r)
		}
		s.expectListed(all()...)
		gone := registry.Change{Name: checkout, Revision: 6, Removal: registry.ServiceDeleted}
		s.set.SubmitChange(gone)
		s.set.SubmitChange(threeZones(7, silenceCounts))
		s.run(65*time.Second, quiet...)
		if r := s.rollout(); r != nil {
			t.Errorf("made anew: %+v", r)
		}
		s.stop()
	})
}

// TestARolloutGoesOnAfterARestart: from its shadow, under the contract before.
func TestARolloutGoesOnAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaged(t)
		s.start(Boot{Services: []registry.Change{threeZones(1, nil)}})
		quiet := all(1)
		s.run(time.Minute, quiet...)
		s.set.SubmitChange(changed(2, silenceCounts))
		s.run(100*time.Second, quiet...)
		s.expectListed(all(1)...)
		var memories map[registry.Name][]byte
		s.locked(func() { memories = maps.Clone(s.memories) })
		s.stop()
		again := newStaged(t)
		again.start(Boot{Services: []registry.Change{threeZones(2, silenceCounts)}, Memories: memories})
		again.run(50*time.Second, quiet...)
		again.expectListed(all()...)
		if r := again.rollout(); r == nil || r.State != RolloutShadow {
			t.Errorf("after a restart: %+v", r)
		}
		again.run(20*time.Second, quiet...)
		again.expectListed(all(1)...)
		again.expectSteps("zones [a]")
		again.stop()
	})
}

// TestARolloutWaitsForTheBrake: while it is engaged nobody shows whom he would
// withdraw.
func TestARolloutWaitsForTheBrake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaged(t)
		s.start(Boot{Services: []registry.Change{threeZones(1, nil)}})
		s.run(time.Minute, all()...)
		s.set.SubmitChange(changed(2, silenceCounts))
		s.run(10*time.Second, all()...)
		braked := &health.Stance{Braked: true}
		for range 100 {
			s.set.observers.stance.Store(braked)
			s.run(time.Second, all()...)
		}
		s.expectSteps("shadow []")
		s.set.observers.stance.Store(&health.Stance{})
		s.run(5*time.Second, all()...)
		s.expectSteps("shadow []", "zones [a]")
		s.stop()
	})
}

// TestARolloutOfNobody: everybody goes while a changed contract is in its shadow.
// There is no zone to go through, so the contract is in effect, for whoever comes.
func TestARolloutOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaged(t)
		s.start(Boot{Services: []registry.Change{threeZones(1, nil)}})
		s.run(time.Minute, all()...)
		s.set.SubmitChange(changed(2, silenceCounts))
		s.run(5*time.Second, all()...)
		s.set.SubmitChange(contract(removal(checkout, 3, registry.Deregistered, all()...), silenceCounts))
		s.run(5 * time.Minute)
		s.expectSteps("shadow []", "done []")
		if r := s.rollout(); r != nil {
			t.Errorf("at the end: %+v", r)
		}
		s.stop()
	})
}

// TestZonesOfNoNameComeLast: what holds for instances without a zone holds
// everywhere, so theirs is the last step.
func TestZonesOfNoNameComeLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaged(t)
		c := threeZones(1, nil)
		for k := range c.Instances[:4] {
			c.Instances[k].Row.Zone = ""
		}
		s.start(Boot{Services: []registry.Change{c}})
		s.run(time.Minute, all()...)
		s.set.SubmitChange(changed(2, silenceCounts))
		s.run(5*time.Minute, all()...)
		s.expectSteps("shadow []", "zones [b]", "zones [b c]", "zones [ b c]", "done []")
		s.locked(func() {
			want := []string{`"" 0`, `"" 0`, `"b" 1`, `"c" 1`, `"" 1`}
			if !slices.Equal(s.told, want) {
				t.Errorf("probers were told %q, want %q", s.told, want)
			}
		})
		s.stop()
	})
}
