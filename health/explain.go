package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// Explanation is a verdict with the evidence behind it, for whoever asks why.
type Explanation struct {
	Verdict Verdict
	Self    *SelfEvidence    // the instance's own newest word; nil: it has not spoken
	Probe   *ProbeEvidence   // nil: no prober has spoken
	Callers *CallersEvidence // nil: no caller has spoken
	Lease   *LeaseEvidence   // nil: it has no lease
	Holds   []Hold           // what keeps it out, oldest first
	// Dependencies that the contract declares, in its order, and after them
	// what the instance calls degraded beside them.
	Dependencies []DependencyEffect
	Quarantine   QuarantineEvidence
	Ramp         *RampEvidence  // nil: it has its full weight
	Waits        *WaitEvidence  // nil: no rule asks for a withdrawal that waits
	Retry        *RetryEvidence // nil: it was not put back to its admission
	// SilentAt is when each supplied class counts as silent if it gives no
	// further sample; in the past: since when it is. Nil: none is supplied.
	SilentAt map[registry.EvidenceClass]time.Time
}

// ProbeEvidence is what probers say.
type ProbeEvidence struct {
	Newest     time.Time // newest result that counts; zero: none does
	Live       int       // probers that speak
	Score      float64   // highest of theirs
	Samples    float64   // decayed, of theirs
	Out, In    float64   // lines
	HalfLife   time.Duration
	Over, Good bool
	GoodSince  time.Time // zero: it is not at or under its in-line
	RefusedBy  int       // live probers whose newest result is a refused connection
	// Confirming: probes come at the confirmation cadence.
	Confirming bool
	Disagree   time.Time     // since when live probers have disagreed; zero: they agree
	Probers    []ProberScore // by name
}

// CallersEvidence is what callers say.
type CallersEvidence struct {
	Newest            time.Time // end of the newest interval with a call
	Score             float64   // median over the reporters that count
	Excess            float64   // median of their scores above their siblings' medians
	Siblings          float64   // median of those medians
	Samples, Failures float64   // decayed, over all reporters
	Out, In           float64   // lines
	HalfLife          time.Duration
	Counting, Against int  // reporters that count, and of those the ones against
	Enough            bool // samples and reporters enough to become primary
	Over, Good        bool
	// Application: only stock gRPC clients are against, which count application
	// errors too, and others are not: degraded instead of out.
	Application bool
	RefusedBy   int // reporters of our own library that saw refused connections
	// Reporters holds those with the most samples, those against first, at most
	// 20; Omitted is how many more there are.
	Reporters []ReporterScore
	Omitted   int
}

// ReporterScore is what one caller says of an instance.
type ReporterScore struct {
	Reporter          Reporter
	Pool              int // 1–4: not one caller but small ones, summed; 0: one caller
	Kind              ReporterKind
	Samples, Failures float64   // decayed, of the instance
	Score             float64   // failures divided by samples
	Siblings          float64   // lower median of its own scores over the siblings
	Newest            time.Time // end of its newest interval with a call; zero: not kept
	Counts, Against   bool
}

// DependencyEffect is what a dependency does to an instance.
type DependencyEffect struct {
	Name      string
	Declared  bool // by the contract; what it does not declare has the default authority
	Shared    bool
	Authority registry.DependencyAuthority
	Weight    uint32 // percent of the weight kept while it is degraded
	Degraded  bool   // the instance calls it degraded
	Applies   bool   // and it has its effect now
}

// QuarantineEvidence is an instance's flap damping.
type QuarantineEvidence struct {
	Since, Until time.Time // zero: it is not in quarantine
	Changes      int       // changes that start one
	Window       time.Duration
	NextHold     time.Duration // that the next one would have
	Flaps        []Flap        // within the window, oldest first
}

// RampEvidence is a weight on its way to its full value.
type RampEvidence struct {
	Percent     uint32
	Step, Steps int       // from 1
	Since       time.Time // when it began
	Next        time.Time // of the next step, if nothing holds it
	Ends        time.Time // if nothing holds a step
	HeldBy      string    // what the step waits for; empty: only for its time
	Trial       bool      // after a withdrawal on callers' word
	First       bool      // it has not yet reached full weight as a member
}

// WaitEvidence is a withdrawal that a rule asks for and that waits.
type WaitEvidence struct {
	What   Wait
	Rule   Rule
	Since  time.Time
	Detail string
}

// RetryEvidence is a membership that ended within its first ramp.
type RetryEvidence struct {
	Rule  Rule // that ended it
	Since time.Time
	Again time.Time // when it is admitted again at the earliest
	Times int       // how often that happened in a row
}

// Third is how much of a service callers' word alone holds out.
type Third struct {
	Out     int // members that it holds out, those in quarantine too
	Most    int // members that it may hold out
	Members int
	Kept    []registry.UID // who stays in because of it
}

// SelfEvidence is an instance's newest word about itself.
type SelfEvidence struct {
	Status   SelfStatus
	At       time.Time
	Degraded []string // dependencies that it calls degraded
}

// LeaseEvidence is what is known of a lease.
type LeaseEvidence struct {
	Renewed time.Time // zero: not since the start
	Ends    time.Time // unless it is renewed
	Lapsed  time.Time // the verdict of a lapse that has not returned; zero: none
	Suspect bool      // its lapse is one of too many to be believed
}

// Hold is a rule that took an instance out and has not let it return.
type Hold struct {
	Rule  Rule
	Since time.Time
	Until time.Time // if the evidence goes on as it is; zero: not on this evidence
	Trial bool      // it returns by a trial: at the first step of a ramp
}

// CallersThird tells how much of the service callers' word alone holds out.
func (e *Evaluator) CallersThird() Third {
	return Third{Members: e.members, Most: max(1, e.members/3)}
}

// Explain returns the last verdict on every instance with its evidence, by UID,
// unadmitted ones included.
func (e *Evaluator) Explain(now time.Time) []Explanation {
	all := e.sorted()
	xs := make([]Explanation, len(all))
	for k, i := range all {
		xs[k] = e.explain(i, now)
	}
	return xs
}

func (e *Evaluator) explain(i *instance, now time.Time) Explanation {
	x := Explanation{Verdict: i.verdict}
	if w := &i.self; !w.newest.at.IsZero() {
		x.Self = &SelfEvidence{Status: w.newest.status, At: w.newest.at, Degraded: w.degraded}
	}
	if l := &i.lease; i.row.Lease > 0 {
		x.Lease = &LeaseEvidence{Renewed: l.renewed, Ends: l.ends(i.row.Lease), Lapsed: l.lapsedAt, Suspect: l.suspect()}
	}
	for _, m := range i.outs {
		x.Holds = append(x.Holds, Hold{Rule: m.rule, Since: m.at, Until: e.returnAt(i, m.rule, now)})
	}
	for _, c := range classes {
		if i.profile.Supplies.Has(c) {
			if x.SilentAt == nil {
				x.SilentAt = make(map[registry.EvidenceClass]time.Time)
			}
			x.SilentAt[c] = e.silentAt(i, c)
		}
	}
	return x
}
