package health

import (
	"slices"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	// recentSight is how fresh a result is that speaks of a prober's eyes now:
	// twice the default interval.
	recentSight = 4 * time.Second
	// recount is how often targets are counted while no result turns: for what
	// only time changes, silence and recency.
	recount = time.Second
	// tidyAbove is how many probers that are gone may be remembered beside as many
	// as there are.
	tidyAbove = 16
)

// sighting is what a prober sees of a target.
type sighting uint8

const (
	seesNothing sighting = iota // no result yet
	seesGood
	seesFailing // time-outs and unreachables
	seesOther   // an answer, and not a good one
)

// sightOf sorts results by what they say about the prober's own eyes: a refusal
// is an answer (HEALTH.md §6).
func sightOf(r ProbeResult) sighting {
	switch r {
	case NoResult:
		return seesNothing
	case ProbeOK:
		return seesGood
	case ProbeTimeout, ProbeUnreachable:
		return seesFailing
	default:
		return seesOther
	}
}

// tallying is what the evaluator keeps for the region's observers. What probers
// see is kept apart from the instances, in one piece of memory: a region's
// targets are counted several times a second.
type tallying struct {
	withdrawn map[string]int          // by zone, since the last tally
	waiting   map[registry.UID]string // whose withdrawal the brake holds, and their zones

	rows    []targetRow
	probers map[string]uint16 // places in who
	who     []Prober
	zones   map[string]uint16 // places in zoneNames
	names   []string

	turned  bool // a prober's word turned since the last count
	next    time.Time
	counted time.Time    // when counts last changed
	cells   []ProbeCell  // every prober and zone, in the order of who and names
	counts  []ProbeCount // by cell
}

// targetRow is an instance as probers see it, as of its newest sample.
type targetRow struct {
	i       *instance
	eyes    [maxProbers]eye
	timeout int32 // of a probe, in ms
	zone    uint16
	n       uint8 // eyes in use
	counts  bool  // a member that is not about to go: others say nothing of a prober's eyes
}

// eye is one prober's newest word.
type eye struct {
	newest time.Duration // since the evaluator's start
	limit  int32         // of its silence, in ms
	prober uint16
	sight  sighting
}

func (y *eye) speaks(now time.Duration) bool {
	return now < y.newest+time.Duration(y.limit)*time.Millisecond
}

// noteWithdrawal counts a member that R3, R4 or R5 took out just now: the
// region's brake looks at how many they are.
func (e *Evaluator) noteWithdrawal(i *instance) {
	if e.tally.withdrawn == nil {
		e.tally.withdrawn = make(map[string]int)
	}
	e.tally.withdrawn[i.row.Zone]++
}

// noteWaiting says whether a member's withdrawal waits for the region's brake.
// It may be said again and again; an instance that goes needs no word.
func (e *Evaluator) noteWaiting(i *instance, waits bool) {
	if !waits {
		delete(e.tally.waiting, i.row.UID)
		return
	}
	if e.tally.waiting == nil {
		e.tally.waiting = make(map[registry.UID]string)
	}
	e.tally.waiting[i.row.UID] = i.row.Zone
}

// hearProbe records a probe's result on the instance.
func (e *Evaluator) hearProbe(i *instance, s *Sample) {
	if i.probes.hear(s, &i.terms.probes) {
		e.tally.turned = true
	}
	e.watch(i)
}

// watch writes down what probers see of the instance.
func (e *Evaluator) watch(i *instance) {
	t, p := &e.tally, &i.probes
	if p.row == 0 {
		t.rows = append(t.rows, targetRow{i: i})
		p.row = int32(len(t.rows))
	}
	r := &t.rows[p.row-1]
	r.counts = i.member && !i.draining()
	r.timeout = int32(i.terms.probes.timeout.Milliseconds())
	if int(r.zone) >= len(t.names) || t.names[r.zone] != i.row.Zone {
		r.zone = place(&t.zones, &t.names, i.row.Zone, i.row.Zone)
	}
	r.n = uint8(len(p.slots))
	for k := range p.slots {
		slot, y := &p.slots[k], &r.eyes[k]
		if int(y.prober) >= len(t.who) || t.who[y.prober] != slot.prober {
			y.prober = place(&t.probers, &t.who, slot.prober.Name, slot.prober)
			if t.who[y.prober] != slot.prober { // it moved to another zone
				t.who[y.prober], t.cells, t.counts = slot.prober, nil, nil
			}
		}
		y.newest = p.time(slot.newest).Sub(e.start)
		y.limit = int32(time.Duration(i.terms.probes.limit(p.slow)).Milliseconds())
		y.sight = sightOf(slot.result)
	}
}

// place finds where something is kept, or keeps it.
func place[T any](places *map[string]uint16, all *[]T, key string, x T) uint16 {
	k, known := (*places)[key]
	if !known {
		if *places == nil {
			*places = make(map[string]uint16)
		}
		k = uint16(len(*all))
		(*places)[key] = k
		*all = append(*all, x)
	}
	return k
}

// untally forgets an instance that is gone.
func (e *Evaluator) untally(i *instance) {
	delete(e.tally.waiting, i.row.UID)
	if i.probes.row > 0 {
		e.tally.drop(int(i.probes.row) - 1)
	}
}

// drop takes out a row; the last one takes its place.
func (t *tallying) drop(k int) {
	last := len(t.rows) - 1
	t.rows[k].i.probes.row = 0
	if k != last {
		t.rows[k] = t.rows[last]
		t.rows[k].i.probes.row = int32(k) + 1
	}
	t.rows[last] = targetRow{}
	t.rows = t.rows[:last]
}

// Tally counts what the region's observers have to know of the service. Whom it
// counts as withdrawn it does not name again.
func (e *Evaluator) Tally(now time.Time) Tally {
	t := &e.tally
	if t.turned || !now.Before(t.next) {
		t.turned, t.next = false, now.Add(recount)
		e.countTargets(now)
	}
	withdrawn := t.withdrawn
	t.withdrawn = nil
	return Tally{
		Name: e.name, Members: e.members, Withdrawn: withdrawn, Waiting: e.waiting(),
		Cells: t.cells, Probes: t.counts, Counted: t.counted,
	}
}

// waiting counts by zone those whose withdrawal waits.
func (e *Evaluator) waiting() map[string]int {
	if len(e.tally.waiting) == 0 {
		return nil
	}
	by := make(map[string]int)
	for _, zone := range e.tally.waiting {
		by[zone]++
	}
	return by
}

func (e *Evaluator) countTargets(now time.Time) {
	e.tidy()
	t := &e.tally
	at := now.Sub(e.start)
	counts := make([]ProbeCount, len(t.who)*len(t.names))
	for k := 0; k < len(t.rows); {
		if t.count(&t.rows[k], at, counts) {
			k++
		} else {
			t.drop(k) // nobody looks at it any more
		}
	}
	if len(t.cells) != len(counts) {
		t.cells = make([]ProbeCell, 0, len(counts))
		for _, p := range t.who {
			for _, zone := range t.names {
				t.cells = append(t.cells, ProbeCell{Prober: p, Zone: zone})
			}
		}
	}
	if !slices.Equal(counts, t.counts) {
		t.counts, t.counted = counts, now
	}
}

// count adds an instance's row to the counts, and reports whether any prober
// still speaks of it.
func (t *tallying) count(r *targetRow, now time.Duration, counts []ProbeCount) (watched bool) {
	for k := range r.eyes[:r.n] {
		y := &r.eyes[k]
		if !y.speaks(now) {
			continue
		}
		watched = true
		if !r.counts {
			continue
		}
		n := &counts[int(y.prober)*len(t.names)+int(r.zone)]
		n.Targets++
		recent := now-y.newest <= recentSight
		if recent {
			n.Recent++
		}
		switch y.sight {
		case seesGood:
			n.Good++
		case seesFailing:
			n.Failing++
			if recent {
				n.RecentFailing++
			}
			switch t.second(r, y, now) {
			case seesGood:
				n.Contested++
			case seesFailing:
				n.Agreed++
			}
		}
	}
	return watched
}

// second is what probers of other zones see of a target that one fails. Good
// counts only where it was seen after the failed probe began: what was good
// before contradicts nobody.
func (t *tallying) second(r *targetRow, failed *eye, now time.Duration) sighting {
	began := failed.newest - time.Duration(r.timeout)*time.Millisecond
	found := seesNothing
	for k := range r.eyes[:r.n] {
		y := &r.eyes[k]
		if t.who[y.prober].Zone == t.who[failed.prober].Zone || !y.speaks(now) {
			continue
		}
		if y.sight == seesGood && y.newest >= began {
			return seesGood
		}
		if y.sight == seesFailing {
			found = seesFailing
		}
	}
	return found
}

// tidy forgets probers that look at nothing here any more, once they are most.
func (e *Evaluator) tidy() {
	t := &e.tally
	used := make([]bool, len(t.who))
	n := 0
	for k := range t.counts {
		if p := k / len(t.names); t.counts[k].Targets > 0 && !used[p] {
			used[p] = true
			n++
		}
	}
	if len(t.who) < 2*n+tidyAbove {
		return
	}
	t.probers, t.who, t.zones, t.names, t.cells, t.counts = nil, nil, nil, nil, nil, nil
	for k := range t.rows {
		e.watch(t.rows[k].i)
	}
}
