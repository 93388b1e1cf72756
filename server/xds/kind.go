package xds

import (
	"strings"
	"time"

	"github.com/sightlinedev/sightline/views"
)

// kind is a family of clients that is served alike.
type kind struct {
	name      string // for metrics and people
	envoy     bool
	size      views.SizeClass
	java      bool
	wildcards bool // an empty list, or *, means everything; never so for gRPC
	// Responses of a type with additions, and with withdrawals, are at least this
	// far apart; the first goes at once.
	additionsEvery, withdrawalsEvery time.Duration
	// Responses with additions to services above largeService are.
	largeEvery time.Duration
}

// largeService is the number of listed members above which an update costs gRPC
// C-core so much that they are spaced (DESIGN.md §8).
const largeService = 250

// The kinds, by user_agent_name prefix (NAMES.md). gRPC Node reconnects every
// endpoint on every update, so its updates are spaced (PEERS.md).
var kinds = [...]struct {
	prefix string
	kind   kind
}{
	{"envoy", kind{name: "envoy", envoy: true, wildcards: true}},
	{"gRPC Go", kind{name: "grpc-go", size: views.SizeGo}},
	{"gRPC Java", kind{name: "grpc-java", size: views.SizeJava, java: true}},
	{"gRPC Node", kind{name: "grpc-node", size: views.SizeNode, additionsEvery: 10 * time.Second, withdrawalsEvery: time.Second}},
	{"gRPC", kind{name: "grpc-core", size: views.SizeCore, largeEvery: 5 * time.Second}},
}

// kindOf decides by the user agent; a client that does not say is an Envoy on
// delta and a gRPC client on state of the world.
func kindOf(userAgent string, delta bool) kind {
	for _, k := range kinds {
		if strings.HasPrefix(userAgent, k.prefix) {
			return k.kind
		}
	}
	return kind{name: "other", envoy: delta, wildcards: true, size: views.SizeCore}
}

// rendering is the shape of a client's resources.
func (k kind) rendering(n *clientNode) rendering {
	r := rendering{envoy: k.envoy, size: k.size, java: k.java, zone: n.zone}
	if k.envoy {
		r.outbound = n.outbound
	}
	return r
}
