package views

import (
	"slices"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// Input is what happened to one service since its Assembler was last applied.
type Input struct {
	// Change holds the newest rows of the service and of the instances that
	// changed; nil: the registry has nothing new.
	Change *registry.Change
	// Verdicts of the instances whose verdict changed. Verdicts on instances
	// that have no row are ignored.
	Verdicts []health.Verdict
}

// Candidate is the view that a service should have, before it has a version.
type Candidate struct {
	Name Name
	// View is what callers should be given, hashes set, versions not; nil:
	// the service is deleted. It is immutable.
	View *View
	// Base is the version of the view that the Assembler last knew to be
	// published (Assembler.Published); a Publisher that holds another one
	// refuses the candidate.
	Base Version
	// Revision is the registry revision of the newest Change applied.
	Revision uint64
	// Term is the leader's term; the shard's owner fills it in. One process
	// without a leader leaves it zero, as the Publisher does.
	Term uint64
	// Restamp asks for a new version of the same content (DESIGN.md §8). It is
	// granted once per service and process start.
	Restamp bool
	// Incidents are the events of this application, in the order in which they
	// were found. Each is reported once.
	Incidents []Incident
}

// IncidentKind names an event that a person should be able to read later.
type IncidentKind uint8

// The kinds of incident.
const (
	GuardTripped     IncidentKind = iota + 1 // a zone, or the region, fell below its floor
	GuardReleased                            // and is back, for the release time
	QuarantineLifted                         // to stay above the floor
	LastServing                              // no member of the service serves any more
	UnadmittedOnly                           // the last member went, unadmitted instances stand in
	Emptied                                  // the set is empty, for the legal reason that Reason names
	HeldLast                                 // the set would be empty without a legal reason: the last members stay listed
)

var incidentNames = [...]string{"", "guard-tripped", "guard-released", "quarantine-lifted", "last-serving-lost",
	"unadmitted-only", "emptied", "held-last"}

// String is the kind's name in events, logs and metrics.
func (k IncidentKind) String() string { return incidentNames[k] }

// Incident is one event of a service's assembly, with the numbers that caused it.
type Incident struct {
	Kind    IncidentKind
	Name    Name
	Zone    string // the zone judged; empty: the region
	UID     UID    // the instance concerned, where there is one
	Reason  string // why, in words
	Serving int    // |P| of the group judged
	Members int    // |M| of the group judged
	Floor   uint32 // percent
}

// Memory is what an Assembler must not forget over a restart. It rides in the
// evaluator's checkpoint; every field may be lost, at the price of a release
// without its 30 s, a form without its hysteresis, a locality that moves, or a
// ramp that goes back to its step.
type Memory struct {
	HadMembers bool          `json:",omitempty"` // the service has had a member
	Trips      []Trip        `json:",omitempty"` // tripped guards, by group
	Lifted     []UID         `json:",omitempty"` // quarantines that the guard lifted
	Forms      []Form        `json:",omitempty"` // form in each size class; empty: none chosen yet
	Own        []OwnLocality `json:",omitempty"` // members with a locality of their own
	Raised     []RaisedRamp  `json:",omitempty"` // ramps that were raised and have not ended
}

// Dated reports whether the memory holds any time at all.
func (m Memory) Dated() bool { return len(m.Trips)+len(m.Own) > 0 }

// Moved returns the memory with all its times as far from to as they were from
// from. A memory is written at one moment and read at another, by a clock that
// may have been set between the two: what had waited so long still has.
func (m Memory) Moved(from, to time.Time) Memory {
	move := func(t *time.Time) {
		if !t.IsZero() {
			*t = to.Add(t.Sub(from))
		}
	}
	m.Trips, m.Own = slices.Clone(m.Trips), slices.Clone(m.Own)
	for i := range m.Trips {
		move(&m.Trips[i].Since)
		move(&m.Trips[i].SteadySince)
	}
	for i := range m.Own {
		move(&m.Own[i].FullSince)
	}
	return m
}

// Trip is one tripped guard.
type Trip struct {
	Zone  string   // empty: the small zones, judged by the region
	Zones []string `json:",omitempty"` // the small zones that it covers
	Since time.Time
	// SteadySince is since when the set would be well above the floor without
	// the guard; zero while it would not. Release is 30 s later.
	SteadySince time.Time
}

// OwnLocality is a member's mark of an own locality.
type OwnLocality struct {
	UID       UID
	FullSince time.Time // since when its weight is full; zero while it is not
}

// RaisedRamp is a ramping member whose weight was raised (HEALTH.md §7).
type RaisedRamp struct {
	UID UID
	// To is the part of its full weight, in thousandths, under which the
	// member's weight does not fall while this ramp lasts.
	To uint32
}

// Outcome says what became of a candidate.
type Outcome uint8

// The outcomes.
const (
	Unchanged Outcome = iota // the published view has these very contents
	Published                // Result.Publication was made; feeds must be told
	Deferred                 // offer the newest candidate again at Result.Until
	Stale                    // computed from something older than what is published
)

var outcomeNames = [...]string{"unchanged", "published", "deferred", "stale"}

// String is the outcome's name in logs and metrics.
func (o Outcome) String() string { return outcomeNames[o] }

// Result is a Publisher's decision on a candidate.
type Result struct {
	Outcome     Outcome
	Publication Publication // when published
	// Kept says that the view has the contents last stored before the start
	// and keeps its versions; it is in no list of changes.
	Kept   bool
	Until  time.Time // when deferred
	Reason string    // when stale or deferred: why
	// Held is the version of the service that is published now, a deletion's
	// included; to be handed to Assembler.Published.
	Held Version
}

// Change is one entry of the ring of recent changes.
type Change struct {
	Version Version
	Name    Name
	Deleted bool
	Lane    Lane
	Kinds   Kinds
}

// Stored is what the view store remembers of a service's last view: enough to
// let the view keep its versions over a restart.
type Stored struct {
	Endpoint, Config         Version
	EndpointHash, ConfigHash [32]byte
}
