package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// Explanation is a verdict with the evidence behind it, for whoever asks why.
type Explanation struct {
	Verdict Verdict
	Self    *SelfEvidence  // the instance's own newest word; nil: it has not spoken
	Lease   *LeaseEvidence // nil: it has no lease
	Holds   []Hold         // what keeps it out, oldest first
	// SilentAt is when each supplied class counts as silent if it gives no
	// further sample; in the past: since when it is. Nil: none is supplied.
	SilentAt map[registry.EvidenceClass]time.Time
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
