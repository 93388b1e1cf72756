package views

import "slices"

// difference is what changed between two views of a service, and its urgency.
type difference struct {
	kinds Kinds
	lane  Lane
}

// diff compares a service's published view with the one that should replace
// it. Either may be nil: no such service. Both hashes must be set.
func diff(old, desired *View) difference {
	d := difference{lane: Additions}
	switch {
	case old == nil && desired == nil:
		return d
	case old == nil:
		d.kinds = Admit | Reconfigure
		return d
	case desired == nil:
		return difference{kinds: Withdraw, lane: Withdrawals}
	}
	if old.EndpointHash != desired.EndpointHash {
		d.kinds = diffMembers(old.Members, desired.Members)
		if !sameGuard(old.Guard, desired.Guard) {
			d.kinds |= GuardChange
		}
		if d.kinds == 0 {
			d.kinds = Restate
		}
	}
	if old.ConfigHash != desired.ConfigHash {
		d.kinds |= Reconfigure
	}
	if d.kinds&(Withdraw|WeightCut) != 0 || newlyTripped(old.Guard, desired.Guard) {
		d.lane = Withdrawals
	}
	return d
}

// diffMembers merges two lists that are sorted by uid.
func diffMembers(old, desired []*Member) Kinds {
	var kinds Kinds
	i, j := 0, 0
	for i < len(old) || j < len(desired) {
		switch {
		case j == len(desired) || i < len(old) && old[i].UID < desired[j].UID:
			kinds |= diffMember(old[i], nil)
			i++
		case i == len(old) || desired[j].UID < old[i].UID:
			kinds |= diffMember(nil, desired[j])
			j++
		default:
			if old[i] != desired[j] {
				kinds |= diffMember(old[i], desired[j])
			}
			i, j = i+1, j+1
		}
	}
	return kinds
}

func diffMember(old, desired *Member) Kinds {
	was, is := old != nil && old.Listed, desired != nil && desired.Listed
	switch {
	case was && !is:
		return Withdraw
	case !was && is:
		return Admit
	case !is:
		return Restate
	}
	var kinds Kinds
	if old.Weight != desired.Weight || old.LastResort != desired.LastResort {
		kinds |= Reweight
	}
	if desired.Weight <= old.Weight/2 {
		kinds |= WeightCut
	}
	if old.Endpoint != desired.Endpoint || old.Zone != desired.Zone || old.Region != desired.Region ||
		old.Identity != desired.Identity || !slices.Equal(old.Ports, desired.Ports) {
		kinds |= Reconfigure
	}
	return kinds
}

// sameGuard leaves the counts aside: they move with the members.
func sameGuard(a, b Guard) bool {
	return a.Tripped == b.Tripped && a.Floor == b.Floor && slices.Equal(a.Zones, b.Zones)
}

// newlyTripped reports whether a zone is under the guard that was not.
func newlyTripped(old, desired Guard) bool {
	for _, z := range desired.Zones {
		if !slices.Contains(old.Zones, z) {
			return true
		}
	}
	return desired.Tripped && !old.Tripped
}
