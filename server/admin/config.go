package admin

import (
	"context"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/views"
)

// Config is what a Server is built from. Everything is required but what says
// otherwise. Functions may be called from several goroutines at once.
type Config struct {
	Process   Process
	Snapshot  func() *views.Snapshot
	Policy    func() *authz.Policy
	Principal func(context.Context) (identity.Principal, bool)
	// Read is desired.Writer.Read.
	Read func(func(*registry.Index))
	// Inspect is shard.Set.Inspect.
	Inspect func(context.Context, registry.Name) (i Inspection, ok bool, err error)
	// Clients lists the open streams of every kind, Resources the names on one
	// of them; not ok when it has ended.
	Clients   func() []Client
	Resources func(stream uint64) (list []Resource, ok bool)
	// Checks are those of /readyz, in its order.
	Checks func() []Check
	Store  func() Store
	// Shedding is views.Publisher.Shedding.
	Shedding func() (window time.Duration, since time.Time)
	// Alarms are what needs a person now, one line each. Nil: none are kept.
	Alarms func() []string
	// ViewAt is the service's stored view at a version: the newest that is not
	// above it, nil where the service had been deleted. It is not ok where
	// nothing is stored at or below the version.
	ViewAt func(context.Context, registry.Name, views.Version) (v *views.View, ok bool, err error)
	// Changes is store.Store.ChangesSince: the changes above a version, and
	// whether they are all.
	Changes func(context.Context, views.Version) (changes []views.Change, complete bool, err error)
	// Transitions is the log, newest first.
	Transitions func(context.Context, TransitionQuery) ([]Transition, error)
	Taps        *Taps
	API         limits.API

	// Record is desired.Writer.Record: it returns when the record is durable.
	Record func(context.Context, desired.Record) error
	// ReleaseQuarantine ends an instance's quarantine; not ok: it had none. Nil:
	// nothing is ever in quarantine.
	ReleaseQuarantine func(context.Context, registry.Name, registry.UID) (ok bool, err error)
	// Stance is what the region's observers make of themselves; nil, or a nil
	// Stance: nobody is suspected.
	Stance func() *health.Stance
	// ReleaseBrake ends the region's brake; not ok: it was not engaged. Nil: there
	// is none.
	ReleaseBrake func(context.Context) (ok bool, err error)
	// ReleaseSource is desired.Writer.Confirm: how many held removals of a
	// source go with its next list.
	ReleaseSource func(source string) int
	// Rollouts lists the services whose changed contract is on its way into
	// effect. Nil: none ever is.
	Rollouts func() []registry.Name
	// DialBack says how far the proof of an instance's address by dialling it back
	// is; not ok: it is not to be dialled. Nil: none ever is.
	DialBack func(registry.UID) (d DialBack, ok bool)
	// Holders lists the open streams that know a service.
	Holders func(registry.Name) []uint64
	// TestContract replays the recorded minutes of a service against a contract
	// with its defaults. Nil: nothing is recorded.
	TestContract func(ctx context.Context, n registry.Name, draft registry.Contract, since time.Duration) (ContractTrial, error)
}

// Process is what does not change while the server runs.
type Process struct {
	Version      string // of the build
	Region, Zone string
	Started      time.Time
}

// Check is one condition of readiness.
type Check struct {
	Name string
	Why  string // it does not hold; empty: it does
}

// Store is whether desired state can be written.
type Store struct {
	Frozen bool // full counts as frozen: writes are refused
	Reason string
	Since  time.Time
}

// Inspection is shard.Inspection: what the evaluation holds of one service.
type Inspection struct {
	Instances []health.Explanation // by UID, unadmitted ones too
	// Until and Why say what a changed view waits for; zero: nothing waits.
	Until time.Time
	Why   string
	// Third is health.Evaluator.CallersThird.
	Third health.Third
	// Rollout is a changed contract on its way into effect; nil: there is none.
	Rollout *Rollout
}

// DialBack is report.DialBack: how far the proof of an instance's address is.
type DialBack struct {
	Turn    bool // it is being dialled; else others of its identity come first
	Probers int  // that are at work
	// Prober met another identity than the one registered, at At; zero: none did.
	Prober health.Prober
	At     time.Time
}

// RolloutState is how far a changed contract is.
type RolloutState uint8

// The states of a rollout.
const (
	RolloutShadow  RolloutState = iota // beside the one in effect
	RolloutZones                       // in effect in some zones
	RolloutRefused                     // it would trip a guard
)

// Rollout is a changed contract on its way into effect.
type Rollout struct {
	State         RolloutState
	Contract      registry.Name
	Revision      uint64 // of the row
	Since         time.Time
	Next          time.Time // of the next step; zero: none comes
	Zones         []string  // in which it is in effect, sorted
	ZonesTotal    int
	WouldWithdraw int // members beyond those that are out
	Members       int
	Detail        string
}

// Protocol is how a client is connected.
type Protocol uint8

// The protocols.
const (
	Delta Protocol = iota
	StateOfTheWorld
	Watch
)

// ResourceType is a kind of resource that a client can subscribe to.
type ResourceType uint8

// The types, in the order in which they are shown. Views is Watch's only one.
const (
	Listeners ResourceType = iota
	Routes
	Clusters
	Endpoints
	Views
	resourceTypes
)

// Client is one open stream. What the node says of itself is its own word; Who
// is verified.
type Client struct {
	// Stream is unique among the streams of every protocol, and larger for
	// those that were opened later by the same protocol.
	Stream   uint64
	Node     string
	Who      identity.Principal
	Address  string // source, with the port where it is known
	Kind     string // kind and version, as it says
	Protocol Protocol
	Since    time.Time
	Parked   bool // its first answers wait for their turn
	Types    []ClientType
}

// ClientType is how far a client is with a type that it asked for.
type ClientType struct {
	Type     ResourceType
	Wildcard bool
	Names    int // subscribed by name
	Held     int // that it was sent and not told the removal of
	Unacked  int // answers that it has not confirmed
	Waiting  int // names whose change waits to be sent
	Acked    views.Version
	Sent     views.Version // zero: not known
	AckedAt  time.Time     // zero: not known
	// UnackedSince is when the oldest unconfirmed answer was sent; zero: all
	// are confirmed, or it is not known.
	UnackedSince time.Time
	Nacked       bool // it holds to a refusal
	NackText     string
	NackedAt     time.Time
}

// Resource is one name on a stream.
type Resource struct {
	Type     ResourceType
	Name     string        // as the client asked for it
	Service  registry.Name // that it stands for; zero: none
	Held     bool
	Pending  bool
	Isolated bool
	NackText string
}

// TransitionQuery chooses entries of the log; zero fields choose all.
type TransitionQuery struct {
	Name  registry.Name
	UID   registry.UID
	Since time.Time // at or after
	Until time.Time // before
	Limit int       // at most so many
}

// Transition is one entry of the log.
type Transition struct {
	At       time.Time
	Name     registry.Name
	UID      registry.UID
	From, To health.State
	Member   bool
	Rule     health.Rule
	Detail   string
	Removal  registry.Removal // set when the instance is gone
	Version  views.Version    // in which callers see it; zero: none
}
