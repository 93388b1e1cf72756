package xds

import "github.com/sightlinedev/sightline/views"

// Calls that prefer a zone leave it in proportion as it loses members: a zone
// keeps all of them while its members that serve, times this many percent, cover
// its members (Envoy's own default), and beyond that its share of them. Envoy
// alone would do so for members that are shown as unhealthy, gRPC never does;
// here both are told by weights, and nobody is shown who is not to be called.
const overprovisioned = 140

const (
	perMille = 1000
	// spillScale is the sum of the weights of an assignment that spills, in
	// thousandths of a call, so that a small share of many members is no weight
	// under 1. gRPC Node needs sums under 2³¹.
	spillScale = 1000
)

// spill lets the far members take what the near ones are too few for. It has no
// effect unless there are both.
func spill(v *views.View, zone string, ps []placed) {
	var near, far uint64 // weights
	for i := range ps {
		switch ps[i].tier {
		case tierNear:
			near += uint64(ps[i].weight)
		case tierFar:
			far += uint64(ps[i].weight)
		}
	}
	keep := kept(v, zone, ps)
	if near == 0 || far == 0 || keep >= perMille {
		return
	}
	for i := range ps {
		p := &ps[i]
		switch p.tier {
		case tierNear:
			p.weight = portion(p.weight, keep, near)
		case tierFar:
			p.weight = portion(p.weight, perMille-keep, far)
			p.level = tierNear
		}
	}
}

// portion is a member's weight within a part of all calls, never 0.
func portion(weight uint32, part, of uint64) uint32 {
	return uint32(max(1, uint64(weight)*part*spillScale/of))
}

// kept is how many of a thousand calls a zone is good for. It counts members by
// what they weigh when nothing is wrong: a dependency that halves the weights of
// all must move nobody. Those that leave on their own are not missed.
func kept(v *views.View, zone string, ps []placed) uint64 {
	var all, serving uint64
	for _, m := range v.Members {
		if m.Zone == zone && !m.Draining && m.Endpoint.Addr.IsValid() {
			all += uint64(max(1, m.BaseWeight))
		}
	}
	for i := range ps {
		if m := ps[i].member; ps[i].tier == tierNear {
			serving += uint64(max(1, m.BaseWeight))
		}
	}
	if all == 0 {
		return perMille
	}
	return min(perMille, serving*overprovisioned*perMille/100/all)
}
