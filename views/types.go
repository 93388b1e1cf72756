package views

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

// What readers of views need of the registry, so that they import views alone.
type (
	Name       = registry.Name
	UID        = registry.UID
	Port       = registry.Port
	PortNumber = registry.PortNumber
	Protocol   = registry.Protocol
	Endpoint   = registry.Endpoint
	State      = health.State
)

// The protocols a port can declare.
const (
	TCP   = registry.TCP
	UDP   = registry.UDP
	HTTP  = registry.HTTP
	HTTP2 = registry.HTTP2
	GRPC  = registry.GRPC
)

// ParseUID reads the written form of a uid.
func ParseUID(s string) (UID, error) { return registry.ParseUID(s) }

// ParseName reads a service's name as people write it, namespace/service. Both
// parts must be DNS labels: nothing else is ever registered.
func ParseName(s string) (Name, error) {
	namespace, service, _ := strings.Cut(s, "/")
	n := Name{Namespace: namespace, Service: service}
	if v := registry.CheckName(n); len(v) > 0 {
		return Name{}, fmt.Errorf("%q is not a service (namespace/name): %w", s, v)
	}
	return n, nil
}

// Version orders everything that is published in a region. Epoch rises at
// every start, Seq never goes back while the store lives (DESIGN.md §8).
type Version struct{ Epoch, Seq uint64 }

// String is the written form, epoch.seq.
func (v Version) String() string {
	return strconv.FormatUint(v.Epoch, 10) + "." + strconv.FormatUint(v.Seq, 10)
}

// IsZero reports whether the version is unset.
func (v Version) IsZero() bool { return v == Version{} }

// Compare orders versions by epoch, then seq.
func (v Version) Compare(o Version) int {
	if c := cmp.Compare(v.Epoch, o.Epoch); c != 0 {
		return c
	}
	return cmp.Compare(v.Seq, o.Seq)
}

// Less reports whether v is older than o.
func (v Version) Less(o Version) bool { return v.Compare(o) < 0 }

// ParseVersion reads the written form, and nothing that String does not write.
func ParseVersion(s string) (Version, error) {
	e, q, ok := strings.Cut(s, ".")
	epoch, err1 := strconv.ParseUint(e, 10, 64)
	seq, err2 := strconv.ParseUint(q, 10, 64)
	v := Version{epoch, seq}
	if !ok || err1 != nil || err2 != nil || v.String() != s {
		return Version{}, fmt.Errorf("%q is not a version (epoch.seq)", s)
	}
	return v, nil
}

// The four states (HEALTH.md §1).
const (
	Unknown    = health.Unknown
	Eligible   = health.Eligible
	Degraded   = health.Degraded
	Ineligible = health.Ineligible
)

// Confidence says how much a view's set can be trusted.
type Confidence uint8

// The confidences. ExistenceOnly: no evidence class is supplied.
const (
	ConfidenceFull Confidence = iota
	ConfidenceExistenceOnly
	ConfidenceSingleClass
	ConfidenceDegraded // the guard tripped, or only unadmitted instances are left
)

var confidenceNames = [...]string{"full", "existence-only", "single-class", "degraded"}

// String is the confidence's name on every surface.
func (c Confidence) String() string { return confidenceNames[c] }

// Evidence is the verdict's explanation at publication: the rule that fired
// and the numbers it saw. It is shown and stored, and never hashed.
type Evidence struct {
	Rule   string // R1..R7, or the admission rule
	Detail string // the numbers, for a person
	Since  time.Time
}

// Member is one instance inside a view. Members are immutable and may be
// shared between views.
type Member struct {
	UID        UID
	Label      string
	Identity   identity.ID
	Endpoint   Endpoint
	Ports      []PortNumber // effective numbers, in the order of View.Ports
	Region     string
	Zone       string
	Capability string // profile name; static
	BaseWeight uint32
	Weight     uint32 // effective, >= 1
	State      State
	Draining   bool
	// Listed says that the member is in the set that callers are given:
	// serving, or put back by the guard.
	Listed bool
	// LastResort marks a listed member that the guard put back at weight 1
	// (HEALTH.md §8): under PreferZone it goes to the last priority.
	LastResort bool
	// OwnLocality says that the member has a locality of its own in the
	// grouped gRPC form (DESIGN.md §9).
	OwnLocality bool

	Evidence Evidence
}

// DisplayName is the label, or the uid where there is none.
func (m *Member) DisplayName() string {
	if m.Label != "" {
		return m.Label
	}
	return m.UID.String()
}

// SizeClass is a group of gRPC client kinds that share a limit on per-endpoint
// localities (DESIGN.md §9).
type SizeClass uint8

// The size classes with their limits.
const (
	SizeCore SizeClass = iota // C-core and unknown clients: 64
	SizeJava                  // 250
	SizeGo                    // 300
	SizeNode                  // 500
	SizeClasses
)

// SizeLimit is the number of members up to which a class gets one locality per endpoint.
var sizeLimits = [SizeClasses]int{64, 250, 300, 500}

// Limit returns the class's limit of members in the per-endpoint form.
func (s SizeClass) Limit() int { return sizeLimits[s] }

// Form is the shape of an assignment towards a gRPC client.
type Form uint8

// The forms.
const (
	PerEndpoint Form = iota
	Grouped          // at most 50 stable localities by hash of the uid
	Flat
)

// Guard is the state of a view's fraction guard (HEALTH.md §8).
type Guard struct {
	Tripped bool     // anywhere
	Zones   []string // tripped zones, sorted; one empty string: judged by the region
	Floor   uint32   // percent
	Serving int      // |P| over the region at publication
	Members int      // |M| over the region at publication
}

// View is one published version of a service. It is immutable.
type View struct {
	Name         Name
	Endpoint     Version // newest change of members, weights, guard
	Config       Version // newest change of ports, identities, what shapes a Cluster or route
	EndpointHash [32]byte
	ConfigHash   [32]byte
	Revision     uint64 // registry revision it was computed from
	Ports        []Port // declared order; the first is the default
	DNSAnonymous bool
	Identities   []identity.ID // that may serve, sorted
	PreferZone   bool          // contract's locality mode
	Forms        [SizeClasses]Form
	Contract     Name
	Guard        Guard
	Confidence   Confidence
	Members      []*Member // sorted by UID; all of them, listed or not
	ListedCount  int
	PublishedAt  time.Time // never hashed, never compared
}

// Version is the newer of the view's two versions.
func (v *View) Version() Version {
	if v.Endpoint.Less(v.Config) {
		return v.Config
	}
	return v.Endpoint
}

// Lane is the urgency with which a publication travels (DESIGN.md §8).
type Lane uint8

// The lanes.
const (
	Withdrawals Lane = iota
	Additions
)

// Kinds says what differs between two views of a service; a set of bits.
type Kinds uint8

// The kinds of change.
const (
	Withdraw    Kinds = 1 << iota // a listed member is gone, or the service is
	Admit                         // a member is newly listed, or the service is new
	Reweight                      // a weight moved
	WeightCut                     // a weight fell by half or more
	GuardChange                   // the guard tripped or was released
	Reconfigure                   // ports, identities, exposure, contract fields
	Restate                       // states or labels of members, nothing that moves traffic
)

// Publication is one atomic step of the region: a service's view replaced.
type Publication struct {
	Version Version
	Name    Name
	Old     *View // nil: the service is new
	New     *View // nil: deleted
	Lane    Lane
	Kinds   Kinds
}
