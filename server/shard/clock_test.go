package shard

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// The wall clock moves by ten years while the server is down: a guard that was
// about to be released is, after what was left of its time and neither at once
// nor ten years later.
func TestTheClockStepsOverARestart(t *testing.T) {
	const years = 10 * 365 * 24 * time.Hour
	all := []registry.UID{1, 2, 3, 4}
	boot := Boot{Services: []registry.Change{rows(checkout, 1, 0, self, all...)}}
	for _, step := range []struct {
		name          string
		before, after time.Duration // of each process's start after the bubble's
	}{{"backwards", years, 0}, {"forwards", 0, years}} {
		t.Run(step.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(step.before)
				r := newRegion(t, nil)
				r.start(boot)
				r.run(2*time.Second, all...)
				r.say(health.NotServing, 1, 2, 3)
				r.run(20*time.Second, all...) // back after 15 s, so that 30 s of holding up by itself have begun
				if v := r.view(); !v.Guard.Tripped || v.Guard.Serving != 4 {
					t.Fatalf("guard: %+v", v.Guard)
				}
				r.stop()
				boot.Memories = r.memories
			})
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(step.after)
				r := newRegion(t, nil)
				r.start(boot)
				r.run(15*time.Second, all...)
				if v := r.view(); !v.Guard.Tripped {
					t.Error("released before its time")
				}
				r.run(20*time.Second, all...)
				if v := r.view(); v.Guard.Tripped {
					t.Errorf("still held: %+v", v.Guard)
				}
				r.stop()
			})
		})
	}
}
