package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	// tallyKept is how long the sights of a service count that tells no more: its
	// shard stands still, and nobody knows what its probers see.
	tallyKept = 10 * time.Second
	// leavesAfter is how long a zone is dead before the targets of the probers
	// inside are reassigned (HEALTH.md §6).
	leavesAfter = 7 * time.Second
	// loneWord is how long one zone's probers alone have to call a zone dead, and
	// how long a zone is dead before there is an alarm: as often as probers report.
	loneWord = 2 * time.Second
	// silencedKept is how long it is told that a prober was blind: as long as an
	// instance may remember what it said then.
	silencedKept = proberKept
	// calmAfter ends an episode: what comes back earlier gives no second alarm.
	calmAfter = 30 * time.Second
)

// Observers judges what spans services: blind probers, dead zones and the
// region's brake (HEALTH.md §6). It is pure, and not safe for concurrent use:
// one loop owns it, which shards feed with tallies. What it says lags what it
// was told by one judgement.
type Observers struct {
	services map[registry.Name]*observed
	members  int                // of the region
	waiting  int                // withdrawals that the brake holds
	sights   map[ProbeCell]*sum // over all services

	blind    map[string]blindness // by prober
	silenced map[string]time.Time // probers that were blind, until when
	dead     map[string]time.Time // zones, since when
	lone     map[string]time.Time // zones that those of one zone call dead, since when
	brake    brake
	episodes map[episode]time.Time // alarms that were raised, and when they last held

	stance    *Stance
	incidents []ObserverIncident
}

// observed is what a service said last.
type observed struct {
	members, waiting int
	cells            []ProbeCell
	sums             []*sum // the region's, by cell
	probes           []ProbeCount
	counted          time.Time
	heard            time.Time
}

// sum is a cell's count over all services that have it.
type sum struct {
	n     ProbeCount
	users int
}

// episode is what is alarmed once.
type episode struct {
	kind ObserverIncidentKind
	zone string
}

// NewObservers returns observers that suspect nobody.
func NewObservers() *Observers {
	return &Observers{
		services: make(map[registry.Name]*observed),
		sights:   make(map[ProbeCell]*sum),
		blind:    make(map[string]blindness),
		silenced: make(map[string]time.Time),
		dead:     make(map[string]time.Time),
		lone:     make(map[string]time.Time),
		episodes: make(map[episode]time.Time),
		brake:    newBrake(),
		stance:   &Stance{},
	}
}

// Take replaces what the services of the tallies last said. It may be called
// any number of times between two judgements.
func (o *Observers) Take(now time.Time, tallies []Tally) {
	for k := range tallies {
		t := &tallies[k]
		s := o.services[t.Name]
		if s == nil {
			s = &observed{}
			o.services[t.Name] = s
		}
		waiting := 0
		for _, n := range t.Waiting {
			waiting += n
		}
		o.members += t.Members - s.members
		o.waiting += waiting - s.waiting
		s.members, s.waiting, s.heard = t.Members, waiting, now
		if !t.Counted.Equal(s.counted) {
			o.see(s, t.Cells, t.Probes)
			s.counted = t.Counted
		}
		for zone, n := range t.Withdrawn {
			o.brake.note(now, withdrawal{t.Name, zone}, n)
		}
	}
}

// Forget drops a service that is gone.
func (o *Observers) Forget(name registry.Name) {
	s := o.services[name]
	if s == nil {
		return
	}
	o.members -= s.members
	o.waiting -= s.waiting
	o.see(s, nil, nil)
	delete(o.services, name)
}

// see puts what a service's probers see now in the place of what they saw.
func (o *Observers) see(s *observed, cells []ProbeCell, probes []ProbeCount) {
	for k := range s.probes {
		s.sums[k].n.add(s.probes[k], -1)
	}
	if !sameCells(cells, s.cells) {
		o.reseat(s, cells)
	}
	s.probes = probes
	for k := range s.probes {
		s.sums[k].n.add(s.probes[k], 1)
	}
}

func (o *Observers) reseat(s *observed, cells []ProbeCell) {
	for k := range s.cells {
		if s.sums[k].users--; s.sums[k].users == 0 {
			delete(o.sights, s.cells[k])
		}
	}
	s.cells, s.sums = cells, make([]*sum, len(cells))
	for k := range cells {
		all := o.sights[cells[k]]
		if all == nil {
			all = &sum{}
			o.sights[cells[k]] = all
		}
		all.users++
		s.sums[k] = all
	}
}

// sameCells reports whether both are one slice: nobody changes cells in place.
func sameCells(a, b []ProbeCell) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func (c *ProbeCount) add(n ProbeCount, sign int) {
	c.Targets += sign * n.Targets
	c.Failing += sign * n.Failing
	c.Good += sign * n.Good
	c.Recent += sign * n.Recent
	c.RecentFailing += sign * n.RecentFailing
	c.Contested += sign * n.Contested
	c.Agreed += sign * n.Agreed
}

// Judge says what the observers make of themselves now: an immutable stance,
// whether it differs from the last one, and what a person should hear of.
func (o *Observers) Judge(now time.Time) (stance *Stance, changed bool, incidents []ObserverIncident) {
	o.dropStale(now)
	region := surveyOf(o.sights)
	o.judgeZones(now, region)
	o.judgeProbers(now, region)
	released := o.judgeBrake(now, region)
	o.closeEpisodes(now)
	s := o.stand(now, released)
	incidents, o.incidents = o.incidents, nil
	if s.equal(o.stance) {
		return o.stance, false, incidents
	}
	o.stance = s
	return s, true, incidents
}

// dropStale takes away what stale services saw. Their members stay: a shard
// that stands still makes the region no smaller.
func (o *Observers) dropStale(now time.Time) {
	for _, s := range o.services {
		if s.probes != nil && now.Sub(s.heard) > tallyKept {
			o.see(s, nil, nil)
			s.counted = time.Time{}
		}
	}
}

// judgeZones finds the dead zones.
func (o *Observers) judgeZones(now time.Time, region *survey) {
	unseen := func(zone string, _ time.Time) bool { return !region.zones[zone] }
	maps.DeleteFunc(o.dead, unseen)
	maps.DeleteFunc(o.lone, unseen)
	for zone := range region.zones {
		word, ok := region.agree(zone, failingShare)
		if !ok || len(word.zones) > 1 {
			delete(o.lone, zone)
		}
		ok = ok && (len(word.zones) > 1 || o.believed(now, zone, region))
		if !ok {
			delete(o.dead, zone)
			continue
		}
		if _, known := o.dead[zone]; !known {
			o.dead[zone] = now
		}
		if now.Sub(o.dead[zone]) < loneWord {
			continue // who is cut off at that moment may not have said so yet
		}
		o.alarm(now, episode{DeadZone, zone}, func() string {
			return fmt.Sprintf("%d probers of %s fail %d of %d targets in it and see their other zones good: their word stands",
				word.probers, zoneNames(word.zones), word.against, word.of)
		})
	}
}

// believed reports whether the word of one zone's probers on another is enough:
// when no prober inside says otherwise, and the rest, who see nothing or are
// silent, would have said by now what they see.
func (o *Observers) believed(now time.Time, zone string, region *survey) bool {
	if region.seenFromInside(zone) {
		delete(o.lone, zone)
		return false
	}
	if _, known := o.lone[zone]; !known {
		o.lone[zone] = now
	}
	return now.Sub(o.lone[zone]) >= loneWord
}

// alarm raises an incident, unless its episode goes on.
func (o *Observers) alarm(now time.Time, ep episode, detail func() string) {
	if _, on := o.episodes[ep]; !on {
		o.incidents = append(o.incidents, ObserverIncident{Kind: ep.kind, Zone: ep.zone, Detail: detail(), At: now})
	}
	o.episodes[ep] = now
}

func (o *Observers) closeEpisodes(now time.Time) {
	for ep, last := range o.episodes {
		if now.Sub(last) < calmAfter {
			continue
		}
		delete(o.episodes, ep)
		o.incidents = append(o.incidents, ObserverIncident{
			Kind: ep.kind, Zone: ep.zone, Over: true, Detail: "over since " + calmAfter.String(), At: now,
		})
	}
	slices.SortFunc(o.incidents, func(a, b ObserverIncident) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Zone, b.Zone))
	})
}

// zoneNames lists zones for a person.
func zoneNames(zones []string) string {
	if len(zones) == 1 {
		return "zone " + zones[0]
	}
	return "zones " + strings.Join(zones, ", ")
}

// stand writes down the stance of now.
func (o *Observers) stand(now time.Time, released map[string]bool) *Stance {
	s := &Stance{Braked: o.brake.engaged}
	if s.Braked {
		s.BrakedSince, s.BrakeDetail, s.Released = o.brake.since, o.brake.detail, released
	}
	if len(o.blind) > 0 {
		s.Blind = make(map[string]bool, len(o.blind))
		for name := range o.blind {
			s.Blind[name] = true
		}
	}
	if len(o.silenced) > 0 {
		s.Silenced = maps.Clone(o.silenced)
	}
	if len(o.dead) > 0 {
		s.Dead, s.Leaving = maps.Clone(o.dead), make(map[string]bool)
	}
	for zone, since := range o.dead {
		if now.Sub(since) >= leavesAfter {
			s.Leaving[zone] = true
		}
	}
	return s
}

func (s *Stance) equal(o *Stance) bool {
	return s.Braked == o.Braked && s.BrakedSince.Equal(o.BrakedSince) && s.BrakeDetail == o.BrakeDetail &&
		maps.Equal(s.Blind, o.Blind) && maps.EqualFunc(s.Silenced, o.Silenced, time.Time.Equal) &&
		maps.EqualFunc(s.Dead, o.Dead, time.Time.Equal) &&
		maps.Equal(s.Leaving, o.Leaving) && maps.Equal(s.Released, o.Released)
}
