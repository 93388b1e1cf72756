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

// Outcome is one reporter's counts on one instance. More calls may end within an
// interval than begin in it: they began earlier. Counts of 4,194,304 (2^22) and
// more are refused.
type Outcome struct {
	UID        registry.UID
	Issued     uint32 // calls begun within the interval
	OK         uint32 // calls that ended well within it
	Failed     uint32 // calls that failed within it, refused connections included
	Refused    uint32 // connections refused within it, where the reporter can tell
	InProgress uint32 // calls that had not ended at its end
	// Weight, of a stock gRPC client that picks by weight: it held the instance at
	// this weight for the whole interval. An entry whose counts are all 0 then says
	// that it was never picked. 0: not known.
	Weight uint32
}

// Outcomes are one reporter's counts on instances of one service within one
// interval. Without entries they say that it called nobody, which is not the same
// as saying nothing: runs of intervals in which an instance was never picked go
// on. Reports from the future, of more than a minute ago, or of an interval that
// is not above 0 and within a minute, are refused whole.
//
// They cost least when the instances of one reporter come in the same order every
// time.
type Outcomes struct {
	Reporter Reporter
	Kind     ReporterKind
	// At is the end of the interval, on this server's clock.
	At       time.Time
	Interval time.Duration
	Entries  []Outcome
}
