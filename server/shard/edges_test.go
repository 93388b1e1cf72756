package shard

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// A shard that has loaded while another has not judges already; whoever could
// not renew before the server was ready has a full term from then on.
func TestLeasesCountFromReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := registry.Name{Namespace: "shop", Service: "slow"}
		r := newRegion(t, func(c *Config) {
			publish := c.Publish
			c.Publish = func(now time.Time, x views.Candidate) views.Result {
				if x.Name == slow {
					time.Sleep(20 * time.Second)
				}
				return publish(now, x)
			}
		})
		if r.set.of(slow) == r.set.of(checkout) {
			t.Fatal("both are of one shard")
		}
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 25*time.Second, 0, 1, 2), rows(slow, 1, 0, 0, 9)}})
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if !r.publisher.Snapshot().Complete() {
			t.Fatal("not complete")
		}
		r.run(24 * time.Second)
		r.run(10*time.Second, 1)
		r.expectListed(1)
		if len(r.transitions) == 0 || r.at[len(r.at)-1].Before(r.at[0].Add(20*time.Second+25*time.Second)) {
			t.Errorf("%v: the last at %s, the first at %s", r.transitions, r.at[len(r.at)-1], r.at[0])
		}
		r.stop()
	})
}

// What waits in the inbox when the server stops is in the last checkpoint.
func TestTheLastWordIsSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 0, self)}})
		r.set.SubmitChange(rows(checkout, 2, 0, self, 1))
		synctest.Wait()
		r.say(health.Serving, 1) // waits for a tick that never comes
		r.stop()
		again := newRegion(t, nil)
		again.start(Boot{Services: []registry.Change{rows(checkout, 2, 0, self, 1)}, Memories: r.memories})
		again.expectListed(1)
		again.stop()
	})
}

// Rows that came before a deletion in one delivery are gone with it.
func TestRowsBeforeADeletionAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.set.SubmitChange(rows(checkout, 3, 0, 0, 5))
		r.set.SubmitChange(registry.Change{Name: checkout, Revision: 4, Removal: registry.ServiceDeleted})
		r.set.SubmitChange(rows(checkout, 5, 0, 0, 7))
		r.start(Boot{Services: []registry.Change{rows(checkout, 2, 0, 0, 1, 2)}})
		time.Sleep(time.Second)
		r.expectListed(7)
		r.stop()
	})
}

// Of several words against itself the newest is kept, in whatever order they come.
func TestTheNewestWordIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newInbox(1)
		now := time.Now()
		for _, at := range []time.Duration{0, 2 * time.Second, time.Second} {
			b.putSamples(checkout, []health.Sample{{UID: 1, Class: registry.ClassSelf, Status: health.NotServing, At: now.Add(at)}})
		}
		kept := b.take().mail[checkout].urgent
		if s := kept[urgentKey{1, health.NotServing, ""}]; len(kept) != 1 || !s.At.Equal(now.Add(2*time.Second)) {
			t.Errorf("kept %+v", kept)
		}
	})
}
