package admin

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/health"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
)

// classes are the evidence classes in the order of the enumeration.
var classes = [...]registry.EvidenceClass{registry.ClassProbe, registry.ClassSelf, registry.ClassCallers}

func classOf(c registry.EvidenceClass) registryv1.EvidenceClass {
	return registryv1.EvidenceClass(c) + 1
}

// class is what one class says of an instance, one that is not supplied too.
func (j *subject) class(x *health.Explanation, c registry.EvidenceClass) *adminv1.ClassEvidence {
	v := &x.Verdict
	e := &adminv1.ClassEvidence{
		EvidenceClass: classOf(c), Supplied: v.Supplied.Has(c), Fresh: v.Fresh.Has(c), Primary: v.Primary.Has(c),
		Deciding: decides(v, c), SilentTime: stamp(x.SilentAt[c]),
	}
	heard := false
	switch {
	case c == registry.ClassProbe && x.Probe != nil:
		heard = j.probeEvidence(e, x.Probe)
	case c == registry.ClassSelf && x.Self != nil:
		heard = j.selfEvidence(e, x.Self)
	case c == registry.ClassCallers && x.Callers != nil:
		heard = j.callersEvidence(e, x.Callers)
	}
	j.standing(e, x.SilentAt[c], heard)
	return e
}

// standing judges the class in a word; what was filled in says good or bad.
func (j *subject) standing(e *adminv1.ClassEvidence, silentAt time.Time, heard bool) {
	silent := ""
	if !silentAt.IsZero() {
		silent = silence(silentAt, j.now)
	}
	switch {
	case !e.GetSupplied():
		e.Standing = adminv1.Standing_STANDING_NOT_SUPPLIED
		silent = "not supplied by the capability profile"
	case !heard && silentAt.After(j.now):
		e.Standing = adminv1.Standing_STANDING_NOT_HEARD
		silent = "not heard; " + silent
	case !e.GetFresh():
		e.Standing = adminv1.Standing_STANDING_SILENT
	case e.GetStanding() == adminv1.Standing_STANDING_UNSPECIFIED:
		e.Standing, silent = adminv1.Standing_STANDING_BETWEEN, ""
	default:
		silent = ""
	}
	e.Detail = strings.Join(nonEmpty(e.GetDetail(), silent), "; ")
}

func nonEmpty(parts ...string) (kept []string) {
	for _, p := range parts {
		if p != "" {
			kept = append(kept, p)
		}
	}
	return kept
}

func silence(at, now time.Time) string {
	if at.After(now) {
		return fmt.Sprintf("silent in %s", rounded(at.Sub(now)))
	}
	return fmt.Sprintf("silent for %s", rounded(now.Sub(at)))
}

func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// decides says whether the rule in force goes by the class (HEALTH.md §4).
func decides(v *health.Verdict, c registry.EvidenceClass) bool {
	switch v.Rule {
	case health.R2:
		return c == registry.ClassSelf
	case health.R3:
		return c != registry.ClassSelf && v.Supplied.Has(c)
	case health.R4:
		return c == registry.ClassCallers
	case health.R5:
		return c == registry.ClassProbe
	case health.R7:
		return v.Primary.Has(c)
	}
	return false
}

func goodOrBad(over, good bool) adminv1.Standing {
	switch {
	case over:
		return adminv1.Standing_STANDING_BAD
	case good:
		return adminv1.Standing_STANDING_GOOD
	}
	return adminv1.Standing_STANDING_UNSPECIFIED
}

func (j *subject) selfEvidence(e *adminv1.ClassEvidence, w *health.SelfEvidence) (heard bool) {
	e.Reporters, e.NewestAge, e.Detail = 1, durationpb.New(j.now.Sub(w.At)), w.Status.String()
	e.Standing = goodOrBad(w.Status == health.NotServing, w.Status == health.Serving)
	if w.Status == health.NotServing {
		e.Against = 1
	}
	if len(w.Degraded) > 0 {
		e.Detail += ", calls degraded: " + strings.Join(w.Degraded, ", ")
	}
	return true
}

func (j *subject) probeEvidence(e *adminv1.ClassEvidence, p *health.ProbeEvidence) (heard bool) {
	e.Score, e.Out, e.In, e.HalfLife = p.Score, p.Out, p.In, durationpb.New(p.HalfLife)
	e.Samples, e.Reporters, e.RefusedBy, e.Confirming = p.Samples, uint32(p.Live), uint32(p.RefusedBy), p.Confirming
	e.GoodSince, e.Standing = stamp(p.GoodSince), goodOrBad(p.Over, p.Good)
	if !p.Newest.IsZero() {
		e.NewestAge = durationpb.New(j.now.Sub(p.Newest))
	}
	blind := 0
	for k := range p.Probers {
		s := &p.Probers[k]
		if s.Blind {
			blind++
		}
		if s.Over && !s.Blind {
			e.Against++
		}
		e.Probers = append(e.Probers, &adminv1.ProberEvidence{Name: s.Prober.Name, Zone: s.Prober.Zone, Score: s.Score,
			NewestAge: j.ageOf(s.Newest), Result: probeResultOf(s.Result), Over: s.Over, Blind: s.Blind})
	}
	e.Detail = fmt.Sprintf("%d of %d probers over the line", e.GetAgainst(), p.Live)
	if p.RefusedBy > 0 {
		e.Detail += fmt.Sprintf(", refused by %d", p.RefusedBy)
	}
	if !p.Disagree.IsZero() {
		e.Detail += fmt.Sprintf(", they have disagreed for %s", rounded(j.now.Sub(p.Disagree)))
		if p.Third {
			e.Detail += ", a third one is asked for"
		}
	}
	if blind > 0 {
		e.Detail += fmt.Sprintf(", %d blind (counts as silence)", blind)
	}
	if p.Confirming {
		e.Detail += ", confirming every 10s because callers decide"
	}
	return !p.Newest.IsZero()
}

func (j *subject) ageOf(at time.Time) *durationpb.Duration {
	if at.IsZero() {
		return nil
	}
	return durationpb.New(j.now.Sub(at))
}

// probeResultOf is the wire's word: both lists have the same order.
func probeResultOf(r health.ProbeResult) healthv1.ProbeResult { return healthv1.ProbeResult(r) }

func (j *subject) callersEvidence(e *adminv1.ClassEvidence, c *health.CallersEvidence) (heard bool) {
	e.Score, e.Out, e.In, e.HalfLife = c.Score, c.Out, c.In, durationpb.New(c.HalfLife)
	e.Samples, e.Failures, e.Excess, e.Siblings = c.Samples, c.Failures, c.Excess, c.Siblings
	e.Reporters, e.Against, e.RefusedBy = uint32(c.Counting), uint32(c.Against), uint32(c.RefusedBy)
	e.Standing, e.CallersOmitted, e.NewestAge = goodOrBad(c.Over, c.Good), uint32(c.Omitted), j.ageOf(c.Newest)
	e.GoodSince = stamp(c.GoodSince)
	for k := range c.Reporters {
		e.Callers = append(e.Callers, j.reporter(&c.Reporters[k]))
	}
	share := 0.0
	if c.Samples > 0 {
		share = 100 * c.Failures / c.Samples
	}
	e.Detail = fmt.Sprintf("%.0f %% of %.0f calls fail, %d of %d reporters against, %.0f %% at its siblings",
		share, c.Samples, c.Against, c.Counting, 100*c.Siblings)
	if !c.Enough {
		e.Detail += ", too little traffic to become primary"
	}
	if c.Application {
		e.Detail += ", only stock gRPC clients are against (they count application errors too)"
	}
	return !c.Newest.IsZero()
}

func (j *subject) reporter(r *health.ReporterScore) *adminv1.ReporterEvidence {
	out := &adminv1.ReporterEvidence{
		Reporter: r.Reporter.Identity.String(), Kind: reporterKindOf(r.Kind), Samples: r.Samples, Failures: r.Failures,
		Score: r.Score, Siblings: r.Siblings, Counts: r.Counts, Against: r.Against, NewestAge: j.ageOf(r.Newest),
	}
	switch {
	case r.Pool > 0:
		out.Reporter, out.Kind = fmt.Sprintf("pool-%d", r.Pool), adminv1.ReporterKind_REPORTER_KIND_POOL
	case r.Reporter.Instance != 0:
		out.Address = r.Reporter.Instance.String()
	case r.Reporter.Addr.IsValid():
		out.Address = r.Reporter.Addr.String()
	}
	return out
}

// reporterKindOf is the wire's word: both lists have the same order.
func reporterKindOf(k health.ReporterKind) adminv1.ReporterKind { return adminv1.ReporterKind(k) + 1 }
