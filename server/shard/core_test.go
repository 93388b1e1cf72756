package shard

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// What Evaluator, Assembler and Publisher make of the scenarios of HEALTH.md
// §10 together.

func (r *region) view() *views.View { return r.publisher.Snapshot().Get(checkout) }

// Two instances: one dies and is out, since half is not below the floor; the
// other dies too, and both stay listed.
func TestTwoInstancesDie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 5*time.Second, 0, 1, 2)}})
		r.run(10*time.Second, 1, 2)
		r.run(8*time.Second, 1)
		r.expectListed(1)
		if v := r.view(); v.Guard.Tripped {
			t.Errorf("guard at one of two: %+v", v.Guard)
		}
		r.run(20 * time.Minute)
		r.expectListed(1, 2)
		if v := r.view(); !v.Guard.Tripped || v.Confidence != views.ConfidenceDegraded {
			t.Errorf("guard with both dead: %+v, confidence %s", v.Guard, v.Confidence)
		}
		// i2 was given up, and the last member never is.
		if got := slices.Compact(r.aged); !slices.Equal(got, []registry.UID{2}) {
			t.Errorf("aged out %v, want i2 alone", got)
		}
		r.stop()
	})
}

// CASES C35: nothing is heard any more of ten instances; then seven of ten say
// that they do not serve.
func TestTheObservationPathFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := []registry.UID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
		r := newRegion(t, nil)
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 0, self, all...)}})
		r.run(10*time.Second, all...)
		r.run(time.Minute)
		r.expectListed(all...)
		for _, m := range r.view().Members {
			if m.State != health.Unknown {
				t.Errorf("%s is %s, want unknown", m.UID, m.State)
			}
		}
		r.run(5*time.Second, all...)
		r.say(health.NotServing, all[:7]...)
		r.run(2*time.Second, all[7:]...)
		r.expectListed(all...)
		if v := r.view(); !v.Guard.Tripped || v.Guard.Serving != 3 || v.Guard.Members != 10 {
			t.Errorf("guard: %+v", v.Guard)
		}
		if n := len(slices.DeleteFunc(slices.Clone(r.incidents), func(s string) bool { return s != "guard-tripped" })); n != 1 {
			t.Errorf("incidents %v, want one trip", r.incidents)
		}
		r.stop()
	})
}

// A bad deployment: the new are never good, the old leave; what is left is
// published as unknown, with an incident.
func TestBadDeploy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 0, self, 1, 2)}})
		r.run(5*time.Second, 1, 2)
		r.set.SubmitChange(rows(checkout, 2, 0, self, 3, 4))
		r.say(health.NotServing, 3, 4)
		r.run(10*time.Second, 1, 2)
		r.expectListed(1, 2)
		if n := len(r.view().Members); n != 2 {
			t.Errorf("%d members: an unadmitted instance is in the view", n)
		}
		r.set.SubmitChange(removal(checkout, 3, registry.Deregistered, 1, 2))
		r.expectListed(3, 4)
		v := r.view()
		if v.Confidence != views.ConfidenceDegraded || v.Members[0].State != health.Unknown {
			t.Errorf("confidence %s, state %s; want degraded, unknown", v.Confidence, v.Members[0].State)
		}
		if !slices.Contains(r.incidents, "unadmitted-only") {
			t.Errorf("incidents: %v", r.incidents)
		}
		r.run(5*time.Second, 3)
		r.expectListed(3)
		r.stop()
	})
}

// Whatever is submitted, from one writer and with any timing: each service's
// publications reach the feed with growing versions, each following the one
// before; and in the end the snapshot holds the rows that are there.
func TestAnySequenceOfChanges(t *testing.T) {
	names := []registry.Name{checkout, {Namespace: "shop", Service: "cart"}}
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.SliceOfN(rapid.IntRange(0, 7), 5, 60).Draw(rt, "operations")
		pauses := rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, time.Millisecond, 60 * time.Millisecond, time.Second}),
			len(seed), len(seed)).Draw(rt, "pauses")
		synctest.Test(t, func(t *testing.T) {
			r := newRegion(t, nil)
			r.start(Boot{})
			defer r.stop()
			revision, uid := uint64(0), registry.UID(0)
			live := make(map[registry.Name]map[registry.UID]bool)
			for k, op := range seed {
				revision++
				name := names[k%2]
				last, ok := lastOf(live[name])
				switch {
				case op == 0 && live[name] != nil:
					delete(live, name)
					r.set.SubmitChange(registry.Change{Name: name, Revision: revision, Removal: registry.ServiceDeleted})
				case op < 3 && ok:
					delete(live[name], last)
					r.set.SubmitChange(removal(name, revision, registry.Deregistered, last))
				case op == 3 && ok:
					time.Sleep(time.Second) // it was admitted: what says NOT_SERVING before is not
					r.set.Submit(name, []health.Sample{{
						UID: last, Class: registry.ClassSelf, Status: health.NotServing, At: time.Now(),
					}})
				default:
					uid++
					if live[name] == nil {
						live[name] = make(map[registry.UID]bool)
					}
					live[name][uid] = true
					r.set.SubmitChange(rows(name, revision, 0, 0, uid))
				}
				time.Sleep(pauses[k])
			}
			time.Sleep(5 * time.Second)
			synctest.Wait()
			r.checkFeed(t)
			if r.stale > 0 || r.gaps > 0 {
				t.Fatalf("%d stale candidates, %d gaps", r.stale, r.gaps)
			}
			for _, name := range names {
				var members []registry.UID
				v := r.publisher.Snapshot().Get(name)
				if (v != nil) != (live[name] != nil) {
					t.Fatalf("%s: published %v, exists %v", name, v != nil, live[name] != nil)
				}
				if v == nil {
					continue
				}
				for _, m := range v.Members {
					members = append(members, m.UID)
				}
				if want := slices.Sorted(maps.Keys(live[name])); !slices.Equal(members, want) {
					t.Fatalf("%s: members %v, want %v", name, members, want)
				}
			}
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}

func lastOf(uids map[registry.UID]bool) (registry.UID, bool) {
	if len(uids) == 0 {
		return 0, false
	}
	return slices.Max(slices.Collect(maps.Keys(uids))), true
}

// checkFeed looks at each service's publications as a feed saw them.
func (r *region) checkFeed(t *testing.T) {
	last := make(map[registry.Name]views.Publication)
	for _, p := range r.publications {
		before, seen := last[p.Name]
		if seen && !before.Version.Less(p.Version) {
			t.Fatalf("%s: version %s after %s", p.Name, p.Version, before.Version)
		}
		if p.Old != before.New {
			t.Fatalf("%s at %s: does not follow the publication before it", p.Name, p.Version)
		}
		last[p.Name] = p
	}
	for name, p := range last {
		if r.publisher.Snapshot().Get(name) != p.New {
			t.Fatalf("%s: the snapshot holds another view than the feed was told", name)
		}
	}
}
