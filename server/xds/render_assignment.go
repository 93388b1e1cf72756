package xds

import (
	"fmt"
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sightlinedev/sightline/views"
)

// tier orders members for a caller that prefers its zone. Tiers that have
// members become priorities 0, 1, 2 without a gap, which every client demands.
type tier uint8

const (
	tierNear tier = iota // the caller's zone; every member where zones do not matter
	tierFar
	tierLast // put back by the guard although it was found out
	tiers
)

// placed is one listed member, and where callers reach it.
type placed struct {
	member *views.Member
	at     netip.AddrPort
	tier   tier
}

// assignment builds the ClusterLoadAssignment of one port for one kind of
// client. The error says which rule of the clients the view breaks.
func assignment(v *views.View, name string, port int, k formKey) (*endpointv3.ClusterLoadAssignment, error) {
	if k.shape == shapeDrop {
		return dropAll(name, lastAddress(v, port)), nil
	}
	ps, err := place(v, port, k.zone)
	if err != nil {
		return nil, fmt.Errorf("assignment %s: %w", name, err)
	}
	cla := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	switch k.shape {
	case shapeEnvoy:
		cla.Endpoints = trueLocalities(v, ps)
	case shapePerEndpoint:
		cla.Endpoints = ownLocalities(ps)
	case shapeGrouped:
		cla.Endpoints = groupedLocalities(v, ps)
	default:
		cla.Endpoints = flatLocalities(ps)
	}
	numberPriorities(cla.Endpoints)
	return cla, nil
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
		if m.Weight == 0 {
			return nil, fmt.Errorf("member %s has weight 0, which clients refuse", m.UID)
		}
		at := netip.AddrPortFrom(m.Endpoint.Addr.Unmap().WithZone(""), numberAt(v, m, port))
		if _, dup := seen[at]; dup {
			continue
		}
		seen[at] = struct{}{}
		ps = append(ps, placed{member: m, at: at, tier: tierOf(v, m, zone)})
	}
	slices.Reverse(ps)
	return ps, nil
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

// numberPriorities turns the tiers that were put into Priority into numbers
// without a gap, and puts localities in that order, otherwise as they were.
func numberPriorities(ls []*endpointv3.LocalityLbEndpoints) {
	var present [tiers]bool
	for _, l := range ls {
		present[l.Priority] = true
	}
	var number [tiers]uint32
	next := uint32(0)
	for t := range present {
		number[t] = next
		if present[t] {
			next++
		}
	}
	for _, l := range ls {
		l.Priority = number[l.Priority]
	}
	slices.SortStableFunc(ls, func(a, b *endpointv3.LocalityLbEndpoints) int { return int(a.Priority) - int(b.Priority) })
}

// health is the status under which a listed member is sent. Degraded travels as
// weight, since gRPC drops DEGRADED endpoints; what the guard put back against
// its verdict is not called healthy.
func health(m *views.Member) corev3.HealthStatus {
	if m.State == views.Eligible || m.State == views.Degraded {
		return corev3.HealthStatus_HEALTHY
	}
	return corev3.HealthStatus_UNKNOWN
}

// endpoints makes the entries of a whole assignment out of one allocation each.
type endpoints struct {
	slots []endpointSlot
}

type endpointSlot struct {
	entry    endpointv3.LbEndpoint
	ident    endpointv3.LbEndpoint_Endpoint
	endpoint endpointv3.Endpoint
	address  corev3.Address
	kind     corev3.Address_SocketAddress
	socket   corev3.SocketAddress
	port     corev3.SocketAddress_PortValue
	weight   wrapperspb.UInt32Value
}

func newEndpoints(n int) *endpoints { return &endpoints{slots: make([]endpointSlot, n)} }

// add makes the entry of one address; weight 0 leaves the weight unset.
func (es *endpoints) add(at netip.AddrPort, status corev3.HealthStatus, weight uint32) *endpointv3.LbEndpoint {
	s := &es.slots[0]
	es.slots = es.slots[1:]
	s.port.PortValue = uint32(at.Port())
	s.socket.Address = at.Addr().String()
	s.socket.PortSpecifier = &s.port
	s.kind.SocketAddress = &s.socket
	s.address.Address = &s.kind
	s.endpoint.Address = &s.address
	s.ident.Endpoint = &s.endpoint
	s.entry.HostIdentifier = &s.ident
	s.entry.HealthStatus = status
	if weight > 0 {
		s.weight.Value = weight
		s.entry.LoadBalancingWeight = &s.weight
	}
	return &s.entry
}

// unreachable stands in where a service never had an address: it is reserved
// for documentation (RFC 5737), and 9 is the discard port.
var unreachable = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 9)

// lastAddress is an address that the service has or had, or unreachable.
func lastAddress(v *views.View, port int) netip.AddrPort {
	if v == nil {
		return unreachable
	}
	for _, m := range slices.Backward(v.Members) {
		if m.Endpoint.Addr.IsValid() {
			return netip.AddrPortFrom(m.Endpoint.Addr.Unmap().WithZone(""), numberAt(v, m, port))
		}
	}
	return unreachable
}

// dropAll is an empty service as gRPC Java understands it: from 1.77 on it
// ignores an assignment without endpoints, and obeys a drop of everything beside
// one endpoint (PEERS.md part 2 §4).
func dropAll(name string, at netip.AddrPort) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{
			Locality:            &corev3.Locality{SubZone: emptyLocality},
			LoadBalancingWeight: wrapperspb.UInt32(1),
			LbEndpoints:         []*endpointv3.LbEndpoint{newEndpoints(1).add(at, corev3.HealthStatus_HEALTHY, 0)},
		}},
		Policy: &endpointv3.ClusterLoadAssignment_Policy{
			DropOverloads: []*endpointv3.ClusterLoadAssignment_Policy_DropOverload{{
				Category:       emptyLocality,
				DropPercentage: &typev3.FractionalPercent{Numerator: 100, Denominator: typev3.FractionalPercent_HUNDRED},
			}},
		},
	}
}

// emptyLocality names the locality and the drop category of an empty service.
const emptyLocality = "empty"

// withdrawn is the assignment of a service that is deleted, forbidden or
// unknown, for a client that cannot be told a removal. last is what the service
// looked like, or nil.
func (r *renderer) withdrawn(last *views.View, at views.Version, n resourceName, rd rendering) *encoded {
	k := formKey{typ: eds, port: n.port, shape: shapePerEndpoint}
	msg := &endpointv3.ClusterLoadAssignment{ClusterName: n.text}
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
		msg = dropAll(n.text, lastAddress(last, port))
	}
	e, err := newEncoded(eds, n.text, at, k.render(), msg)
	if err != nil {
		r.report(eds, n.text, err)
	}
	return e
}
