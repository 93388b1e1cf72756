package shard

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// holding is a region that starts with checkout held as a former process had
// published it, its row unreadable.
func holding(t *testing.T) *region {
	former := newRegion(t, nil)
	former.start(Boot{Services: []registry.Change{rows(checkout, 1, 25*time.Second, self, 1, 2)}})
	former.run(time.Second, 1, 2)
	v := former.view()
	former.stop()
	r := newRegion(t, nil)
	if anew := r.publisher.Hold(v); anew != nil {
		v = anew.New
	}
	r.start(Boot{Held: map[registry.Name]*views.View{checkout: v}, Memories: former.memories,
		Lost: map[registry.Name][]*views.Member{checkout: v.Members[1:]}})
	r.expectListed(1, 2)
	return r
}

// A held service whose row is put again goes on: its instances are members
// before they have spoken, and are judged from then on.
func TestAHeldServiceIsPutAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holding(t)
		r.set.SubmitChange(registry.Change{Name: checkout, Revision: 5, Instances: []registry.InstanceChange{{UID: 2, Removal: registry.Deregistered}}})
		r.run(40 * time.Second)
		r.expectListed(1, 2)
		back := rows(checkout, 6, 25*time.Second, self, 1)
		back.DamagedRows = 1 // i2's own row does not decode either
		r.set.SubmitChange(back)
		r.run(time.Second)
		r.expectListed(1, 2)
		r.set.SubmitChange(rows(checkout, 7, 0, 0, 3))
		r.run(time.Second)
		r.expectListed(1, 3)
		for _, p := range r.publications {
			if p.New == nil || p.New.ListedCount == 0 || !p.Old.Version().Less(p.Version) {
				t.Errorf("published %d at %s over %s", p.New.ListedCount, p.Version, p.Old.Version())
			}
		}
		r.stop()
	})
}

// A held service that is deleted goes, and its memory with it.
func TestAHeldServiceIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holding(t)
		r.set.SubmitChange(registry.Change{Name: checkout, Revision: 5, Removal: registry.ServiceDeleted})
		r.run(time.Second)
		if v := r.view(); v != nil {
			t.Errorf("still published: %v", v.Version())
		}
		if n := len(r.publications); n != 1 || r.stale > 0 {
			t.Errorf("%d publications, %d stale candidates", n, r.stale)
		}
		r.stop()
	})
}

// A client that holds more than what was held gets a version of its own.
func TestAHeldServiceIsRestamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holding(t)
		before := r.view().Version()
		for range 2 {
			r.set.Restamp(checkout)
			r.run(time.Second)
		}
		if v := r.view(); !before.Less(v.Version()) || len(r.publications) != 1 || v.ListedCount != 2 {
			t.Errorf("%s after %s, in %d publications", v.Version(), before, len(r.publications))
		}
		r.set.SubmitChange(rows(checkout, 6, 0, 0, 1))
		r.run(time.Second)
		r.expectListed(1)
		r.stop()
	})
}
