package main

import (
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// afterRepair is how long after its repair an instance may still be taken out:
// evidence of the fault is on its way.
const afterRepair = 10 * time.Second

// detection is one fault and what became of it.
type detection struct {
	uid   registry.UID
	fault time.Time
	since map[netip.Addr]*count // by reporter: calls to it since the fault, not decayed
	// provable is when callers' reports since the fault alone would have put it
	// over the line: what passes from there is the damping that memory adds.
	provable time.Time
	// hard is when it was certain: its own word, or a second prober's refused
	// connection.
	hard      time.Time
	refusedBy string
	verdict   time.Time
	rule      health.Rule
	published time.Time // callers are not given it any more
}

type count struct{ calls, failures float64 }

// record is what a run saw.
type record struct {
	open       map[registry.UID]*detection // faults that go on
	closed     map[registry.UID]time.Time  // when the last one was repaired
	detections []*detection
	outs       map[registry.UID]time.Time // ineligible since
	wrong      []string                   // verdicts on instances that nothing was wrong with
	verdicts   int                        // changes from eligible to degraded or ineligible
	trips      int
	empties    int
	last       map[views.IncidentKind]int
	byCallers  int // most instances out by callers' word at one time
	outBy      map[registry.UID]health.Rule
}

func (r *record) broke(uid registry.UID, at time.Time) {
	if r.open == nil {
		r.open, r.closed = make(map[registry.UID]*detection), make(map[registry.UID]time.Time)
	}
	if r.open[uid] == nil {
		d := &detection{uid: uid, fault: at, since: make(map[netip.Addr]*count)}
		r.open[uid] = d
		r.detections = append(r.detections, d)
	}
}

func (r *record) repaired(uid registry.UID, at time.Time) {
	if r.open[uid] != nil {
		delete(r.open, uid)
		r.closed[uid] = at
	}
}

// noteSample looks for what makes a fault certain.
func (r *record) noteSample(s *health.Sample, now time.Time) {
	d := r.open[s.UID]
	switch {
	case d == nil || !d.hard.IsZero():
	case s.Class == registry.ClassSelf && s.Status == health.NotServing:
		d.hard = now
	case s.Result == health.ProbeRefused && d.refusedBy == "":
		d.refusedBy = s.Prober.Name
	case s.Result == health.ProbeRefused && d.refusedBy != s.Prober.Name:
		d.hard = now
	}
}

// noteReport follows what reports since a fault say of it.
func (w *world) noteReport(o *health.Outcomes) {
	if len(w.seen.open) == 0 {
		return
	}
	for k := range o.Entries {
		e := &o.Entries[k]
		d := w.seen.open[e.UID]
		if d == nil || !d.provable.IsZero() {
			continue
		}
		c := d.since[o.Reporter.Addr]
		if c == nil {
			c = &count{}
			d.since[o.Reporter.Addr] = c
		}
		c.calls += float64(max(e.Issued, e.Failed+e.OK))
		c.failures += float64(e.Failed)
		if d.overTheLine(len(w.callers), w.background) {
			d.provable = w.now
		}
	}
}

// overTheLine is the rule of HEALTH.md §2 on undecayed counts: all callers count,
// and siblings fail at the background's rate.
func (d *detection) overTheLine(counting int, background float64) bool {
	against := 0
	var all count
	m := max(background, 0.02)
	for _, c := range d.since {
		if c.calls < 5 {
			continue
		}
		score := c.failures / c.calls
		if score >= 0.20 && c.failures >= 2 && score-m >= max(0.20, 4*math.Sqrt(m*(1-m)/(2*c.calls))) {
			against++
			all.calls += c.calls
			all.failures += c.failures
		}
	}
	return against >= 2 && 2*against > counting && all.failures >= 8
}

func (r *record) transitions(w *world, all []health.Transition) {
	for _, t := range all {
		if t.Removal != registry.NotRemoved {
			delete(r.outs, t.UID)
			delete(r.outBy, t.UID)
			continue
		}
		out := t.To == health.Ineligible && t.Member
		if !out {
			delete(r.outs, t.UID)
			delete(r.outBy, t.UID)
		}
		if t.From == health.Eligible && (t.To == health.Degraded || t.To == health.Ineligible) {
			r.verdict(w, t)
		}
		if out {
			r.outs[t.UID] = w.now
			if r.outBy == nil {
				r.outBy = make(map[registry.UID]health.Rule)
			}
			r.outBy[t.UID] = t.Rule
			n := 0
			for _, rule := range r.outBy {
				if rule == health.R4 {
					n++
				}
			}
			r.byCallers = max(r.byCallers, n)
		}
	}
}

func (r *record) verdict(w *world, t health.Transition) {
	r.verdicts++
	if d := r.open[t.UID]; d != nil {
		if d.verdict.IsZero() && t.To == health.Ineligible {
			d.verdict, d.rule = w.now, t.Rule
		}
		return
	}
	if at := r.closed[t.UID]; !at.IsZero() && w.now.Sub(at) < afterRepair {
		return
	}
	if i := w.byUID[t.UID]; i != nil && len(i.is.degraded) > 0 {
		return
	}
	r.wrong = append(r.wrong, fmt.Sprintf("%s %s -> %s by %s: %s", w.now.Sub(w.epoch), t.UID, t.To, t.Rule, t.Detail))
}

func (r *record) incidents(_ *world, all []views.Incident) {
	for _, i := range all {
		if r.last == nil {
			r.last = make(map[views.IncidentKind]int)
		}
		r.last[i.Kind]++
		if i.Kind == views.GuardTripped {
			r.trips++
		}
	}
}

func (r *record) published(w *world, v *views.View) {
	if v.ListedCount == 0 {
		r.empties++
	}
	for uid, d := range r.open {
		if !d.verdict.IsZero() && d.published.IsZero() && !given(v, uid) {
			d.published = w.now
		}
	}
}

// given reports whether callers are given the instance; what the guard lists at
// weight 1 because it must not undo a finding does not count.
func given(v *views.View, uid registry.UID) bool {
	for _, m := range v.Members {
		if m.UID == uid {
			return m.Listed && !m.LastResort
		}
	}
	return false
}

// share is the part of the traffic that a set of instances is given now.
func (w *world) share(of func(*instance) bool) float64 {
	var part, all float64
	for _, m := range w.listed {
		all += float64(m.Weight)
		if i := w.byUID[m.UID]; i != nil && of(i) {
			part += float64(m.Weight)
		}
	}
	if all == 0 {
		return 0
	}
	return part / all
}

// isOut reports whether an instance is out by its verdict.
func (w *world) isOut(i *instance) bool { return !w.seen.outs[i.uid].IsZero() }

// lists reports whether callers are given an instance.
func (w *world) lists(i *instance) bool {
	for _, m := range w.listed {
		if m.UID == i.uid {
			return true
		}
	}
	return false
}
