package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// SelfStatus is what an instance says of itself.
type SelfStatus uint8

// The self statuses, ordered so that of two reports of one moment the more
// cautious speaks. The zero value is no status, and no sample may carry it.
const (
	NoStatus SelfStatus = iota
	Serving
	Draining
	NotServing
)

var selfStatusNames = [...]string{"none", "SERVING", "DRAINING", "NOT_SERVING"}

// String is the status's name on every surface.
func (s SelfStatus) String() string { return selfStatusNames[s] }

// ProbeResult is how one probe of an instance ended.
type ProbeResult uint8

// The results of a probe. The zero value is no result, and no sample may carry
// it.
const (
	NoResult ProbeResult = iota
	ProbeOK
	ProbeFailed        // it answered, and not well
	ProbeRefused       // the connection was refused
	ProbeTimeout       // nothing came within the timeout
	ProbeUnreachable   // the network says that there is no way to it
	ProbeWrongIdentity // another identity answered than the one registered
)

var probeResultNames = [...]string{"none", "OK", "FAILED", "REFUSED", "TIMEOUT", "UNREACHABLE", "WRONG_IDENTITY"}

// String is the result's name on every surface.
func (r ProbeResult) String() string { return probeResultNames[r] }

// Prober is who probed: a name that is unique in the region, and where it stands.
type Prober struct{ Name, Zone string }

// Sample is one instance's word about itself, or one prober's result on it.
// Callers' outcomes come as Outcomes.
type Sample struct {
	UID   registry.UID
	Class registry.EvidenceClass
	// At is when it was observed, on this server's clock: its arrival less the
	// age that the reporter stated.
	At time.Time
	// Status is the instance's own word (ClassSelf).
	Status SelfStatus
	// Interval is how often the reporter said it would report; 0 is 2 s. It
	// sets the silence limit (HEALTH.md §1).
	Interval time.Duration
	// Degraded names the dependencies that the instance calls degraded,
	// sorted; recorded, and shown to whoever asks why.
	Degraded []string
	// Prober and Result are who probed, and how it ended (ClassProbe).
	Prober Prober
	Result ProbeResult
}

// Urgent reports whether the sample must not be lost when an inbox is full:
// the instance's word that it does not serve, or is about to stop
// (STORE.md §6).
func (s *Sample) Urgent() bool {
	if s.Class == registry.ClassProbe {
		return s.Result == ProbeRefused
	}
	return s.Class == registry.ClassSelf && (s.Status == NotServing || s.Status == Draining)
}

// Transition is one entry of the log: an instance's state or membership moved.
type Transition struct {
	UID      registry.UID
	From, To State
	Member   bool // after the transition
	Draining bool // after the transition
	Rule     Rule
	Detail   string
	Removal  registry.Removal // set when the instance is gone
	At       time.Time
}

// IncidentKind is what an incident is about.
type IncidentKind uint8

// The incidents that one service's evidence can raise. What happens to its set
// is the views' to report.
const (
	// SuspectLeases: so many leases lapsed within one term that the renewal
	// path is suspect (HEALTH.md §6).
	SuspectLeases IncidentKind = iota
	// InQuarantine: an instance changed so often that it is held out for a
	// while (HEALTH.md §7). It is for the instance's owner.
	InQuarantine
)

var incidentNames = [...]string{"suspect-leases", "quarantine"}

// String is the incident's name in logs and metrics.
func (k IncidentKind) String() string { return incidentNames[k] }

// Incident is something that a person should hear of, once per episode.
type Incident struct {
	Kind   IncidentKind
	Detail string // the numbers
	At     time.Time
	// UID is the instance that it is about; 0: the service. Flaps and Until are
	// a quarantine's history, oldest first, and its end.
	UID   registry.UID
	Flaps []Flap
	Until time.Time
}

// Flap is one change between serving and ineligible.
type Flap struct {
	At      time.Time
	Serving bool // it came back; false: it went out
	Rule    Rule // that decided
}

// Probing says how an instance is to be probed, where that is not as its
// contract says.
type Probing struct {
	UID        registry.UID
	Confirming bool // every 10 s: its callers decide (HEALTH.md §3)
	Third      bool // two probers disagree: a third decides
	Gone       bool // the instance is no more
}

// Judgement is what a judgement changed.
type Judgement struct {
	// Changed holds the whole verdicts that differ from the last ones.
	// Removed instances are not among them: their registry change says it.
	Changed     []Verdict
	Transitions []Transition
	Incidents   []Incident
	// AgedOut are instances whose lease lapsed ten minutes ago: the caller
	// asks the registry to remove them (registry.LapsedOut). They are named
	// again every minute until they are gone.
	AgedOut []registry.UID
	// Probing holds what changed in how instances are to be probed. Of whom
	// nothing was ever said, neither of the two flags holds.
	Probing []Probing
	// Next is when to judge again without new input; zero: never.
	Next time.Time
}

// Empty reports whether the judgement changed nothing.
func (o *Judgement) Empty() bool {
	return len(o.Changed) == 0 && len(o.Transitions) == 0 && len(o.Incidents) == 0 && len(o.AgedOut) == 0 &&
		len(o.Probing) == 0
}
