package xds

import (
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sightlinedev/sightline/views"
)

// wire appends protobuf to itself. Assignments are written this way because they
// are what changes all the time: built as generated messages, one of 133
// endpoints for Envoy takes 1 ms and 4,300 allocations at each change.
type wire []byte

// open starts a nested message or string; close, with what open returned, ends it.
func (w *wire) open(field protowire.Number) (at int) {
	*w = append(protowire.AppendTag(*w, field, protowire.BytesType), 0)
	return len(*w)
}

// close writes the length of what was appended since open. One byte is there
// for it; a longer one moves the content up.
func (w *wire) close(at int) {
	n := len(*w) - at
	size := protowire.SizeVarint(uint64(n))
	if size > 1 {
		*w = append(*w, make([]byte, size-1)...)
		copy((*w)[at+size-1:], (*w)[at:at+n])
	}
	protowire.AppendVarint((*w)[at-1:at-1], uint64(n))
}

// text appends a string field; an empty one is not written.
func (w *wire) text(field protowire.Number, s string) {
	if s != "" {
		*w = appendString(*w, field, s)
	}
}

// number appends a varint field; zero is not written.
func (w *wire) number(field protowire.Number, n uint64) {
	if n != 0 {
		*w = protowire.AppendVarint(protowire.AppendTag(*w, field, protowire.VarintType), n)
	}
}

// wrapped appends a google.protobuf.UInt32Value; zero is taken for unset.
func (w *wire) wrapped(field protowire.Number, n uint32) {
	if n != 0 {
		at := w.open(field)
		w.number(1, uint64(n))
		w.close(at)
	}
}

// Field numbers of envoy.config.endpoint.v3 and envoy.config.core.v3.
const (
	assignmentCluster   = 1
	assignmentEndpoints = 2
	assignmentPolicy    = 4
	policyDrop          = 2
	dropCategory        = 1
	dropPercentage      = 2 // FractionalPercent; its default denominator is HUNDRED
	percentNumerator    = 1

	localityID        = 1
	localityEndpoints = 2
	localityWeight    = 3
	localityPriority  = 5
	localityRegion    = 1
	localityZone      = 2
	localitySubZone   = 3

	entryEndpoint   = 1
	entryHealth     = 2
	entryMetadata   = 3
	entryWeight     = 4
	endpointAddress = 1
	addressSocket   = 1
	socketAddress   = 2
	socketPort      = 3

	filterMetadata = 1 // core.Metadata, a map
	mapKey         = 1
	mapValue       = 2
	structFields   = 1 // google.protobuf.Struct, a map
	valueString    = 3 // google.protobuf.Value
)

// encode writes the ClusterLoadAssignment.
func (a *assignment) encode() []byte {
	size := len(a.name) + 64
	for i := range a.localities {
		size += 64 + a.entrySize()*len(a.localities[i].members)
	}
	w := make(wire, 0, size)
	w.text(assignmentCluster, a.name)
	for i := range a.localities {
		a.locality(&w, &a.localities[i])
	}
	if a.drop {
		policy := w.open(assignmentPolicy)
		overload := w.open(policyDrop)
		w.text(dropCategory, emptyLocality)
		percent := w.open(dropPercentage)
		w.number(percentNumerator, 100)
		w.close(percent)
		w.close(overload)
		w.close(policy)
	}
	return w
}

// entrySize is about what one endpoint takes. The members of a service are
// alike: the first speaks for all.
func (a *assignment) entrySize() int {
	if !a.envoy {
		return 48
	}
	for i := range a.localities {
		for _, p := range a.localities[i].members {
			return 88 + len(p.member.Identity.Path()) + len(p.member.Identity.TrustDomain()) + len(p.member.Capability)
		}
	}
	return 0
}

func (a *assignment) locality(w *wire, l *locality) {
	at := w.open(assignmentEndpoints)
	id := w.open(localityID)
	w.text(localityRegion, l.region)
	w.text(localityZone, l.zone)
	w.text(localitySubZone, l.subZone)
	w.close(id)
	for i := range l.members {
		a.entry(w, &l.members[i])
	}
	w.wrapped(localityWeight, l.weight)
	w.number(localityPriority, uint64(l.priority))
	w.close(at)
}

func (a *assignment) entry(w *wire, p *placed) {
	at := w.open(localityEndpoints)
	endpoint := w.open(entryEndpoint)
	appendAddress(w, p.at)
	w.close(endpoint)
	w.number(entryHealth, uint64(p.health()))
	if a.envoy {
		md := w.open(entryMetadata)
		a.metadata(w, p.member)
		w.close(md)
		w.wrapped(entryWeight, p.weight)
	}
	w.close(at)
}

func appendAddress(w *wire, at netip.AddrPort) {
	address := w.open(endpointAddress)
	socket := w.open(addressSocket)
	text := w.open(socketAddress)
	*w = at.Addr().AppendTo(*w)
	w.close(text)
	w.number(socketPort, uint64(at.Port()))
	w.close(socket)
	w.close(address)
}

// metadata says who an endpoint is. It holds nothing that changes with a
// member's health; confidence is there only while the guard speaks for the
// service (XDS.md §2.2). Keys are written in order.
func (a *assignment) metadata(w *wire, m *views.Member) {
	at := w.open(filterMetadata)
	w.text(mapKey, metadataKey)
	fields := w.open(mapValue)
	field(w, "capability", m.Capability)
	if a.degraded {
		field(w, "confidence", views.ConfidenceDegraded.String())
	}
	if a.identity != m.Identity {
		a.identity, a.identityText = m.Identity, m.Identity.String()
	}
	field(w, "spiffe_id", a.identityText)
	field(w, "uid", m.UID.String())
	w.close(fields)
	w.close(at)
}

func field(w *wire, key, value string) {
	if value == "" {
		return
	}
	at := w.open(structFields)
	w.text(mapKey, key)
	v := w.open(mapValue)
	w.text(valueString, value)
	w.close(v)
	w.close(at)
}

// health is the status under which a listed member is sent. Degraded travels as
// weight, since gRPC drops DEGRADED endpoints; what the guard put back against
// its verdict is not called healthy.
func (p *placed) health() corev3.HealthStatus {
	if p.member == nil || p.member.State == views.Eligible || p.member.State == views.Degraded {
		return corev3.HealthStatus_HEALTHY
	}
	return corev3.HealthStatus_UNKNOWN
}
