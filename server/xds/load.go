package xds

import (
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/views"
)

const (
	// loadInterval is how often clients are asked to report what came of their
	// calls (DESIGN.md §1).
	loadInterval = 2 * time.Second
	// maxLoadInterval is the longest time that a report may cover: the backlog of
	// an outage would condemn instances that were repaired meanwhile (HEALTH.md §2).
	maxLoadInterval = loadInterval * 5 / 2
)

// LoadKind says how the counts of a load report come about, which decides what
// they can mean (HEALTH.md §2).
type LoadKind uint8

// The kinds of load reports.
const (
	// EnvoyLoad: counts by address. A refused connection is an error that was
	// never issued; a call that its caller gave up on has no outcome.
	EnvoyLoad LoadKind = iota
	// GRPCLoad: counts by locality. Errors of the application are errors; a
	// refused connection leaves no trace.
	GRPCLoad
)

var loadKindNames = [...]string{"envoy", "grpc"}

// String is the kind's name in metrics.
func (k LoadKind) String() string { return loadKindNames[k] }

// LoadReport is what one caller says of its calls to the instances of one
// service within one interval, over LRS. The caller is who the connection
// belongs to, whatever its node says of itself.
type LoadReport struct {
	Who      identity.Principal
	Kind     LoadKind
	At       time.Time     // when it arrived: the end of the interval
	Interval time.Duration // as the client measured it; over 0, at most 5 s
	Service  views.Name
	// Entries hold each uid once, in no particular order, and at least one count.
	// None at all: the caller, which called the service a moment ago, called nobody.
	Entries []LoadEntry
}

// LoadEntry is a caller's counts on one instance.
type LoadEntry struct {
	UID        views.UID
	Issued     uint32 // calls begun within the interval
	OK         uint32 // calls that ended well within it
	Failed     uint32 // calls that failed within it
	InProgress uint32 // calls that had not ended at its end
	// Weight, of a gRPC client: its assignments held the instance at this weight
	// for the whole interval, the smallest if it moved. An entry whose counts are
	// all 0 has one: the instance was never picked. 0: not known.
	Weight uint32
}

// LoadDrop is why a part of a load report was not taken in.
type LoadDrop uint8

// The reasons.
const (
	// DropInterval: the report covers more than 2.5 of our intervals, none, or a
	// time when this server was not there. It is dropped whole.
	DropInterval LoadDrop = iota
	// DropUnknown: no service of the region has that Cluster.
	DropUnknown
	// DropScope: the caller may not resolve the service.
	DropScope
	// DropShared: the locality is shared by several instances, whose counts
	// cannot be told apart.
	DropShared
	// DropEndpoint: the service has no instance of that uid or address.
	DropEndpoint
	// DropReused: the address went from one instance to another within the
	// interval.
	DropReused
	// DropRepeated: the report has a part of that Cluster already. No client
	// sends two, and each costs as much as the service has members.
	DropRepeated
	// LoadDrops is the number of reasons.
	LoadDrops
)

var loadDropNames = [LoadDrops]string{"interval", "unknown-service", "out-of-scope", "shared-locality", "unknown-endpoint", "address-reused",
	"repeated-cluster"}

// String is the reason's name in metrics and taps.
func (d LoadDrop) String() string { return loadDropNames[d] }
