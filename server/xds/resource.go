package xds

import (
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/grpc/mem"

	"github.com/sightlinedev/sightline/views"
)

// typ is one of the four resource types, in the order in which they are sent.
type typ uint8

const (
	cds typ = iota
	eds
	lds
	rds
	types // their number
)

// typeURLs are the types' names on the wire.
var typeURLs = [types]string{
	"type.googleapis.com/envoy.config.cluster.v3.Cluster",
	"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
	"type.googleapis.com/envoy.config.listener.v3.Listener",
	"type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
}

var typeNames = [types]string{"CDS", "EDS", "LDS", "RDS"}

// String is the type's short name, for people.
func (t typ) String() string { return typeNames[t] }

// url is the type's name on the wire.
func (t typ) url() string { return typeURLs[t] }

// outboundName is the name of Envoy's one Listener and of its
// RouteConfiguration (NAMES.md).
const outboundName = "sightline-outbound"

// maxResponse bounds the encoded size of a response, removed names included:
// gRPC clients receive at most 4 MiB (ENGINE.md §9).
const maxResponse = 3 << 20

// resourceName is the parsed name of a resource of one service.
type resourceName struct {
	text    string     // as on the wire: checkout.shop, checkout.shop:9090
	service views.Name // shop/checkout
	port    uint16     // 0: the default port's form
}

// resolveName parses a name of the form service.namespace[:port]. Whether the
// service exists and declares the port is for the renderer to say; anything
// that can name no service (one label, three labels, upper case, a port that is
// not in canonical decimal) is refused.
func resolveName(text string) (resourceName, bool) {
	host, port, hasPort := strings.Cut(text, ":")
	svc, ns, ok := strings.Cut(host, ".")
	if !ok || !isLabel(svc) || !isLabel(ns) {
		return resourceName{}, false
	}
	n := resourceName{text: text, service: views.Name{Namespace: ns, Service: svc}}
	if !hasPort {
		return n, true
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil || p == 0 || strconv.FormatUint(p, 10) != port {
		return resourceName{}, false
	}
	n.port = uint16(p)
	return n, true
}

// isLabel reports whether s is a lower-case DNS label (DESIGN.md §6).
func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
			return false
		}
	}
	return true
}

// rendering says for whom bytes are shaped. A stream passes all that it knows
// of its client; the renderer keys its cache by what matters for the resource
// at hand (form rather than size class, zone only where the view prefers zones).
type rendering struct {
	envoy bool
	size  views.SizeClass // gRPC only
	java  bool            // gRPC only: ignores an empty assignment, so it gets a full drop instead
	zone  string          // the caller's zone
	// outbound is where this Envoy's outbound listener binds: node metadata
	// outboundKey, as ip:port. Zero: renderConfig.outbound.
	outbound netip.AddrPort
}

// outboundKey is the key of node.metadata by which an Envoy asks for another
// address of its outbound listener than the server's default.
const outboundKey = "sightline.outbound"

// encoded is one resource, encoded once and shared by every stream that is
// given it. It is immutable.
type encoded struct {
	name   string
	at     views.Version // the view's endpoint version (EDS) or config version (the others); composites: §1 of ENGINE.md
	render string        // short hash of everything beside the view that shaped the bytes; of all the bytes for a composite

	// delta is the whole resources entry of a DeltaDiscoveryResponse: tag of
	// field 2, length, Resource{name, version at-render, and last the Any}.
	// any is its suffix, from the tag of Resource's field 2 on: the same bytes
	// are the whole resources entry of a DiscoveryResponse, whose field 2 is an
	// Any too.
	delta []byte
	any   []byte
	// The same two as the transport takes them, made once.
	deltaPart, anyPart mem.Buffer
}

// version is the resource's version on a delta stream: epoch.seq-render.
func (e *encoded) version() string { return e.at.String() + "-" + e.render }

// parseVersion reads a delta resource version back. ok is false for versions
// that are not of our making.
func parseVersion(s string) (at views.Version, render string, ok bool) {
	v, render, ok := strings.Cut(s, "-")
	if !ok {
		return views.Version{}, "", false
	}
	at, err := views.ParseVersion(v)
	return at, render, err == nil
}

// renderConfig is what shapes resources beside views and clients.
type renderConfig struct {
	outbound netip.AddrPort // where Envoy's outbound listener binds
	// refused is told of a resource that breaks a rule of its clients and is
	// not sent: the last good bytes stay, or there is none. It must not call the
	// renderer. May be nil.
	refused func(t typ, name string, reason error)
}

// serviceSet is the set of services that a composite is made of.
type serviceSet struct {
	// key is a wrapping sum of one 64-bit hash per (Cluster name, config
	// version): equal keys, equal sets. The renderer caches composites by it.
	key uint64
	// at is the version that the composite shows when it is encoded: the newest
	// of its config versions and of the changes of the set.
	at views.Version
	// members lists the set in order of name. It is called on a cache miss only.
	members func() []setMember
}

// setMember is a service in a composite, with the names of those of its
// Clusters that may be routed to (some of clusterNames, in that order).
type setMember struct {
	view     *views.View
	clusters []string
}

// The renderer, in render*.go, offers the engine these. All of them may be
// called from any goroutine; a nil *encoded says that there is no such resource
// (undeclared port, or a type that this kind of client does not get per service).
//
//	newRenderer(renderConfig) *renderer
//	(*renderer).resource(t typ, v *views.View, n resourceName, rd rendering) *encoded
//	(*renderer).withdrawn(last *views.View, at views.Version, n resourceName, rd rendering) *encoded
//		the assignment of a service that is deleted, forbidden or unknown, for a
//		client that cannot be told a removal: no endpoint; towards Java one
//		endpoint (the last of last, which may be nil, or 192.0.2.1:9) and a drop of 100 %
//	(*renderer).forget(views.Name)
//		drops what is kept of a service; to be called when it is deleted or new
//	(*renderer).clusterNames(v *views.View) []string
//		the names of the service's Clusters, the default port's first
//	(*renderer).composite(t typ, set serviceSet, rd rendering) *encoded
//		Envoy's Listener (set is empty) or RouteConfiguration, named outboundName
//
// The codec, in codec.go:
//
//	newEncoded(t typ, name string, at views.Version, render string, msg proto.Message) (*encoded, error)
//	(*encoded).withAt(views.Version) *encoded     same bytes under another version
//	deltaResponse(t typ, nonce string, res []*encoded, removed []string, controlPlane string) *response
//	sotwResponse(t typ, version, nonce string, res []*encoded, controlPlane string) *response
//	(*response).size() int                        bytes on the wire
//	ServerOption() grpc.ServerOption              the codec: SendMsg(*response) shares the bytes, RecvMsg into
//	                                              a wireMessage hands it the bytes, all else is ordinary proto

// wireMessage is a request that reads itself from its wire bytes, which it must
// not retain.
type wireMessage interface{ readWire([]byte) error }
