package dns

import (
	"net/netip"

	"github.com/sightlinedev/sightline/views"
)

// variants is the number of answer variants that weights are spread over
// (DNS.md §2); a weight below 1/32 of the highest counts as 1/32.
const variants = 32

// addressed is one distinct address of a view with the variants it is in.
type addressed struct {
	addr   netip.Addr
	weight uint32
	uid    views.UID
	mask   uint32
}

// addresses returns the view's listed members of one address family as
// distinct addresses: two instances on one address are one record, with the
// larger weight. The order is that of the members.
func addresses(v *views.View, v6 bool) []addressed {
	var out []addressed
	at := make(map[netip.Addr]int)
	highest := uint32(0)
	for _, m := range v.Members {
		a := m.Endpoint.Addr
		if !m.Listed || !a.IsValid() || a.Unmap().Is4() == v6 {
			continue
		}
		i, seen := at[a]
		if !seen {
			i = len(out)
			at[a] = i
			out = append(out, addressed{addr: a, uid: m.UID})
		}
		out[i].weight = max(out[i].weight, m.Weight)
		highest = max(highest, m.Weight)
	}
	for i := range out {
		out[i].mask = variantMask(out[i].uid, out[i].weight, highest)
	}
	return out
}

// variantMask spreads a member over max(1, round(32 × w ÷ wmax)) variants,
// evenly, starting at a place that follows from its uid. The member with the
// highest weight is in all of them, so that no variant is empty.
func variantMask(uid views.UID, weight, highest uint32) uint32 {
	n := (uint64(weight)*variants*2 + uint64(highest)) / (2 * uint64(max(highest, 1)))
	n = min(max(n, 1), variants)
	start := (uint64(uid) * 0x9E3779B97F4A7C15) >> 59 // 5 bits: one of the 32 variants
	var mask uint32
	for j := range n {
		mask |= 1 << ((start + j*variants/n) % variants)
	}
	return mask
}

// pick returns at most limit addresses of the variant that the random number
// selects, as a ring from a start uniform among all members of that variant.
func pick(all []addressed, limit int, random uint64) []netip.Addr {
	bit := uint32(1) << (random % variants)
	in := make([]netip.Addr, 0, len(all))
	for _, a := range all {
		if a.mask&bit != 0 {
			in = append(in, a.addr)
		}
	}
	return ring(in, limit, random/variants)
}

// ring returns at most limit elements, from a start chosen by the random number.
func ring[T any](in []T, limit int, random uint64) []T {
	if len(in) == 0 {
		return nil
	}
	start := int(random % uint64(len(in)))
	out := make([]T, 0, min(limit, len(in)))
	for i := range min(limit, len(in)) {
		out = append(out, in[(start+i)%len(in)])
	}
	return out
}

// endpoint is one SRV record's content.
type endpoint struct {
	member *views.Member
	number uint16
}

// endpoints returns the listed members that have an address, with their own
// number for the port; ok is false when the view declares no such port for
// that transport.
func endpoints(v *views.View, port, proto string) (list []endpoint, ok bool) {
	for i, p := range v.Ports {
		if p.Name != port || transport(p) != proto {
			continue
		}
		for _, m := range v.Members {
			if m.Listed && m.Endpoint.Addr.IsValid() {
				list = append(list, endpoint{m, m.Ports[i].Number})
			}
		}
		return list, true
	}
	return nil, false
}

// hasTransport reports whether any port of the view uses the transport.
func hasTransport(v *views.View, proto string) bool {
	for _, p := range v.Ports {
		if transport(p) == proto {
			return true
		}
	}
	return false
}
