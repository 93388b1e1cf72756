package health

import (
	"net/netip"
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

// ReporterKind says how a caller counts its outcomes; it decides what a count
// can mean (HEALTH.md §2).
type ReporterKind uint8

// The kinds of reporters.
const (
	FromLibrary ReporterKind = iota // our own client library, or an agent
	FromEnvoy                       // Envoy over LRS: refused connections are errors, hangs are hidden
	FromGRPC                        // a stock gRPC client over LRS: application errors count as errors
)

// Reporter is who made calls: an identity at an address, never a node id. It is
// comparable; two streams of one workload are one Reporter.
type Reporter struct {
	Identity identity.ID
	Addr     netip.Addr
	// Instance is the caller that an agent attested, in place of the address; 0:
	// none.
	Instance registry.UID
}

// Outcome is one reporter's counts on one instance.
type Outcome struct {
	UID        registry.UID
	Issued     uint32 // calls begun within the interval
	OK         uint32 // calls that ended well within it
	Failed     uint32 // calls that failed within it, refused connections included
	Refused    uint32 // connections refused within it, where the reporter can tell
	InProgress uint32 // calls that had not ended at its end
	// Weight, of a stock gRPC client: it held the instance at this weight for the
	// whole interval. An entry whose counts are all 0 then says that it was never
	// picked. 0: not known.
	Weight uint32
}

// Outcomes are one reporter's counts on instances of one service within one
// interval.
type Outcomes struct {
	Reporter Reporter
	Kind     ReporterKind
	// At is the end of the interval, on this server's clock.
	At       time.Time
	Interval time.Duration
	Entries  []Outcome
}
