package views

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// checkRamps: in a zone of which more than half ramps, nobody carries more than
// twice the mean unless all who may be raised are at their full weight; nobody
// is raised whose step waits, and no raised weight is taken back.
func (e *estate) checkRamps(w *world, v *View) {
	zones := map[string][]*Member{}
	for _, m := range v.Members {
		d := w.verdicts[m.UID]
		if w.rows[m.UID] == nil || !d.Member || d.Draining || d.Overridden || !m.Listed || m.LastResort {
			continue
		}
		zones[m.Zone] = append(zones[m.Zone], m)
	}
	for zone, members := range zones {
		if !overrun(w, members) {
			continue
		}
		for _, m := range members {
			if d := w.verdicts[m.UID]; ramps(d) && !d.RampHeld && m.Weight < fullWeight(d, m) {
				e.t.Fatalf("zone %s is overrun while %v is at w%d of %d:\n%s", zone, m.UID, m.Weight, fullWeight(d, m), describeView(v))
			}
		}
	}
	e.checkNotTakenBack(w, v)
}

// overrun reports whether more than half ramps and somebody carries more than
// twice the mean.
func overrun(w *world, members []*Member) bool {
	var ramping, weights, bases int
	for _, m := range members {
		if ramps(w.verdicts[m.UID]) {
			ramping++
		}
		weights, bases = weights+int(m.Weight), bases+int(m.BaseWeight)
	}
	for _, m := range members {
		if int(m.Weight)*bases > 2*weights*int(m.BaseWeight) {
			return 2*ramping > len(members)
		}
	}
	return false
}

func ramps(v health.Verdict) bool { return v.Ramping && v.State.Serving() }

func fullWeight(v health.Verdict, m *Member) uint32 {
	switch {
	case v.Full > 0:
		return min(v.Full, m.BaseWeight)
	case v.State == Degraded:
		return m.Weight
	}
	return m.BaseWeight
}

// raisedRamp is a weight above that of the ramp's own step, and the full weight
// at that time.
type raisedRamp struct{ weight, full uint32 }

// checkNotTakenBack: a member that was above its own ramp and whose ramp goes on
// does not fall, unless its full weight did.
func (e *estate) checkNotTakenBack(w *world, v *View) {
	raised := map[UID]raisedRamp{}
	for _, m := range v.Members {
		d := w.verdicts[m.UID]
		if !m.Listed || m.LastResort || m.Draining || !d.Member || d.Overridden || !ramps(d) || w.rows[m.UID] == nil {
			continue
		}
		full := fullWeight(d, m)
		if was, ok := w.raised[m.UID]; ok && (d.Full > 0 || d.State != Degraded) {
			wanted := min(was.weight, full)
			if full < was.full {
				wanted = was.weight * full / was.full // and its rounding
			}
			if m.Weight < wanted {
				e.t.Fatalf("%v was raised to w%d of %d and is at w%d of %d", m.UID, was.weight, was.full, m.Weight, full)
			}
			raised[m.UID] = was
		}
		if m.Weight > d.Weight {
			raised[m.UID] = raisedRamp{m.Weight, full}
		}
	}
	w.raised = raised
}

// TestLeastRaise: against trying every level in turn, with members of one base
// weight, as the rule's own words read.
func TestLeastRaise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{name: Name{Namespace: "shop", Service: "checkout"}}
		w.fresh(Memory{})
		ch := w.edit()
		in := Input{Change: ch}
		steps := []uint32{10, 25, 40, 55, 70, 85}
		var weights []uint32
		var free []bool
		ramping := 0
		for n := range rapid.IntRange(1, 20).Draw(t, "members") {
			v := health.Verdict{UID: UID(n + 1), State: Eligible, Member: true, Weight: 100, Full: 100, Rule: health.R7}
			if v.Ramping = rapid.IntRange(0, 3).Draw(t, "ramps") > 0; v.Ramping {
				v.Weight = rapid.SampledFrom(steps).Draw(t, "step")
				v.RampHeld = rapid.IntRange(0, 4).Draw(t, "held") == 0
				ramping++
			}
			weights, free = append(weights, v.Weight), append(free, v.Ramping && !v.RampHeld)
			ch.Instances = append(ch.Instances, registry.InstanceChange{UID: v.UID, Row: &registry.Instance{UID: v.UID, Service: w.name, Weight: 100, Zone: "a"}})
			in.Verdicts = append(in.Verdicts, v)
		}
		c, _ := w.a.Apply(scenarioStart, in)
		want := weights
		if 2*ramping > len(weights) {
			want = leastRaise(weights, free)
		}
		for n, m := range c.View.Members {
			if m.Weight != want[n] {
				t.Fatalf("weights %v, free %v: %v has w%d, wanted %v", weights, free, m.UID, m.Weight, want)
			}
		}
	})
}

func leastRaise(weights []uint32, free []bool) []uint32 {
	for level := uint32(0); ; level++ {
		var sum, highest uint32
		out := make([]uint32, len(weights))
		for n, w := range weights {
			if free[n] {
				w = max(w, level)
			}
			out[n], sum, highest = w, sum+w, max(highest, w)
		}
		if int(highest)*len(out) <= 2*int(sum) || level == 100 {
			return out
		}
	}
}
