package main

import (
	"fmt"
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/views"
)

const (
	trustDomain = "bench.test"
	servicePort = 8080
	namespace   = "bench"
	fullWeight  = 100
)

// estate is the region of a workload. Every change of it is a restart: a
// service's oldest member leaves and a new one comes. That holds a withdrawal,
// so it travels at once, and it gives every change a number that can be read in
// what a client receives: the address of the newest member.
type estate struct {
	services [][]*views.Member // by service, oldest first
	newest   uint64            // uid last given
}

// changeBase is where the address numbers of changes begin; those below are of
// the members of the start.
const changeBase = 1000

func newEstate(services, instances int) *estate {
	e := &estate{services: make([][]*views.Member, services)}
	for s := range e.services {
		for i := range instances {
			e.services[s] = append(e.services[s], e.member(s, i+1))
		}
	}
	return e
}

func serviceName(s int) views.Name {
	return views.Name{Namespace: namespace, Service: fmt.Sprintf("s%04d", s)}
}

func serviceIdentity(s int) identity.ID {
	return identity.MustParse("spiffe://" + trustDomain + "/ns/" + namespace + "/sa/" + serviceName(s).Service)
}

// member makes a service's member whose address has that number.
func (e *estate) member(s, number int) *views.Member {
	e.newest++
	return &views.Member{
		UID: views.UID(e.newest), Identity: serviceIdentity(s),
		Endpoint: views.Endpoint{Addr: addressOf(number)},
		Ports:    []views.PortNumber{{Name: "http", Number: servicePort}},
		Region:   "local", Zone: "zone-" + string(rune('a'+number%3)),
		BaseWeight: fullWeight, Weight: fullWeight, State: views.Eligible, Listed: true,
	}
}

func addressOf(number int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(number >> 16), byte(number >> 8), byte(number)})
}

// numberOf is the reverse of addressOf, for the text of an address. Clients call
// it for every endpoint that they receive.
func numberOf(address []byte) (number int, ok bool) {
	part, parts := 0, 0
	for i := range len(address) + 1 {
		c := byte('.')
		if i < len(address) {
			c = address[i]
		}
		switch {
		case c == '.':
			if parts == 0 && part != 10 {
				return 0, false
			}
			number, part = number<<8|part, 0
			parts++
		case c >= '0' && c <= '9':
			part = part*10 + int(c-'0')
		default:
			return 0, false
		}
	}
	return number & (1<<24 - 1), parts == 4
}

// restart replaces the service's oldest member, as the change of that number.
func (e *estate) restart(s, number int) {
	e.services[s] = append(slices.Clone(e.services[s][1:]), e.member(s, changeBase+number))
}

// view is the service as it is now.
func (e *estate) view(s int) *views.View {
	v := &views.View{
		Name: serviceName(s), Revision: 1,
		Ports:      []views.Port{{Name: "http", Number: servicePort, Protocol: views.HTTP2}},
		Identities: []identity.ID{serviceIdentity(s)},
		Members:    e.services[s], ListedCount: len(e.services[s]),
	}
	v.Guard.Members, v.Guard.Serving = len(v.Members), len(v.Members)
	v.EndpointHash, v.ConfigHash = views.HashEndpoint(v), views.HashConfig(v)
	return v
}

// assignment is what an Envoy is sent for a view, for the baselines: a test
// compares it with what ours sends.
func assignment(v *views.View) *endpointv3.ClusterLoadAssignment {
	zones := make(map[string]*endpointv3.LocalityLbEndpoints)
	a := &endpointv3.ClusterLoadAssignment{ClusterName: v.Name.Host()}
	for _, m := range v.Members {
		l := zones[m.Zone]
		if l == nil {
			l = &endpointv3.LocalityLbEndpoints{Locality: &corev3.Locality{Region: m.Region, Zone: m.Zone}, LoadBalancingWeight: wrapperspb.UInt32(0)}
			zones[m.Zone] = l
			a.Endpoints = append(a.Endpoints, l)
		}
		l.LbEndpoints = append(l.LbEndpoints, endpointOf(m))
		l.LoadBalancingWeight.Value += m.Weight
	}
	slices.SortFunc(a.Endpoints, func(x, y *endpointv3.LocalityLbEndpoints) int {
		if x.Locality.Zone < y.Locality.Zone {
			return -1
		}
		return 1
	})
	return a
}

func endpointOf(m *views.Member) *endpointv3.LbEndpoint {
	text := func(s string) *structpb.Value { return structpb.NewStringValue(s) }
	return &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address:       m.Endpoint.Addr.String(),
				PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(m.Ports[0].Number)},
			}}},
		}},
		HealthStatus: corev3.HealthStatus_HEALTHY,
		Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"sightline": {
			Fields: map[string]*structpb.Value{"spiffe_id": text(m.Identity.String()), "uid": text(m.UID.String())},
		}}},
		LoadBalancingWeight: wrapperspb.UInt32(m.Weight),
	}
}

// encodeAssignment is the same as bytes.
func encodeAssignment(v *views.View) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(assignment(v))
}

// change is one restart of the workload.
type change struct{ Service, Number int }

// schedule spreads changes over the services, every service once before any a
// second time: no two changes of one service are near enough to merge.
func schedule(from, count, services int) []change {
	changes := make([]change, count)
	for i := range changes {
		n := from + i
		// A step that shares no divisor with the number of services visits all.
		changes[i] = change{Service: n * stepOf(services) % services, Number: n}
	}
	return changes
}

// stepOf is a step through that many services that visits each.
func stepOf(services int) int {
	for step := services*3/8 + 1; ; step++ {
		if divisor(step, services) == 1 {
			return step
		}
	}
}

func divisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// subscriptions are the services that a stream asks for.
func subscriptions(stream, each, services int) []int {
	list := make([]int, each)
	for i := range list {
		list[i] = (stream*each + i) % services
	}
	return list
}
