package health

import (
	"slices"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// explainedReporters bounds how many callers an explanation lists.
const explainedReporters = 20

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
	Third      bool          // a third prober is wanted
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
	GoodSince         time.Time // zero: it is not at or under its in-line
	// Application: only stock gRPC clients are against, which count application
	// errors too, and others are not: degraded instead of out.
	Application bool
	RefusedBy   int // reporters of our own library that saw refused connections
	// Reporters holds those against first, then those with the most samples, at
	// most 20; Omitted is how many more there are.
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
	// Detail holds the numbers that the rule saw.
	Detail string
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
	// Detail holds the numbers that the rule saw; empty where it goes by none.
	Detail string
}

// Explain returns the last verdict on every instance with its evidence, by UID,
// unadmitted ones included.
func (e *Evaluator) Explain(now time.Time) []Explanation {
	e.callers.settle(now, e.ask.sibling)
	all := e.sorted()
	xs := make([]Explanation, len(all))
	for k, i := range all {
		xs[k] = e.explain(i, now)
	}
	return xs
}

func (e *Evaluator) explain(i *instance, now time.Time) Explanation {
	x := Explanation{
		Verdict: i.verdict, Probe: e.probeEvidence(i, now), Callers: e.callersEvidence(i, now),
		Dependencies: i.dependencyEffects(), Quarantine: i.quarantine.evidence(now, i.terms),
		Ramp: e.rampEvidence(i),
	}
	if w := &i.self; !w.newest.at.IsZero() {
		x.Self = &SelfEvidence{Status: w.newest.status, At: w.newest.at, Degraded: w.degraded}
	}
	if l := &i.lease; i.row.Lease > 0 {
		x.Lease = &LeaseEvidence{Renewed: l.renewed, Ends: l.ends(i.row.Lease), Lapsed: l.lapsedAt, Suspect: l.suspect()}
	}
	for k := range i.outs {
		x.Holds = append(x.Holds, e.hold(i, &i.outs[k], now))
	}
	if w := &i.waits; w.what != NoWait {
		x.Waits = &WaitEvidence{What: w.what, Rule: w.rule, Since: w.since, Detail: w.why}
	}
	if r := &i.retry; r.rule != NoRule && !i.member {
		x.Retry = &RetryEvidence{Rule: r.rule, Since: r.at, Again: r.again(), Times: r.times, Detail: r.why}
	}
	for _, c := range classes {
		if i.supplies(c) {
			if x.SilentAt == nil {
				x.SilentAt = make(map[registry.EvidenceClass]time.Time)
			}
			x.SilentAt[c] = e.silentAt(i, c)
		}
	}
	return x
}

func (e *Evaluator) hold(i *instance, m *mark, now time.Time) Hold {
	h := Hold{Rule: m.rule, Since: m.at, Until: e.returnAt(i, m, now), Detail: m.why}
	if by := e.trialOf(i, m); h.Until.IsZero() && !by.IsZero() {
		h.Until, h.Trial = laterOf(by, i.quarantine.until), true
		if !e.trialMay(i) && !i.quarantine.runs() {
			h.Until = time.Time{} // another class is against it
		}
	}
	return h
}

func (e *Evaluator) probeEvidence(i *instance, now time.Time) *ProbeEvidence {
	probers := i.probes.scores(now, &i.terms.probes, e.stance)
	if len(probers) == 0 {
		return nil
	}
	r, t := &i.seen.probe, &i.terms.probes
	return &ProbeEvidence{
		Newest: r.newest, Live: r.live, Score: r.score, Samples: r.samples,
		Out: t.out, In: t.in, HalfLife: t.halfLife,
		Over: i.seen.bad.Has(registry.ClassProbe), Good: i.good(registry.ClassProbe),
		GoodSince: r.goodSince, RefusedBy: r.refusedBy, Confirming: i.cadence.confirming,
		Disagree: r.disagree, Third: i.cadence.third, Probers: probers,
	}
}

func (e *Evaluator) callersEvidence(i *instance, now time.Time) *CallersEvidence {
	r, t := &i.seen.callers, &i.terms.callers
	if r.newest.IsZero() {
		return nil
	}
	reporters := e.callers.scores(i, now, i.question())
	listed := reporters[:min(len(reporters), explainedReporters)]
	return &CallersEvidence{
		Newest: r.newest, Score: r.score, Excess: r.excess, Siblings: r.siblings,
		Samples: r.samples, Failures: r.failures, Out: t.out, In: t.in, HalfLife: t.halfLife,
		Counting: r.counting, Against: r.against, Enough: r.enough,
		Over: i.seen.bad.Has(registry.ClassCallers), Good: i.good(registry.ClassCallers), GoodSince: i.callersGood,
		Application: r.application, RefusedBy: r.refusedBy,
		Reporters: listed, Omitted: len(reporters) - len(listed),
	}
}

func (i *instance) dependencyEffects() (effects []DependencyEffect) {
	speaks := i.seen.needs.names != 0
	for _, d := range i.terms.dependencies {
		degraded := slices.Contains(i.self.degraded, d.Name)
		effects = append(effects, DependencyEffect{
			Name: d.Name, Declared: true, Shared: d.Shared, Authority: d.Authority, Weight: d.Weight,
			Degraded: degraded, Applies: degraded && speaks && d.Authority != registry.Informational,
		})
	}
	for _, name := range i.self.degraded {
		if !slices.ContainsFunc(i.terms.dependencies, func(d registry.Dependency) bool { return d.Name == name }) {
			effects = append(effects, DependencyEffect{Name: name, Weight: defaultKept, Degraded: true, Applies: speaks})
		}
	}
	return effects
}

func (q *quarantine) evidence(now time.Time, t *terms) QuarantineEvidence {
	return QuarantineEvidence{
		Since: q.since, Until: q.until, Changes: t.quarantine.Changes, Window: t.quarantine.Window,
		NextHold: q.nextHold(now, &t.quarantine), Flaps: slices.Clone(q.within(now, t.quarantine.Window)),
	}
}

func (e *Evaluator) rampEvidence(i *instance) *RampEvidence {
	r := &i.ramp
	if !r.runs() {
		return nil
	}
	next := r.next(i.terms)
	left := time.Duration(lastRampStep - r.step - 1)
	return &RampEvidence{
		Percent: r.percent(), Step: r.step + 1, Steps: len(rampSteps), Since: r.since, Next: next,
		Ends: next.Add(left * i.terms.ramp / time.Duration(lastRampStep)), HeldBy: rampHolds[r.held],
		Trial: i.trial.runs, First: !i.onceFull,
	}
}
