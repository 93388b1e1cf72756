package shard

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// TestALiftedQuarantineRamps: whom the guard lists in spite of its quarantine climbs
// from then on. At the first step until the quarantine ends, it would serve a
// tenth, and the rest of the service the others' load.
func TestALiftedQuarantineRamps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		c := rows(checkout, 1, 0, self, 1, 2, 3, 4)
		c.Contract.Quarantine = registry.Quarantine{Changes: 2, Window: time.Hour, Hold: 30 * time.Minute, MaxHold: time.Hour}
		r.start(Boot{Services: []registry.Change{c}})
		r.run(3*time.Second, 1, 2, 3, 4)
		for uid := registry.UID(1); uid <= 2; uid++ {
			r.say(health.NotServing, uid)
			r.run(20*time.Second, 1, 2, 3, 4)
		}
		r.expectListed(3, 4)
		if slices.Contains(r.incidents, "quarantine-lifted") {
			t.Errorf("incidents %v", r.incidents)
		}
		r.say(health.NotServing, 3) // below the floor without one of the two
		r.run(2*time.Second, 1, 2, 4)
		r.expectListed(1, 4)
		if w := r.weight(1); w != 10 {
			t.Errorf("lifted at weight %d, want the first step", w)
		}
		r.run(25*time.Second, 1, 2, 4)
		if w := r.weight(1); w < 40 || w > 55 {
			t.Errorf("25 s later weight %d, want the third step or the fourth", w)
		}
		r.run(45*time.Second, 1, 2, 4)
		r.expectListed(1, 4)
		if w := r.weight(1); w != 100 {
			t.Errorf("after its ramp weight %d", w)
		}
		r.stop()
	})
}

func (r *region) weight(uid registry.UID) uint32 {
	for _, m := range r.publisher.Snapshot().Get(checkout).Members {
		if m.UID == uid {
			return m.Weight
		}
	}
	return 0
}
