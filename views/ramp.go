package views

// rampFull is a whole weight in the thousandths in which ramps are raised.
const rampFull = 1000

// zoneRamps is one zone's listed members while its ramps are looked at.
type zoneRamps struct {
	members []*instance
	bases   uint64 // sum of their base weights
	ramping int
}

// raiseRamps raises the weights of ramping members where so many of a zone ramp
// that the others would be overrun (HEALTH.md §7): while more than half of the
// zone's listed members ramp, those whose next step does not wait for evidence
// are brought to one part of their full weight, the least at which none of the
// others carries more than twice the mean. What is carried is counted in
// relation to the base weight: a member of ten times the base is meant to carry
// ten times as much. A raised weight stays until that ramp ends.
func (s *assembly) raiseRamps() {
	zones := map[string]*zoneRamps{}
	for _, i := range s.byRole[counted] {
		d := &i.draft
		if !d.Listed || !i.ramps() {
			i.raised = 0
		}
		if !d.Listed || d.LastResort {
			continue
		}
		z := zones[d.Zone]
		if z == nil {
			z = &zoneRamps{}
			zones[d.Zone] = z
		}
		z.members = append(z.members, i)
		z.bases += uint64(d.BaseWeight)
		if i.ramps() {
			z.ramping++
			d.Weight = i.raisedTo(i.raised)
		}
	}
	for _, role := range [...]role{unadmitted, leaving, overridden, removed} {
		for _, i := range s.byRole[role] {
			i.raised = 0
		}
	}
	for _, z := range zones {
		z.raise()
	}
}

// raise does it for one zone.
func (z *zoneRamps) raise() {
	if 2*z.ramping <= len(z.members) || z.holds(0) {
		return
	}
	// Weights grow with the level, so the first level that holds is found by
	// halving; where none does, as much as those who may can take.
	low, high := uint32(0), uint32(rampFull)
	for high-low > 1 {
		if mid := (low + high) / 2; z.holds(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	for _, i := range z.members {
		if w := i.raisedTo(high); i.ramps() && !i.verdict.RampHeld && w > i.draft.Weight {
			i.draft.Weight, i.raised = w, high
		}
	}
}

// holds reports whether at that level none carries more than twice the mean of
// the zone, weights and bases taken together.
func (z *zoneRamps) holds(level uint32) bool {
	var weights uint64
	for _, i := range z.members {
		weights += uint64(i.levelled(level))
	}
	for _, i := range z.members {
		if uint64(i.levelled(level))*z.bases > 2*weights*uint64(i.draft.BaseWeight) {
			return false
		}
	}
	return true
}

// levelled is the member's weight at a level.
func (i *instance) levelled(level uint32) uint32 {
	if i.ramps() && !i.verdict.RampHeld {
		return max(i.draft.Weight, i.raisedTo(level))
	}
	return i.draft.Weight
}

// ramps reports whether the member is within a ramp and in rotation by its
// verdict: under the guard it may be listed without.
func (i *instance) ramps() bool { return i.verdict.Ramping && i.verdict.State.Serving() }

// raisedTo is the member's weight at so many thousandths of its full weight, at
// least what its verdict says.
func (i *instance) raisedTo(level uint32) uint32 {
	full := i.draft.BaseWeight
	switch v := &i.verdict; {
	case v.Full > 0:
		full = min(v.Full, full)
	case v.State == Degraded: // what it would be without the ramp is not known
		return i.draft.Weight
	}
	return max(i.draft.Weight, (full*level+rampFull/2)/rampFull)
}
