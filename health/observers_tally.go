package health

import (
	"maps"
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

// tallying is what the evaluator keeps for the region's observers. Targets are
// counted anew, and only when a result turned or a second passed: counters that
// follow every change of an instance would have to be right at every such place.
type tallying struct {
	withdrawn map[string]int          // by zone, since the last tally
	waiting   map[registry.UID]string // whose withdrawal the brake holds, and their zones

	turned  bool // a prober's word turned since the last count
	watched bool // some instance has a prober
	next    time.Time
	counted time.Time // when probes last changed
	probes  map[ProbeCell]ProbeCount
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
		e.tally.turned, e.tally.watched = true, true
	}
}

// Tally counts what the region's observers have to know of the service. Whom it
// counts as withdrawn it does not name again.
func (e *Evaluator) Tally(now time.Time) Tally {
	t := &e.tally
	if t.watched && (t.turned || !now.Before(t.next)) {
		e.countTargets(now)
	}
	withdrawn := t.withdrawn
	t.withdrawn = nil
	return Tally{
		Name: e.name, Members: e.members, Withdrawn: withdrawn, Waiting: e.waiting(),
		Probes: t.probes, Counted: t.counted,
	}
}

// waiting counts by zone those whose withdrawal waits, and drops who is gone.
func (e *Evaluator) waiting() map[string]int {
	var by map[string]int
	for uid, zone := range e.tally.waiting {
		if e.instances[uid] == nil {
			delete(e.tally.waiting, uid)
			continue
		}
		if by == nil {
			by = make(map[string]int)
		}
		by[zone]++
	}
	return by
}

func (e *Evaluator) countTargets(now time.Time) {
	t := &e.tally
	t.turned, t.watched, t.next = false, false, now.Add(recount)
	c := targetCount{zones: make(map[string]int), probers: make(map[string]int)}
	for _, i := range e.instances {
		if len(i.probes.slots) == 0 {
			continue
		}
		t.watched = true
		// Who never was good, or is about to go, says nothing of a prober's eyes.
		if i.member && !i.draining() {
			c.add(i, now)
		}
	}
	if probes := c.cells(); !maps.Equal(probes, t.probes) {
		t.probes, t.counted = probes, now
	}
}

// targetCount is a table of counts by prober and zone.
type targetCount struct {
	zones, probers map[string]int // places in the table
	zoneNames      []string
	who            []Prober
	table          [][]ProbeCount // by prober, then zone; rows grow as zones are met
}

func (c *targetCount) add(i *instance, now time.Time) {
	zone, known := c.zones[i.row.Zone]
	if !known {
		zone = len(c.zoneNames)
		c.zones[i.row.Zone] = zone
		c.zoneNames = append(c.zoneNames, i.row.Zone)
	}
	p, t := &i.probes, &i.terms.probes
	m := p.moment(now)
	for k := range p.slots {
		r := &p.slots[k]
		if !p.speaks(r, m, t) {
			continue
		}
		n := c.cell(r.prober, zone)
		n.Targets++
		recent := r.newest >= m-moment(recentSight)
		if recent {
			n.Recent++
		}
		switch sightOf(r.result) {
		case seesGood:
			n.Good++
		case seesFailing:
			n.Failing++
			if recent {
				n.RecentFailing++
			}
			switch p.secondSight(k, m, t) {
			case seesGood:
				n.Contested++
			case seesFailing:
				n.Agreed++
			}
		}
	}
}

func (c *targetCount) cell(who Prober, zone int) *ProbeCount {
	k, known := c.probers[who.Name]
	if !known {
		k = len(c.who)
		c.probers[who.Name] = k
		c.who = append(c.who, who)
		c.table = append(c.table, nil)
	}
	for len(c.table[k]) <= zone {
		c.table[k] = append(c.table[k], ProbeCount{})
	}
	return &c.table[k][zone]
}

func (c *targetCount) cells() map[ProbeCell]ProbeCount {
	all := make(map[ProbeCell]ProbeCount, len(c.who)*len(c.zoneNames))
	for k, row := range c.table {
		for z, n := range row {
			if n.Targets > 0 {
				all[ProbeCell{Prober: c.who[k], Zone: c.zoneNames[z]}] = n
			}
		}
	}
	return all
}

// secondSight is what probers of other zones see of a target that the k-th
// fails. Good counts only where it was seen after that probe began: what was
// good before contradicts nobody.
func (p *probes) secondSight(k int, now moment, t *probeTerms) sighting {
	failed := &p.slots[k]
	found := seesNothing
	for n := range p.slots {
		r := &p.slots[n]
		if r.prober.Zone == failed.prober.Zone || !p.speaks(r, now, t) {
			continue
		}
		switch sightOf(r.result) {
		case seesGood:
			if r.newest >= failed.newest-moment(t.timeout) {
				return seesGood
			}
		case seesFailing:
			found = seesFailing
		}
	}
	return found
}
