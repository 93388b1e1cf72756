package health

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"
)

const (
	// suspectPercent and suspectLeast: more than 30 % of a service, or of its
	// zone, and at least three (HEALTH.md §6).
	suspectPercent = 30
	suspectLeast   = 3
)

// onRenewalPath reports whether the instance's lease says something about how
// the service's leases arrive: a member's does, until it says that it is going.
func (i *instance) onRenewalPath() bool {
	return i.member && i.row.Lease > 0 && !i.draining()
}

// renewalGroup is a service, or one zone of it, seen as leases. Instances
// without a lease are no part of it: their existence does not travel that path.
type renewalGroup struct {
	ended   []*instance // whose term is over, by its end
	running int
}

// findSuspects looks, when terms have just ended, for windows of one term in
// which too many leases lapsed to believe that their holders are gone. All in
// such a window become suspect; lapses that were already judged are taken back.
func (e *Evaluator) findSuspects(now time.Time, fresh map[*instance]bool) {
	whole := &renewalGroup{}
	zones := make(map[string]*renewalGroup)
	episode := false
	for _, i := range e.instances {
		if !i.onRenewalPath() {
			continue
		}
		zone := zones[i.row.Zone]
		if zone == nil {
			zone = &renewalGroup{}
			zones[i.row.Zone] = zone
		}
		whole.add(i)
		zone.add(i)
		episode = episode || i.lease.suspect()
	}
	found, detail := massOf(whole, zones, fresh)
	if len(found) == 0 {
		return
	}
	// The rest did not renew through the last terms: whoever waits for that
	// waits anew.
	for _, i := range whole.ended {
		if i.lease.suspect() {
			i.lease.suspectSince = now
			e.touch(i)
		}
	}
	for _, i := range found {
		i.lease.suspectSince = now
		i.lease.forgive()
		if i.outs.has(R1) {
			i.outs.clear(R1)
			i.excused = len(i.outs) == 0
		}
		e.touch(i)
	}
	if !episode {
		e.incidents = append(e.incidents, Incident{Kind: SuspectLeases, At: now, Detail: detail})
	}
}

// massOf looks at the service and at each of its zones; the text names the
// first group, in that order, in which too many leases ended.
func massOf(whole *renewalGroup, zones map[string]*renewalGroup, fresh map[*instance]bool) (found []*instance, detail string) {
	const text = "%d of %d leases of the %s ended within one term: the renewal path is suspect, nobody is taken out for it"
	found, held := whole.mass(fresh)
	if len(found) > 0 {
		detail = fmt.Sprintf(text, len(found), held, "service")
	}
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		more, held := zones[name].mass(fresh)
		if len(more) > 0 && detail == "" {
			detail = fmt.Sprintf(text, len(more), held, "zone "+name)
		}
		found = append(found, more...)
	}
	return found, detail
}

func (g *renewalGroup) add(i *instance) {
	if i.lease.ended {
		g.ended = append(g.ended, i)
	} else {
		g.running++
	}
}

// mass returns the leases of every window that closes with one of fresh and
// holds more than the share of those that were held when the window opened,
// and how many those were.
func (g *renewalGroup) mass(fresh map[*instance]bool) (found []*instance, held int) {
	if len(g.ended) < suspectLeast {
		return nil, 0
	}
	slices.SortFunc(g.ended, func(a, b *instance) int {
		return a.lease.ends(a.row.Lease).Compare(b.lease.ends(b.row.Lease))
	})
	first := len(g.ended)
	last := -1
	for r, i := range g.ended {
		if !fresh[i] {
			continue
		}
		opens := i.lease.ends(i.row.Lease).Add(-i.row.Lease)
		l := sort.Search(r, func(k int) bool { return g.ended[k].lease.ends(g.ended[k].row.Lease).After(opens) })
		group := g.running + len(g.ended) - l
		if n := r - l + 1; n >= suspectLeast && n*100 > suspectPercent*group {
			first, last, held = min(first, l), r, max(held, group)
		}
	}
	if last < 0 {
		return nil, 0
	}
	return slices.Clone(g.ended[first : last+1]), held
}

// suspectStands reports whether a suspect lapse is to be believed after all:
// no class of evidence can speak for or against the instance, and the rest of
// the service went on renewing through two more terms.
func (e *Evaluator) suspectStands(i *instance, now time.Time) bool {
	if i.profile.Supplies != 0 {
		if _, silent := e.allSilent(i, now); !silent {
			return false
		}
	}
	since, renews := e.restRenewsSince()
	return renews && !now.Before(laterOf(i.lease.suspectSince, since).Add(2*i.row.Lease))
}

// standsAt is when a suspect lapse stands at the earliest.
func (i *instance) standsAt() time.Time { return i.lease.suspectSince.Add(2 * i.row.Lease) }

// restRenewsSince is since when a lease of the rest of the service has been
// held without a break. One is enough: had many of the rest lapsed, they would
// be suspects themselves, and everybody's wait would have begun anew.
func (e *Evaluator) restRenewsSince() (since time.Time, renews bool) {
	if !e.steadiestKnown {
		e.steadiestKnown, e.steadiest = true, time.Time{}
		for _, i := range e.instances {
			if i.onRenewalPath() && !i.lease.ended && i.lease.lapsedAt.IsZero() &&
				(e.steadiest.IsZero() || i.lease.steadySince.Before(e.steadiest)) {
				e.steadiest = i.lease.steadySince
			}
		}
	}
	return e.steadiest, !e.steadiest.IsZero()
}
