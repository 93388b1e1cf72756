package health

import (
	"cmp"
	"slices"
)

const (
	// mostPercent: a prober fails a zone, or all it looks at, when it fails 80 %
	// of the targets (HEALTH.md §6).
	mostPercent = 80
	// fewTargets: below three targets nothing is said of a zone or a prober.
	fewTargets = 3
)

// survey is what all probers see, at one moment.
type survey struct {
	lookouts []lookout       // by prober's name
	zones    map[string]bool // that somebody looks at
}

// lookout is what one prober sees, by zone.
type lookout struct {
	who Prober
	by  map[string]ProbeCount
}

func surveyOf(sights map[ProbeCell]*sum) *survey {
	s := &survey{zones: make(map[string]bool)}
	places := make(map[string]int)
	for cell, all := range sights {
		if all.n.Targets == 0 {
			continue
		}
		k, known := places[cell.Prober.Name]
		if !known {
			k = len(s.lookouts)
			places[cell.Prober.Name] = k
			s.lookouts = append(s.lookouts, lookout{who: cell.Prober, by: make(map[string]ProbeCount)})
		}
		// One name in two zones is a prober that moved: what it sees adds up, and
		// it stands in the zone that sorts first, whatever the map's order.
		if l := &s.lookouts[k]; cell.Prober.Zone < l.who.Zone {
			l.who = cell.Prober
		}
		n := s.lookouts[k].by[cell.Zone]
		n.add(all.n, 1)
		s.lookouts[k].by[cell.Zone] = n
		s.zones[cell.Zone] = true
	}
	slices.SortFunc(s.lookouts, func(a, b lookout) int { return cmp.Compare(a.who.Name, b.who.Name) })
	return s
}

// measure counts the targets that speak against what is looked at, and of how
// many they are.
type measure func(ProbeCount) (against, of int)

// mostly reports whether 80 % of what is seen are against it, by the measure.
func mostly(by measure, n ProbeCount) bool {
	against, of := by(n)
	return of > 0 && against*100 >= mostPercent*of
}

// failingShare counts time-outs and unreachables: of all targets, or of those with a
// recent result where these say it and are a fair part of all. Targets at the
// confirmation cadence would show that a prober is blind only after those at
// full cadence went over their lines.
func failingShare(n ProbeCount) (against, of int) {
	if n.Failing*100 < mostPercent*n.Targets && n.Recent >= fewTargets && n.Recent*4 >= n.Targets &&
		n.RecentFailing*100 >= mostPercent*n.Recent {
		return n.RecentFailing, n.Recent
	}
	return n.Failing, n.Targets
}

// badShare counts whatever is not good, refusals and wrong answers too.
func badShare(n ProbeCount) (against, of int) {
	if mostly(failingShare, n) {
		return failingShare(n)
	}
	return n.Targets - n.Good, n.Targets
}

// halfGood reports whether at least half of what is seen is good.
func halfGood(n ProbeCount) bool { return n.Targets > 0 && n.Good*2 >= n.Targets }

// contested reports whether the failing targets of a zone are nearly all seen
// good by probers of other zones.
func contested(n ProbeCount) bool {
	return mostly(failingShare, n) && n.Failing > 1 && n.Contested > 0 && n.Agreed*100 <= (100-mostPercent)*(n.Contested+n.Agreed)
}

// agreement is what the probers outside a zone say of it together.
type agreement struct {
	probers     int
	zones       []string // that they stand in
	against, of int      // targets, each prober's counted
}

// agree asks the probers outside a zone whether all of them find it down, while
// they see their other zones good.
func (s *survey) agree(zone string, down measure) (a agreement, agreed bool) {
	for k := range s.lookouts {
		l := &s.lookouts[k]
		if l.who.Zone == zone || l.by[zone].Targets == 0 {
			continue
		}
		switch l.word(zone, down) {
		case objects:
			return agreement{}, false
		case agrees:
			a.probers++
			against, of := down(l.by[zone])
			a.against, a.of = a.against+against, a.of+of
			if !slices.Contains(a.zones, l.who.Zone) {
				a.zones = append(a.zones, l.who.Zone)
			}
		}
	}
	slices.Sort(a.zones)
	return a, a.against >= fewTargets
}

// vote is a prober's answer to the question whether a zone is down.
type vote uint8

const (
	abstains vote = iota
	agrees
	objects
)

// word is the prober's vote on a zone. Who sees nothing elsewhere, looks at no
// other zone, or is contradicted elsewhere, has none against the zone.
func (l *lookout) word(zone string, down measure) vote {
	var others ProbeCount
	another := false
	for z, n := range l.by {
		switch {
		case z == zone:
		case contested(n):
			return abstains
		default:
			others.add(n, 1)
			another = another || n.Targets >= fewTargets && mostly(down, n)
		}
	}
	here := l.by[zone]
	switch {
	case halfGood(here) && !mostly(down, here):
		return objects
	case others.Targets == 0, mostly(down, others):
		return abstains
	case !mostly(down, here), another, !halfGood(others):
		return objects
	default:
		return agrees
	}
}

// seenFromInside reports whether a prober that stands in the zone sees it good.
func (s *survey) seenFromInside(zone string) bool {
	return slices.ContainsFunc(s.lookouts, func(l lookout) bool {
		return l.who.Zone == zone && halfGood(l.by[zone])
	})
}
