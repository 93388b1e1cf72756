package views

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// guardRelease is how long the set must hold up by itself before the guard
	// lets go (HEALTH.md §8).
	guardRelease = 30 * time.Second
	// guardMargin is how many points above the floor it must then be.
	guardMargin = 10
	// smallZone is the number of members below which a zone says too little
	// about itself and is judged by the region's fraction.
	smallZone = 4
	// region is the group of the small zones.
	region = ""
)

// guard is the fraction guard of one service: the last word on how much of a
// service may leave, downstream of every bug in scoring.
type guard struct {
	trips  map[string]*Trip // by group: a zone, or region
	lifted map[UID]bool     // quarantines that it ended
}

// standing is what the guard knows of one member: those that are neither
// draining nor overridden out (M).
type standing struct {
	uid         UID
	zone        string
	serving     bool // by its verdict
	quarantined bool
	flaps       int
}

// tally counts a group: |M| and |P|.
type tally struct{ members, serving int }

func (t tally) below(floor uint32) bool { return 100*t.serving < int(floor)*t.members }

// steady says whether the group would be well above the floor without the guard.
func (t tally) steady(floor uint32) bool {
	if t.members >= smallZone {
		floor = min(100, floor+guardMargin)
	}
	return !t.below(floor)
}

// judgement is the guard's decision on one set of members, with its numbers.
type judgement struct {
	zones     map[string]bool // zones whose members are all published
	groups    []string        // tripped groups, sorted
	region    tally
	floor     uint32
	next      time.Time // when a release is due; zero: none is waiting
	incidents []Incident
}

// protects reports whether the guard publishes all members of the zone.
func (j *judgement) protects(zone string) bool { return j.zones[zone] }

// round is one judgement while it is being made.
type round struct {
	*guard
	now     time.Time
	members []standing
	alone   map[string]*tally // zones that are judged by their own fraction
	small   []string          // the others, sorted
	out     judgement
}

// judge applies the rules of HEALTH.md §8 to M, in any order.
func (g *guard) judge(now time.Time, floor uint32, members []standing) judgement {
	r := round{guard: g, now: now, members: members, alone: map[string]*tally{}}
	r.out = judgement{zones: map[string]bool{}, floor: floor}
	r.forgetLifts()
	r.count()
	for _, z := range slices.Sorted(maps.Keys(r.alone)) {
		r.group(z, r.alone[z], func(zone string) bool { return zone == z })
	}
	if len(r.small) > 0 {
		r.group(region, &r.out.region, func(zone string) bool { return r.alone[zone] == nil })
	}
	for _, key := range slices.Sorted(maps.Keys(g.trips)) {
		if r.alone[key] == nil && (key != region || len(r.small) == 0) { // no member left to protect
			delete(g.trips, key)
			r.report(Incident{Kind: GuardReleased, Zone: key}, &tally{})
		}
	}
	r.publish()
	return r.out
}

// forgetLifts drops the lifts of quarantines that have ended by themselves.
func (r *round) forgetLifts() {
	if len(r.lifted) == 0 {
		return
	}
	held := map[UID]bool{}
	for _, m := range r.members {
		held[m.uid] = m.quarantined
	}
	for uid := range r.lifted {
		if !held[uid] {
			delete(r.lifted, uid)
		}
	}
}

func (r *round) count() {
	zones := map[string]*tally{}
	for _, m := range r.members {
		z := zones[m.zone]
		if z == nil {
			z = &tally{}
			zones[m.zone] = z
		}
		z.members++
		r.out.region.members++
		if r.inP(m) {
			z.serving++
			r.out.region.serving++
		}
	}
	for zone, t := range zones {
		if r.judgedAlone(zone, t.members) {
			r.alone[zone] = t
		} else {
			r.small = append(r.small, zone)
		}
	}
	slices.Sort(r.small)
}

// inP reports whether a member is in the set about to be published by itself.
func (r *round) inP(m standing) bool { return m.serving && (!m.quarantined || r.lifted[m.uid]) }

// judgedAlone keeps a tripped zone with the group that tripped it: a member
// that comes or goes must not end a trip without its release time.
func (r *round) judgedAlone(zone string, members int) bool {
	if zone != region && r.trips[zone] != nil {
		return true
	}
	if t := r.trips[region]; t != nil && slices.Contains(t.Zones, zone) {
		return false
	}
	return zone != region && members >= smallZone
}

// group judges one group: lift quarantines, trip, or release.
func (r *round) group(key string, t *tally, covers func(zone string) bool) {
	r.lift(key, t, covers)
	trip := r.trips[key]
	switch {
	case t.below(r.out.floor):
		if trip == nil {
			trip = &Trip{Zone: key, Since: r.now}
			r.trips[key] = trip
			r.report(Incident{Kind: GuardTripped, Zone: key}, t)
		}
		trip.SteadySince = time.Time{}
	case trip == nil:
		return
	case !t.steady(r.out.floor):
		trip.SteadySince = time.Time{}
	default:
		if trip.SteadySince.IsZero() || trip.SteadySince.After(r.now) { // after: a clock was set back
			trip.SteadySince = r.now
		}
		at := trip.SteadySince.Add(guardRelease)
		if !at.After(r.now) {
			delete(r.trips, key)
			r.report(Incident{Kind: GuardReleased, Zone: key}, t)
			return
		}
		r.out.next = earlier(r.out.next, at)
	}
	if key == region {
		trip.Zones = r.small
	}
}

// lift ends quarantines of serving members until the group is at the floor,
// those with the fewest flaps first.
func (r *round) lift(key string, t *tally, covers func(zone string) bool) {
	if !t.below(r.out.floor) {
		return
	}
	var held []standing
	for _, m := range r.members {
		if covers(m.zone) && m.serving && !r.inP(m) {
			held = append(held, m)
		}
	}
	slices.SortFunc(held, func(a, b standing) int {
		return cmp.Or(cmp.Compare(a.flaps, b.flaps), cmp.Compare(a.uid, b.uid))
	})
	for _, m := range held {
		if !t.below(r.out.floor) {
			return
		}
		r.lifted[m.uid] = true
		t.serving++
		if t != &r.out.region {
			r.out.region.serving++
		}
		r.report(Incident{Kind: QuarantineLifted, Zone: key, UID: m.uid}, t)
	}
}

func (r *round) report(i Incident, t *tally) {
	i.Serving, i.Members, i.Floor = t.serving, t.members, r.out.floor
	r.out.incidents = append(r.out.incidents, i)
}

// publish lists the tripped groups and the zones that they cover.
func (r *round) publish() {
	for key, t := range r.trips {
		r.out.groups = append(r.out.groups, key)
		if key != region {
			r.out.zones[key] = true
			continue
		}
		for _, z := range t.Zones {
			r.out.zones[z] = true
		}
	}
	slices.Sort(r.out.groups)
}

// earlier returns the earlier of two times, of which zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
