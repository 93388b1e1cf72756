package main

import (
	"fmt"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

const (
	fuzzLasts = 20 * time.Minute // of faults
	fuzzCalm  = 45 * time.Minute // after the last one (HEALTH.md §10)
)

// fuzzRow is a random history of faults and repairs, of instances, probers and
// callers, that ends with everything repaired.
func fuzzRow() row {
	return row{
		name: "fuzz", about: "random histories, 45 min after their last fault: nothing stuck out, no guard, no unfinished ramp, no list ever empty",
		seeds: 300, lasts: fuzzLasts + fuzzCalm,
		build: func(seed uint64) *world {
			w := estate(seed, func(s *setup) {
				s.zones = twelve[:4+int(seed%9)]
				s.callers = 2 + int(seed%7)
				s.rate = []float64{2, 20, 60}[seed%3]
				if seed%4 == 0 {
					s.lease = 25 * time.Second
				}
				if seed%5 == 0 {
					s.supplies = registry.ClassSet(0).With(registry.ClassProbe).With(registry.ClassSelf)
				}
			})
			for at := 30 * time.Second; at < fuzzLasts; at += time.Duration(w.rng.Int64N(int64(40 * time.Second))) {
				w.at(at, (*world).mishap)
			}
			return w.at(fuzzLasts, (*world).repairAll)
		},
		judge: settledDown,
	}
}

// mishap does something bad, or repairs something.
func (w *world) mishap() {
	pick := func() *instance { return w.instances[w.rng.IntN(len(w.instances))] }
	set := func(c condition) { w.set(pick(), c) }
	switch w.rng.IntN(12) {
	case 0:
		set(condition{fails: w.rng.Float64(), self: health.Serving})
	case 1:
		set(condition{refuses: true})
	case 2:
		set(condition{hangs: true})
	case 3:
		set(condition{self: health.NotServing})
	case 4:
		set(condition{self: health.NoStatus})
	case 5:
		set(condition{probeFails: true, self: health.Serving})
	case 6:
		w.probers[w.rng.IntN(len(w.probers))].cutOff = w.rng.IntN(2) == 0
	case 7:
		w.callers[w.rng.IntN(len(w.callers))].broken = w.rng.IntN(2) == 0
	case 8:
		w.add([]string{"a", "b", "c"}[w.rng.IntN(3)], 0)
	case 9:
		if len(w.instances) > 2 {
			w.remove(pick(), registry.Deregistered)
		}
	default:
		set(condition{self: health.Serving})
	}
}

func (w *world) repairAll() {
	for _, i := range w.instances {
		w.set(i, condition{self: health.Serving})
	}
	for _, p := range w.probers {
		p.cutOff = false
	}
	for _, c := range w.callers {
		c.broken = false
	}
}

func settledDown(w *world) []string {
	var miss []string
	for _, v := range w.eval.Verdicts() {
		if v.State != health.Eligible || !v.Member || v.Quarantined || v.Ramping {
			miss = append(miss, fmt.Sprintf("%s is %s (member %t, quarantined %t, ramping %t) by %s, out by %s: %s",
				v.UID, v.State, v.Member, v.Quarantined, v.Ramping, v.Rule, v.OutBy, v.Detail))
		}
	}
	if len(w.listed) != len(w.instances) {
		miss = append(miss, fmt.Sprintf("%d of %d are listed", len(w.listed), len(w.instances)))
	}
	for _, m := range w.listed {
		if m.Weight != m.BaseWeight {
			miss = append(miss, fmt.Sprintf("%s has weight %d of %d", m.UID, m.Weight, m.BaseWeight))
		}
	}
	if v := w.publisher.Snapshot().Get(serviceName); v == nil || v.Guard.Tripped || v.Confidence == views.ConfidenceDegraded {
		miss = append(miss, "the guard is tripped")
	}
	return append(miss, none(w, "empty list", w.seen.empties)...)
}
