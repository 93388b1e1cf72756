package health

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/registry"
)

// callersModel is HEALTH.md §2 read aloud: every outcome is kept, everything is
// worked out from the beginning. It keeps every reporter apart, so it is right for
// up to maxTrackedReporters of them.
type callersModel struct {
	terms   callersTerms
	cells   map[modelKey]*modelCell
	streams map[Reporter]*modelStream
	gapAt   time.Time
	pending []registry.UID // to be cleared
}

type modelKey struct {
	uid registry.UID
	by  Reporter
}

type modelOutcome struct {
	at                time.Time
	samples, failures float64
}

type modelCell struct {
	kind             ReporterKind
	heard            []modelOutcome
	newest, refused  time.Time
	accrued          float32
	accruedIn        int
	progress, credit int64
	progressIn       int
}

type modelStream struct {
	number int
	last   time.Time
}

func newCallersModel(t callersTerms) *callersModel {
	return &callersModel{terms: t, cells: map[modelKey]*modelCell{}, streams: map[Reporter]*modelStream{}}
}

func (m *callersModel) flush() {
	for _, uid := range m.pending {
		for k, x := range m.cells {
			if k.uid == uid {
				x.heard, x.accrued, x.refused = nil, 0, time.Time{}
			}
		}
	}
	m.pending = nil
}

func (m *callersModel) hear(o *Outcomes) {
	m.flush()
	s := m.streams[o.Reporter]
	if s == nil {
		s = &modelStream{number: -5}
		m.streams[o.Reporter] = s
	}
	late := o.At.Before(s.last)
	if !late {
		follows := !s.last.IsZero() && !s.last.Before(m.gapAt) && o.At.Sub(s.last) <= o.Interval*3/2
		if !follows {
			s.number += 10
		} else if len(o.Entries) > 0 {
			s.number++
		}
		s.last = o.At
	}
	var issued, weight float64
	for _, e := range o.Entries {
		if e.Weight > 0 {
			issued, weight = issued+float64(e.Issued), weight+float64(e.Weight)
		}
	}
	for _, e := range o.Entries {
		called := e.Issued+e.OK+e.Failed+e.Refused+e.InProgress > 0
		key := modelKey{e.UID, o.Reporter}
		x := m.cells[key]
		if x == nil {
			if !called && e.Weight == 0 {
				continue
			}
			x = &modelCell{kind: o.Kind}
			m.cells[key] = x
		}
		samples, failures := float64(e.OK)+float64(e.Failed), float64(e.Failed)
		switch o.Kind {
		case FromLibrary:
			if e.Refused > 0 && o.At.After(x.refused) {
				x.refused = o.At
			}
		case FromEnvoy:
			hidden := x.hidden(&e, s.number, late)
			samples, failures = samples+hidden, failures+hidden
		case FromGRPC:
			if m.terms.ignoreLRS {
				failures = 0
			}
			if !called && !late {
				if x.accruedIn != s.number-1 || e.Weight == 0 {
					x.accrued = 0
				}
				if e.Weight > 0 {
					x.accrued += float32(issued / weight * float64(e.Weight))
					x.accruedIn = s.number
				}
				if x.accrued >= 10 {
					charge := math.Min(50, float64(x.accrued))
					samples, failures, x.accrued = samples+charge, failures+charge, 0
				}
			}
		}
		if called {
			x.accrued = 0
		}
		if samples > 0 {
			x.heard = append(x.heard, modelOutcome{o.At, samples, failures})
			x.newest = laterOf(x.newest, o.At)
		}
	}
}

func (x *modelCell) hidden(e *Outcome, number int, late bool) float64 {
	ended := int64(e.Issued) - int64(e.OK) - int64(e.Failed)
	if late {
		return float64(max(0, ended-int64(e.InProgress)))
	}
	follows := x.progressIn == number-1
	if !follows {
		x.progress, x.credit = 0, 0
	}
	growth := int64(e.InProgress) - x.progress
	x.progress, x.progressIn = int64(e.InProgress), number
	lost := ended - growth
	if lost <= 0 {
		if follows {
			x.credit += max(0, growth-max(0, ended))
		}
		return 0
	}
	used := min(lost, x.credit)
	x.credit -= used
	return float64(lost - used)
}

func (m *callersModel) tallyOf(uid registry.UID, by Reporter, now time.Time) tally {
	var t tally
	if x := m.cells[modelKey{uid, by}]; x != nil {
		for _, o := range x.heard {
			w := math.Exp2(-now.Sub(o.at).Seconds() / m.terms.halfLife.Seconds())
			t.samples += o.samples * w
			t.failures += o.failures * w
		}
		if t.samples < weightless && now.Sub(x.newest) > staleAfter {
			return tally{}
		}
	}
	return t
}

// lines compares, and remembers how close it came to a line.
type lines struct{ closest float64 }

func (l *lines) reach(value, line float64) bool {
	l.closest = math.Min(l.closest, math.Abs(value-line))
	return value >= line
}

func (l *lines) under(value, line float64) bool {
	l.closest = math.Min(l.closest, math.Abs(value-line))
	return value <= line
}

func lowerMedian(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Clone(values)
	sort.Float64s(values)
	return values[(len(values)-1)/2]
}

// modelGroup is a reporter, or a pool of small ones.
type modelGroup struct {
	members []Reporter
	kinds   map[ReporterKind]bool
	sum     tally
}

// groups lists who speaks of an instance, and adds up what they say.
func (m *callersModel) groups(uid registry.UID, now time.Time, least float64, l *lines, r *callersReading) []*modelGroup {
	var groups []*modelGroup
	pools := map[uint64]*modelGroup{}
	for key, x := range m.cells {
		if key.uid != uid {
			continue
		}
		r.newest = laterOf(r.newest, x.newest)
		if !x.refused.IsZero() && now.Sub(x.refused) <= 10*time.Second {
			r.refusedBy++
		}
		t := m.tallyOf(uid, key.by, now)
		if age := now.Sub(x.newest); t.samples < 2*weightless && age > staleAfter-time.Second && age < staleAfter+sweepEvery {
			l.closest = 0 // may be forgotten, or not yet
		}
		r.samples += t.samples
		r.failures += t.failures
		if !l.reach(t.samples, 0.1) {
			continue
		}
		g := &modelGroup{kinds: map[ReporterKind]bool{}}
		if !l.reach(t.samples, least) {
			k := rankOf(&key.by) % poolCount
			if pools[k] == nil {
				pools[k] = g
			}
			g = pools[k]
		} else {
			groups = append(groups, g)
		}
		g.members = append(g.members, key.by)
		g.kinds[x.kind] = true
		g.sum.add(t)
	}
	for _, g := range pools {
		if l.reach(g.sum.samples, least) {
			groups = append(groups, g)
		}
	}
	return groups
}

// read also returns how close anything came to a line.
func (m *callersModel) read(uid registry.UID, uids []registry.UID, sibling func(registry.UID) bool, now time.Time, q callersQuestion) (callersReading, float64) {
	l := &lines{closest: math.Inf(1)}
	var r callersReading
	least, leastBad, allBad, allCount, primary := 5.0, 2.0, 8.0, 0.0, 20.0
	if q.trial {
		least, leastBad, allBad, allCount = 1, 1, 3, 5
	}
	if q.trial || q.ramping {
		primary = 5
	}
	var scores, excesses, medians []float64
	var together tally
	onlyGRPC, others := true, 0
	for _, g := range m.groups(uid, now, least, l, &r) {
		var siblings []float64
		for _, s := range uids {
			var sum tally
			for _, by := range g.members {
				sum.add(m.tallyOf(s, by, now))
			}
			if s != uid && sibling(s) && l.reach(sum.samples, 5) {
				siblings = append(siblings, sum.score())
			}
		}
		median, score := lowerMedian(siblings), g.sum.score()
		if len(siblings) == 0 || !l.under(median, 0.70) {
			continue
		}
		r.counting++
		scores, excesses, medians = append(scores, score), append(excesses, score-median), append(medians, median)
		c := math.Min(math.Max(median, 0.02), 0.5)
		need := math.Max(0.20, 4*math.Sqrt(c*(1-c)/(2*g.sum.samples)))
		bad, worse, enough := l.reach(score, m.terms.out), l.reach(score-median, need), l.reach(g.sum.failures, leastBad)
		switch {
		case bad && worse && enough:
			r.against++
			together.add(g.sum)
			onlyGRPC = onlyGRPC && len(g.kinds) == 1 && g.kinds[FromGRPC]
		case !g.kinds[FromGRPC]:
			others++
		}
	}
	r.score, r.excess, r.siblings = lowerMedian(scores), lowerMedian(excesses), lowerMedian(medians)
	r.good = r.counting > 0 && l.under(r.excess, m.terms.in)
	r.enough = l.reach(r.samples, primary) && r.counting >= 2
	r.few = !l.reach(r.samples, 10) || r.counting < 2
	r.application = r.against > 0 && onlyGRPC && others >= 2
	if r.against > 0 {
		badEnough, enough := l.reach(together.failures, allBad), l.reach(together.samples, allCount)
		r.over = r.against >= 2 && 2*r.against > r.counting && badEnough && enough
	}
	return r, l.closest
}

// The table and the model, told the same random history, must read the same, up to
// rounding, and except where something lies on a line.
func TestCallersReadAsTheSlowModelDoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		terms := defaultCallersTerms
		terms.halfLife = rapid.SampledFrom([]time.Duration{time.Second, 4 * time.Second, 20 * time.Second}).Draw(rt, "halfLife")
		terms.ignoreLRS = rapid.IntRange(0, 4).Draw(rt, "ignoreLRS") == 0
		h := &callersHistory{rt: rt, fleet: newCallersFleet(rapid.IntRange(2, 5).Draw(rt, "instances")), model: newCallersModel(terms)}
		h.fleet.table.configure(terms)
		for uid := range h.fleet.instances {
			h.uids = append(h.uids, uid)
		}
		slices.Sort(h.uids)
		h.bad = rapid.SampledFrom(h.uids).Draw(rt, "bad")
		h.base = rapid.SampledFrom([]int{0, 0, 5, 30, 80}).Draw(rt, "base")
		h.reporters = rapid.IntRange(1, 8).Draw(rt, "reporters")
		h.scale = rapid.SampledFrom([]int{2, 10, 60}).Draw(rt, "scale")
		for range rapid.IntRange(3, 14).Draw(rt, "ticks") {
			h.tick()
		}
	})
}

type callersHistory struct {
	rt        *rapid.T
	fleet     *callersFleet
	model     *callersModel
	uids      []registry.UID
	bad       registry.UID
	base      int // percent that fails everywhere
	reporters int
	scale     int
	last      time.Duration
}

func (h *callersHistory) tick() {
	rt, f := h.rt, h.fleet
	h.last = rapid.SampledFrom([]time.Duration{250 * time.Millisecond, 2 * time.Second, 2 * time.Second, 2 * time.Second, 7 * time.Second, 100 * time.Second}).Draw(rt, "step")
	f.now = f.now.Add(h.last)
	for k := range h.reporters {
		if rapid.IntRange(0, 9).Draw(rt, "reports") > 0 {
			h.report(k)
		}
	}
	outsider := registry.UID(rapid.IntRange(0, 2*len(h.uids)).Draw(rt, "outsider"))
	h.compare(func(uid registry.UID) bool { return uid != outsider })
	uid := rapid.SampledFrom(h.uids).Draw(rt, "of")
	switch rapid.IntRange(0, 12).Draw(rt, "then") {
	case 0:
		f.table.clear(f.instances[uid])
		h.model.pending = append(h.model.pending, uid)
	case 1:
		f.table.moved(f.instances[uid])
		for k, x := range h.model.cells {
			if k.uid == uid {
				x.accrued = 0
			}
		}
	case 2:
		f.table.drop(f.instances[uid])
		h.model.flush()
		for k := range h.model.cells {
			if k.uid == uid {
				delete(h.model.cells, k)
			}
		}
	case 3:
		f.table.gap(f.now)
		h.model.gapAt = f.now
	}
}

func (h *callersHistory) report(k int) {
	rt := h.rt
	o := &Outcomes{Reporter: caller(k), Kind: ReporterKind(k % 3), Interval: 2 * time.Second, At: h.fleet.now}
	if rapid.IntRange(0, 9).Draw(rt, "late") == 0 {
		o.At = o.At.Add(-time.Duration(rapid.IntRange(0, 5000).Draw(rt, "by")) * time.Millisecond)
	}
	uids := rapid.Permutation(h.uids).Draw(rt, "order")
	for _, uid := range uids {
		shape := rapid.IntRange(0, 9).Draw(rt, "shape")
		e := Outcome{UID: uid, Weight: 100}
		failing := h.base
		if uid == h.bad && k != 0 {
			failing = min(100, h.base+60)
		}
		n := rapid.IntRange(0, h.scale).Draw(rt, "calls")
		switch {
		case shape == 0:
			continue
		case shape == 1 || uid == h.bad && o.Kind == FromGRPC && shape < 8:
			if o.Kind == FromGRPC {
				e.Weight = uint32(rapid.IntRange(0, 1).Draw(rt, "held") * 50)
			}
		default:
			e.Failed = uint32((n*failing + rapid.IntRange(0, 99).Draw(rt, "round")) / 100)
			e.OK = uint32(n) - min(e.Failed, uint32(n))
			e.Issued = e.OK + e.Failed
			if o.Kind == FromEnvoy {
				e.InProgress = uint32(rapid.IntRange(0, 5).Draw(rt, "inProgress"))
				e.Issued += uint32(rapid.IntRange(0, 6).Draw(rt, "begun"))
			}
			if o.Kind == FromLibrary {
				e.Refused = e.Failed / 2
			}
		}
		o.Entries = append(o.Entries, e)
	}
	rt.Logf("reporter %d kind %d at %s: %+v", k, o.Kind, o.At.Sub(epoch), o.Entries)
	if refused := h.fleet.hear(o); refused != 0 {
		rt.Fatalf("%d entries refused", refused)
	}
	h.model.hear(o)
}

func (h *callersHistory) compare(sibling func(registry.UID) bool) {
	rt, f := h.rt, h.fleet
	h.model.flush()
	f.table.settle(f.now, func(i *instance) bool { return sibling(i.row.UID) })
	for _, uid := range h.uids {
		q := callersQuestion{trial: rapid.Bool().Draw(rt, "trial"), ramping: rapid.Bool().Draw(rt, "ramping")}
		got := f.table.read(f.instances[uid], f.now, q)
		want, closest := h.model.read(uid, h.uids, sibling, f.now, q)
		if err := sameReading(got, want, closest, h.model.terms.in); err != nil {
			rt.Fatalf("instance %d: %v\n got %+v\nwant %+v", uid, err, got, want)
		}
	}
}

func sameReading(got, want callersReading, closest, in float64) error {
	const epsilon = 0.02 // what was forgotten may have been worth
	if math.Abs(got.samples-want.samples) > epsilon || math.Abs(got.failures-want.failures) > epsilon {
		return fmt.Errorf("sums differ")
	}
	if !got.newest.Equal(want.newest) || got.refusedBy != want.refusedBy {
		return fmt.Errorf("times differ")
	}
	if closest < epsilon/4 {
		return nil
	}
	if math.Abs(got.score-want.score) > epsilon {
		return fmt.Errorf("scores differ")
	}
	if want.score > in && (math.Abs(got.excess-want.excess) > epsilon || math.Abs(got.siblings-want.siblings) > epsilon) {
		return fmt.Errorf("excesses differ")
	}
	got.newest, got.samples, got.failures, got.score, got.excess, got.siblings = want.newest, want.samples, want.failures, want.score, want.excess, want.siblings
	if got != want {
		return fmt.Errorf("decisions differ")
	}
	return nil
}
