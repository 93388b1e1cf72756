package registry

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/identity"
)

// Name identifies a service. Both parts are DNS labels (NAMES.md).
type Name struct{ Namespace, Service string }

// String is the form people write: shop/checkout.
func (n Name) String() string { return n.Namespace + "/" + n.Service }

// Host is the form every wire uses: checkout.shop.
func (n Name) Host() string { return n.Service + "." + n.Namespace }

// IsZero reports whether the name is empty.
func (n Name) IsZero() bool { return n == Name{} }

// Compare orders names by namespace, then service.
func (n Name) Compare(o Name) int {
	if c := strings.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Service, o.Service)
}

// UID identifies one incarnation of an instance. It is assigned by the
// registry and never used again, also after a restore (DESIGN.md §6).
type UID uint64

// String is the written form: i17.
func (u UID) String() string { return "i" + strconv.FormatUint(uint64(u), 10) }

// ParseUID reads the written form, and nothing that String does not write: two
// spellings of one instance would be two keys.
func ParseUID(s string) (UID, error) {
	digits, ok := strings.CutPrefix(s, "i")
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || n == 0 || UID(n).String() != s {
		return 0, fmt.Errorf("%q is not an instance uid (i followed by digits)", s)
	}
	return UID(n), nil
}

// Protocol is what a port speaks; it chooses Envoy's upstream protocol and the
// label of SRV names.
type Protocol uint8

// The protocols a port can declare. The zero value is plain TCP.
const (
	TCP Protocol = iota
	UDP
	HTTP
	HTTP2
	GRPC
)

// Port is one named port of a service.
type Port struct {
	Name     string // DNS label of at most 15 characters (RFC 6335)
	Number   uint16 // the number that is dialled; 1..65535
	Protocol Protocol
}

// PortNumber is an instance's own number for one of its service's port names.
type PortNumber struct {
	Name   string
	Number uint16
}

// Service is a name that callers can resolve.
type Service struct {
	Name         Name
	Ports        []Port // in declared order; the first is the default port
	DNSAnonymous bool   // exposure: plain DNS may answer it
	Contract     string // name of the contract in the same namespace; empty: the service's own name
	Profile      string // capability profile of its instances, in the same namespace; empty: supplies no class
	Consumes     []Name // declared upstreams, of every instance
	Annotations  map[string]string
	Source       string // owner of the row: api, file:<name>, kube:<name>
	Revision     uint64 // registry revision of the last change to this row
}

// Endpoint is where an instance is reached. Exactly one of the three is set.
type Endpoint struct {
	Addr netip.Addr // an IP; the port follows from the service's ports and the instance's overrides
	Host string     // a host name (capability external)
	URL  string     // a managed function: answered by Resolve and Watch only
}

// ProofKind says how an address was shown to belong to its identity (DESIGN.md §6).
type ProofKind uint8

// The kinds of address proof.
const (
	Unproved       ProofKind = iota
	ByAuthority              // a file, an orchestrator
	ByOperator               // asserted by an operator
	ByDialBack               // mTLS from the prober
	ByChallenge              // a challenge served from the address
	ByRegistration           // self-registration, accepted as proof in dev and demo only
)

// Instance is one running copy of a service.
type Instance struct {
	UID      UID
	Service  Name
	Label    string // optional DNS label, unique among the service's live instances
	Identity identity.ID
	Endpoint Endpoint
	Ports    []PortNumber // overrides by port name, sorted by name
	Region   string
	Zone     string
	Weight   uint32        // base weight, 1..1000; 100 when not given
	Profile  string        // capability profile; empty: the service's
	Lease    time.Duration // 0: no lease, its authority says when it goes
	Draining bool          // its authority marked it terminating
	Proof    ProofKind
	Consumes []Name
	Metadata map[string]string
	Source   string
	Revision uint64
}

// DisplayName is the label, or the uid where there is none.
func (i *Instance) DisplayName() string {
	if i.Label != "" {
		return i.Label
	}
	return i.UID.String()
}

// EvidenceClass is one of the three kinds of evidence.
type EvidenceClass uint8

// The evidence classes.
const (
	ClassProbe EvidenceClass = iota
	ClassSelf
	ClassCallers
)

// ClassSet is a set of evidence classes, one bit per class.
type ClassSet uint8

// Has reports whether the class is in the set.
func (s ClassSet) Has(c EvidenceClass) bool { return s&(1<<c) != 0 }

// With returns the set with the class added.
func (s ClassSet) With(c EvidenceClass) ClassSet { return s | 1<<c }

// Profile says which signals a runtime can give (HEALTH.md §1, "supplied").
type Profile struct {
	Namespace string
	Name      string
	Supplies  ClassSet
	External  bool // third-party endpoints: host names allowed, addresses asserted by an operator
	Source    string
	Revision  uint64
}

// ProbeKind is how a prober asks.
type ProbeKind uint8

// The probe kinds.
const (
	ProbeTCP ProbeKind = iota
	ProbeGRPC
	ProbeHTTP
)

// Probe is how the instances of a service are probed.
type Probe struct {
	Kind     ProbeKind
	Port     string // port name; empty: the default port
	Service  string // gRPC health service name
	Path     string // HTTP path
	Interval time.Duration
	Timeout  time.Duration
}

// DependencyAuthority is what a degraded dependency may do to an instance.
type DependencyAuthority uint8

// The authorities; weight reduction is the default.
const (
	ReduceWeight DependencyAuthority = iota
	Informational
	Unreadiness // only where the dependency is not shared
)

// Dependency is something named that a self-report may call degraded.
type Dependency struct {
	Name      string
	Shared    bool
	Authority DependencyAuthority
	Weight    uint32 // percent of the weight kept while degraded, 1..100; 50 by default
}

// SilencePolicy says what silence of every supplied class means.
type SilencePolicy uint8

// The silence policies.
const (
	SilenceUnknown SilencePolicy = iota
	SilenceIneligible
)

// LocalityMode says how callers prefer zones.
type LocalityMode uint8

// The locality modes.
const (
	Spread LocalityMode = iota
	PreferZone
)

// GRPCForm says how assignments for gRPC clients are shaped (DESIGN.md §9).
type GRPCForm uint8

// The gRPC forms a contract may ask for.
const (
	FormPerEndpoint GRPCForm = iota
	FormFlat
)

// Quarantine holds the flap-damping numbers (HEALTH.md §7).
type Quarantine struct {
	Changes int // eligibility changes within Window that start a quarantine
	Window  time.Duration
	Hold    time.Duration // the first hold; doubles
	MaxHold time.Duration
}

// Contract says what health means for a service. A missing field is its
// default, never zero: a Contract that went through WithDefaults has every
// field set. Ranges: HEALTH.md §9.
type Contract struct {
	Name            Name
	Lease           time.Duration // granted to leases that do not ask for their own
	CallersHalfLife time.Duration
	ProbeHalfLife   time.Duration
	CallersOut      float64
	CallersIn       float64
	ProbeOut        float64
	ProbeIn         float64
	Probe           Probe
	ReturnHold      time.Duration
	GuardPercent    uint32        // floor of members serving, per zone
	Ramp            time.Duration // 60 s by default; NoRamp says none
	NoRamp          bool
	Dependencies    []Dependency // sorted by name
	Require         ClassSet     // signals that the runtime must supply
	Silence         SilencePolicy
	IgnoreLRSErrors bool
	Locality        LocalityMode
	GRPC            GRPCForm
	Quarantine      Quarantine
	Identities      []identity.ID // that may serve; empty: any of the service's instances
	Source          string
	Revision        uint64
}

// Removal says why an instance or a service is gone; what may empty a service
// depends on it (DESIGN.md §6, "Empty").
type Removal uint8

// The reasons of a removal.
const (
	NotRemoved        Removal = iota
	RemovedByList             // its authority's complete list no longer has it
	Deregistered              // by itself
	RemovedByOperator         // delete, or an override
	AddressTaken              // another identity proved its address
	LapsedOut                 // its lease lapsed and the ten minutes of membership passed
	ServiceDeleted
)

// InstanceChange is one instance's part of a Change.
type InstanceChange struct {
	UID     UID
	Row     *Instance // nil: removed
	Removal Removal
	Profile Profile // effective profile, when Row is set
}

// Change is what the registry tells a service's shard after a commit: the
// newest rows of one service. Rows are immutable once in a Change.
type Change struct {
	Name      Name
	Revision  uint64
	Service   *Service // nil: deleted, or its stored row does not decode
	Removal   Removal  // why, when deleted; NotRemoved: it is not, its row does not decode
	Contract  Contract // effective, with defaults
	Instances []InstanceChange
	// DamagedRows counts instances of the service whose stored rows do not
	// decode: who they are is not known, so it is never published empty.
	DamagedRows int
}
