package xds

import (
	"fmt"
	"net/netip"
	"slices"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/views"
)

// tier orders members for a caller that prefers its zone. Tiers that have
// members become priorities 0, 1, 2 without a gap, which every client demands;
// while the near ones are too few, the far ones share their priority (spill).
type tier uint8

const (
	tierNear tier = iota // the caller's zone; every member where zones do not matter
	tierFar
	tierLast // put back by the guard although it was found out
	tiers
)

// placed is one listed member, and where callers reach it. The member is nil
// for the address that stands in for an empty service.
type placed struct {
	member *views.Member
	at     netip.AddrPort
	tier   tier
	level  tier   // whose priority it is in: another than its own while a zone spills
	weight uint32 // as rendered
}

// locality is one locality of an assignment.
type locality struct {
	region, zone, subZone string
	tier, level           tier
	priority              uint32
	weight                uint32 // 0: unset
	members               []placed
}

// assignment is a ClusterLoadAssignment before it is encoded.
type assignment struct {
	name       string
	localities []locality
	envoy      bool // endpoints carry weight and metadata
	degraded   bool // and the mark that the guard speaks for the service
	drop       bool // every call is to be dropped

	// The identity last encoded, and its text: most members share one.
	identity     identity.ID
	identityText string
}

// assign arranges the members of one port for one kind of client. The error
// says which rule of the clients the view breaks.
func assign(v *views.View, name string, port int, k formKey) (*assignment, error) {
	if k.shape == shapeDrop {
		return dropAll(name, lastAddress(v, port)), nil
	}
	ps, err := place(v, port, k.zone)
	if err != nil {
		return nil, fmt.Errorf("assignment %s: %w", name, err)
	}
	a := &assignment{name: name}
	switch k.shape {
	case shapeEnvoy:
		a.envoy = true
		a.degraded = v.Guard.Tripped || v.Confidence == views.ConfidenceDegraded
		a.localities = trueLocalities(ps)
	case shapePerEndpoint:
		a.localities = ownLocalities(ps)
	case shapeGrouped:
		a.localities = groupedLocalities(v, ps)
	default:
		a.localities = flatLocalities(ps)
	}
	numberPriorities(a.localities)
	return a, nil
}

// place lists the members that callers are given, in order of uid. A member
// whose endpoint is no address (a host name not yet resolved, a managed
// function) is nothing that xDS can carry and is left out; of two members at one
// address the newer incarnation counts, since clients refuse a repeated address.
func place(v *views.View, port int, zone string) ([]placed, error) {
	ps := make([]placed, 0, v.ListedCount)
	seen := make(map[netip.AddrPort]struct{}, v.ListedCount)
	for _, m := range slices.Backward(v.Members) {
		if !m.Listed || !m.Endpoint.Addr.IsValid() {
			continue
		}
		at := addressOf(v, m, port)
		switch {
		case m.Weight == 0:
			return nil, fmt.Errorf("member %s has weight 0, which clients refuse", m.UID)
		case at.Port() == 0:
			return nil, fmt.Errorf("member %s has no number for port %s", m.UID, v.Ports[port].Name)
		}
		if _, dup := seen[at]; dup {
			continue
		}
		seen[at] = struct{}{}
		t := tierOf(v, m, zone)
		ps = append(ps, placed{member: m, at: at, tier: t, level: t, weight: m.Weight})
	}
	slices.Reverse(ps)
	if v.PreferZone {
		spill(v, zone, ps)
	}
	return ps, nil
}

func addressOf(v *views.View, m *views.Member, port int) netip.AddrPort {
	return netip.AddrPortFrom(m.Endpoint.Addr.Unmap().WithZone(""), numberAt(v, m, port))
}

func tierOf(v *views.View, m *views.Member, zone string) tier {
	switch {
	case !v.PreferZone:
		return tierNear
	case m.LastResort:
		return tierLast
	case m.Zone == zone && zone != "":
		return tierNear
	}
	return tierFar
}

// numberPriorities turns levels into priorities without a gap, and puts
// localities in that order, otherwise as they were.
func numberPriorities(ls []locality) {
	var present [tiers]bool
	for i := range ls {
		present[ls[i].level] = true
	}
	var number [tiers]uint32
	next := uint32(0)
	for t := range present {
		number[t] = next
		if present[t] {
			next++
		}
	}
	for i := range ls {
		ls[i].priority = number[ls[i].level]
	}
	slices.SortStableFunc(ls, func(a, b locality) int { return int(a.priority) - int(b.priority) })
}

// unreachable stands in where a service never had an address: it is reserved
// for documentation (RFC 5737), and 9 is the discard port.
var unreachable = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 9)

// lastAddress is an address that the service has or had, or unreachable. v may
// be nil.
func lastAddress(v *views.View, port int) netip.AddrPort {
	if v == nil {
		return unreachable
	}
	for _, m := range slices.Backward(v.Members) {
		if m.Endpoint.Addr.IsValid() {
			return addressOf(v, m, port)
		}
	}
	return unreachable
}

// emptyLocality names the locality and the drop category of an empty service.
const emptyLocality = "empty"

// dropAll is an empty service as gRPC Java understands it: from 1.77 on it
// ignores an assignment without endpoints, and obeys a drop of everything beside
// one endpoint (PEERS.md part 2 §4).
func dropAll(name string, at netip.AddrPort) *assignment {
	return &assignment{
		name:       name,
		localities: []locality{{subZone: emptyLocality, weight: 1, members: []placed{{at: at}}}},
		drop:       true,
	}
}

// withdrawn is the assignment of a service that is deleted, forbidden or
// unknown, for a client that cannot be told a removal. last is what the service
// looked like, or nil.
func (r *renderer) withdrawn(last *views.View, at views.Version, n resourceName, rd rendering) *encoded {
	k := formKey{typ: eds, port: n.port, shape: shapePerEndpoint}
	a := &assignment{name: n.text}
	switch {
	case rd.envoy:
		k.shape = shapeEnvoy
	case rd.java:
		k.shape = shapeDrop
		port, ok := 0, false
		if last != nil {
			port, ok = portOf(last, n.port)
		}
		if !ok {
			last = nil
		}
		a = dropAll(n.text, lastAddress(last, port))
	}
	e, err := frame(eds, n.text, at, k.render(), a.encode())
	if err != nil {
		r.report(eds, n.text, err)
	}
	return e
}

// checkAssignment judges encoded bytes by the field rules that Envoy enforces.
func checkAssignment(name string, value []byte) error {
	var cla endpointv3.ClusterLoadAssignment
	if err := proto.Unmarshal(value, &cla); err != nil {
		return fmt.Errorf("assignment %s does not parse: %w", name, err)
	}
	if err := cla.ValidateAll(); err != nil {
		return fmt.Errorf("assignment %s breaks a rule of its clients: %w", name, err)
	}
	return nil
}
