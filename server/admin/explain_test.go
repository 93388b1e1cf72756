package admin

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

func (w *world) explain(id, instance string) *adminv1.ServiceExplanation {
	w.t.Helper()
	resp, err := w.Explain(as(id), &adminv1.ExplainRequest{Namespace: "shop", Name: "checkout", Instance: instance})
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.GetService()
}

func (w *world) report(uid registry.UID, s health.SelfStatus, degraded ...string) {
	e := w.evaluators[checkoutName]
	e.Observe(time.Now(), []health.Sample{{UID: uid, Class: registry.ClassSelf, At: time.Now(), Status: s, Degraded: degraded}})
	e.Judge(time.Now())
}

func asideOf(x *adminv1.InstanceExplanation, what string) string {
	for _, a := range x.GetNotTheCause() {
		if a.GetWhat() == what {
			return a.GetDetail()
		}
	}
	return ""
}

// TestWhy follows an instance that is admitted, says that it does not serve,
// and comes back through its hold, while another was never heard.
func TestWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1", "10.0.0.2")
		v := view(checkoutName, 9, map[registry.UID]views.State{u[0]: views.Ineligible})
		v.Members[0].Listed, v.Members[0].Weight = true, 1
		v.Guard = views.Guard{Tripped: true, Zones: []string{""}, Floor: 50, Serving: 0, Members: 1}
		v.Contract = checkoutName
		w.snapshot = views.NewSnapshot(true, v)
		w.report(u[0], health.Serving)
		w.report(u[0], health.NotServing, "payments")
		time.Sleep(2 * time.Second)

		s := w.explain(operator, "")
		if s.GetEndpointVersion() != "7.9" || s.GetConfigVersion() != "7.1" || s.GetContract() != "shop/checkout" || !s.GetGuard().GetTripped() || len(s.GetInstances()) != 2 {
			t.Fatalf("service %v", s)
		}
		if d := s.GetDampers(); len(d) != 1 || d[0].GetKind() != adminv1.DamperKind_DAMPER_KIND_GUARD || !strings.Contains(d[0].GetDetail(), "0 of 1 members serve, the floor is 50 %") {
			t.Errorf("dampers %v", d)
		}
		out, waits := s.GetInstances()[0], s.GetInstances()[1]
		if out.GetLabel() != "a" || out.GetState() != viewv1.State_STATE_INELIGIBLE || out.GetRule() != "R2" || out.GetOutBy() != "R2" || !out.GetMember() ||
			!out.GetListed() || out.GetWeight() != 1 || out.GetBaseWeight() != 100 || !strings.Contains(out.GetDetail(), "self reports NOT_SERVING") ||
			!strings.Contains(asideOf(out, "lease"), "valid: not renewed since the start, runs for another 23s") {
			t.Errorf("the one that is out: %v", out)
		}
		if d := out.GetDampers(); len(d) != 2 || d[0].GetKind() != adminv1.DamperKind_DAMPER_KIND_RETURN_HOLD || d[0].GetEndTime() != nil || d[1].GetKind() != adminv1.DamperKind_DAMPER_KIND_GUARD {
			t.Errorf("its dampers: %v", d)
		}
		e := out.GetEvidence()
		if len(e) != 3 || e[0].GetSupplied() || e[2].GetSupplied() || !e[1].GetSupplied() || !e[1].GetFresh() || !e[1].GetDeciding() || !e[1].GetPrimary() || e[1].GetReporters() != 1 ||
			e[0].GetStanding() != adminv1.Standing_STANDING_NOT_SUPPLIED || e[1].GetStanding() != adminv1.Standing_STANDING_BAD ||
			e[1].GetNewestAge().AsDuration() != 2*time.Second || e[1].GetDetail() != "NOT_SERVING, calls degraded: payments" {
			t.Errorf("its evidence: %v", e)
		}
		if waits.GetMember() || waits.GetRule() != "admission" || waits.GetListed() || !strings.Contains(waits.GetDetail(), "waits for first good evidence") ||
			waits.GetEvidence()[1].GetDetail() != "not heard; silent in 4s" || waits.GetEvidence()[1].GetStanding() != adminv1.Standing_STANDING_NOT_HEARD {
			t.Errorf("the one that waits: %v", waits)
		}

		w.report(u[0], health.Serving)
		w.waits = time.Now().Add(time.Second)
		w.evaluators[checkoutName].Renew(time.Now(), u[0])
		time.Sleep(100 * time.Millisecond)
		s = w.explain(checkout, "a") // its own service
		if len(s.GetInstances()) != 1 || len(s.GetDampers()) != 2 || s.GetDampers()[0].GetKind() != adminv1.DamperKind_DAMPER_KIND_WINDOW ||
			s.GetDampers()[0].GetEndTime().AsTime() != w.waits.UTC() {
			t.Errorf("service %v", s)
		}
		held := s.GetInstances()[0]
		if d := held.GetDampers()[0]; d.GetEndTime() == nil || time.Until(d.GetEndTime().AsTime()) != 15*time.Second-100*time.Millisecond {
			t.Errorf("the hold: %v", d)
		}
		if says := asideOf(held, "lease"); says != "valid: renewed 100ms ago, runs for another 24.9s" {
			t.Errorf("the lease: %s", says)
		}
		if r := held.GetReturns(); len(r) != 1 || r[0].GetRule() != "R2" || r[0].GetTrial() || time.Until(r[0].GetTime().AsTime()) != 15*time.Second-100*time.Millisecond ||
			r[0].GetDetail() != "15s of SERVING, then the ramp over 1m0s" {
			t.Errorf("returns %v", r)
		}
		time.Sleep(time.Minute)
		w.evaluators[checkoutName].Judge(time.Now())
		if d := w.explain(operator, u[0].String()).GetInstances()[0].GetEvidence()[1].GetDetail(); d != "SERVING; silent for 54.1s" {
			t.Errorf("silence: %s", d)
		}
	})
}

// TestWhyAnAddressIsNotProved: what came of dialling an instance back, of one
// that is not admitted alone.
func TestWhyAnAddressIsNotProved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1", "10.0.0.2")
		w.report(u[0], health.Serving)
		first := w.explain(operator, u[1].String()).GetInstances()[0].GetDetail()
		for _, row := range []struct {
			is   DialBack
			want string
		}{
			{DialBack{Probers: 2}, "; its dial-back waits until others of its identity are proved or gone"},
			{DialBack{Turn: true}, "; a prober has to meet its identity there, and none is at work"},
			{DialBack{Turn: true, Probers: 2}, "; probers dial it back, and none has met its identity there yet"},
			{DialBack{Turn: true, Probers: 2, Prober: health.Prober{Name: "p1", Zone: "b"}, At: time.Now().Add(-2 * time.Second)},
				"; prober p1 in zone b met another identity there 2s ago"},
		} {
			w.dialBack = func(registry.UID) (DialBack, bool) { return row.is, true }
			if got := w.explain(operator, u[1].String()).GetInstances()[0].GetDetail(); got != first+row.want {
				t.Errorf("%+v: %q", row.is, got)
			}
			if got := w.explain(operator, u[0].String()).GetInstances()[0]; !got.GetMember() || strings.Contains(got.GetDetail(), "dial") {
				t.Errorf("a member: %q", got.GetDetail())
			}
		}
	})
}

// TestWhyIsForThoseWhoMayAsk: unknown and forbidden alike.
func TestWhyIsForThoseWhoMayAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(checkoutName, checkout, "10.0.0.1")
		w.put(ledgerName, ledger, "10.1.0.1")
		if s := w.explain(reader, ""); s.GetEndpointVersion() != "" || len(s.GetInstances()) != 1 || s.GetInstances()[0].GetWeight() != 100 {
			t.Errorf("not published yet: %v", s)
		}
		for _, who := range []string{checkout, reader, stranger} {
			_, forbidden := w.Explain(as(who), &adminv1.ExplainRequest{Namespace: "bank", Name: "ledger"})
			_, missing := w.Explain(as(who), &adminv1.ExplainRequest{Namespace: "bank", Name: "nobody"})
			wants(t, forbidden, codes.NotFound, status.NotFound)
			if strings.ReplaceAll(forbidden.Error(), "ledger", "nobody") != missing.Error() {
				t.Errorf("%v and %v differ", forbidden, missing)
			}
		}
		for _, ref := range []string{"none", "i9"} {
			_, err := w.Explain(as(operator), &adminv1.ExplainRequest{Namespace: "shop", Name: "checkout", Instance: ref})
			wants(t, err, codes.NotFound, status.NotFound)
		}
	})
}

// TestWhyShowsEveryNumber puts one explanation together from all that an
// evaluator can say.
func TestWhyShowsEveryNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
		now := time.Now()
		ago := func(d time.Duration) time.Time { return now.Add(-d) }
		w.stance = &health.Stance{Braked: true, BrakedSince: ago(time.Minute), BrakeDetail: "61 of 300 members", Released: map[string]bool{"b": true, "a": true}}
		w.rollout = &Rollout{State: RolloutRefused, Contract: checkoutName, Since: ago(time.Minute), WouldWithdraw: 41, Members: 60, Detail: "would withdraw 41 of 60"}
		w.third = health.Third{Out: 1, Most: 1, Members: 4, Kept: []registry.UID{u[1]}}
		all := registry.ClassSet(0).With(registry.ClassProbe).With(registry.ClassSelf).With(registry.ClassCallers)
		w.edit = func(x *health.Explanation) {
			if x.Verdict.UID != u[0] {
				return
			}
			x.Verdict.State, x.Verdict.Rule, x.Verdict.OutBy, x.Verdict.Detail = health.Ineligible, health.R4, health.R4, "callers 0.37 > 0.20"
			x.Verdict.Supplied, x.Verdict.Fresh, x.Verdict.Primary, x.Verdict.Kept, x.Verdict.Member = all, all, registry.ClassSet(0).With(registry.ClassCallers), 100, true
			x.Self = &health.SelfEvidence{Status: health.Serving, At: ago(time.Second)}
			x.Probe = &health.ProbeEvidence{Newest: ago(800 * time.Millisecond), Live: 2, Out: 0.4, In: 0.1, HalfLife: 8 * time.Second, Good: true, Samples: 18, Confirming: true,
				Probers: []health.ProberScore{{Prober: health.Prober{Name: "p1", Zone: "a"}, Newest: ago(800 * time.Millisecond), Result: health.ProbeOK},
					{Prober: health.Prober{Name: "p2", Zone: "b"}, Newest: ago(time.Second), Result: health.ProbeTimeout, Over: true, Blind: true}}}
			x.Callers = &health.CallersEvidence{Newest: ago(400 * time.Millisecond), Score: 0.37, Excess: 0.36, Siblings: 0.01, Samples: 412, Failures: 152, Out: 0.2, In: 0.05,
				HalfLife: 4 * time.Second, Counting: 4, Against: 4, Enough: true, Over: true, Omitted: 3,
				Reporters: []health.ReporterScore{
					{Reporter: health.Reporter{Identity: identity.MustParse(ledger), Addr: netip.MustParseAddr("10.1.0.1")}, Kind: health.FromEnvoy, Samples: 40, Failures: 15, Score: 0.375, Siblings: 0.01, Counts: true, Against: true, Newest: ago(time.Second)},
					{Pool: 2, Samples: 5, Counts: true}}}
			x.Holds = []health.Hold{{Rule: health.R4, Since: ago(3 * time.Second), Until: now.Add(12 * time.Second), Trial: true}}
			x.Dependencies = []health.DependencyEffect{{Name: "db", Declared: true, Shared: true, Weight: 50}, {Name: "queue", Weight: 50, Degraded: true, Applies: true}}
			x.Quarantine = health.QuarantineEvidence{Since: ago(time.Second), Until: now.Add(59 * time.Second), Changes: 5, Window: 10 * time.Minute, NextHold: 2 * time.Minute,
				Flaps: []health.Flap{{At: ago(time.Minute), Rule: health.R4}, {At: ago(30 * time.Second), Serving: true, Rule: health.R7}}}
			x.Verdict.Quarantined = true
			x.Ramp = &health.RampEvidence{Percent: 25, Step: 2, Steps: 7, Since: ago(10 * time.Second), Next: now.Add(time.Second), Ends: now.Add(50 * time.Second), HeldBy: "callers above their in-line", Trial: true}
			x.Waits = &health.WaitEvidence{What: health.WaitsThird, Rule: health.R4, Since: ago(2 * time.Second), Detail: "1 of 1 is out already"}
			x.Retry = &health.RetryEvidence{Rule: health.R3, Since: ago(time.Second), Again: now.Add(29 * time.Second), Times: 2}
		}
		s := w.explain(operator, "a")
		if len(s.GetInstances()) != 1 || s.GetCounts().GetIneligible() != 1 || s.GetCounts().GetUnadmitted() != 3 || len(s.GetSupplied()) != 3 || s.GetTime().AsTime() != now.UTC() {
			t.Fatalf("service %v", s)
		}
		if b := s.GetBrake(); !b.GetActive() || b.GetDetail() != "61 of 300 members" || strings.Join(b.GetReleasedZones(), ",") != "a,b" {
			t.Errorf("brake %v", b)
		}
		if r := s.GetRollout(); r.GetState() != adminv1.RolloutState_ROLLOUT_STATE_REFUSED || r.GetWouldWithdraw() != 41 || r.GetNextTime() != nil {
			t.Errorf("rollout %v", r)
		}
		if c := s.GetCallersThird(); c.GetOut() != 1 || c.GetMost() != 1 || len(c.GetKept()) != 1 || c.GetKept()[0] != u[1].String() {
			t.Errorf("callers' third %v", c)
		}
		x := s.GetInstances()[0]
		probe, self, callers := x.GetEvidence()[0], x.GetEvidence()[1], x.GetEvidence()[2]
		if x.GetPrimary() != registryv1.EvidenceClass_EVIDENCE_CLASS_CALLERS || !callers.GetDeciding() || probe.GetDeciding() || self.GetDeciding() {
			t.Errorf("primary %v, deciding %v", x.GetPrimary(), x.GetEvidence())
		}
		if callers.GetStanding() != adminv1.Standing_STANDING_BAD || callers.GetScore() != 0.37 || callers.GetOut() != 0.2 || callers.GetIn() != 0.05 || callers.GetHalfLife().AsDuration() != 4*time.Second ||
			callers.GetReporters() != 4 || callers.GetAgainst() != 4 || callers.GetNewestAge().AsDuration() != 400*time.Millisecond || callers.GetCallersOmitted() != 3 ||
			callers.GetDetail() != "37 % of 412 calls fail, 4 of 4 reporters against, 1 % at its siblings" {
			t.Errorf("callers %v", callers)
		}
		if c := callers.GetCallers(); len(c) != 2 || c[0].GetReporter() != ledger || c[0].GetAddress() != "10.1.0.1" || c[0].GetKind() != adminv1.ReporterKind_REPORTER_KIND_ENVOY || !c[0].GetAgainst() ||
			c[1].GetReporter() != "pool-2" || c[1].GetKind() != adminv1.ReporterKind_REPORTER_KIND_POOL || c[1].GetNewestAge() != nil {
			t.Errorf("reporters %v", callers.GetCallers())
		}
		if probe.GetStanding() != adminv1.Standing_STANDING_GOOD || !probe.GetConfirming() || probe.GetAgainst() != 0 || len(probe.GetProbers()) != 2 || !probe.GetProbers()[1].GetBlind() ||
			probe.GetProbers()[1].GetResult() != healthv1.ProbeResult_PROBE_RESULT_TIMEOUT || probe.GetDetail() != "0 of 2 probers over the line, 1 blind (counts as silence), confirming every 10s because callers decide" {
			t.Errorf("probe %v", probe)
		}
		if self.GetStanding() != adminv1.Standing_STANDING_GOOD || self.GetDetail() != "SERVING" {
			t.Errorf("self %v", self)
		}
		if r := x.GetReturns(); len(r) != 2 || !r[0].GetTrial() || time.Until(r[0].GetTime().AsTime()) != 12*time.Second || r[0].GetDetail() != "a trial at the first step of its ramp, then the ramp over 1m0s" ||
			!strings.Contains(r[1].GetDetail(), "2 times in a row") {
			t.Errorf("returns %v", r)
		}
		if q := x.GetQuarantine(); !q.GetActive() || q.GetLimit() != 5 || q.GetWindow().AsDuration() != 10*time.Minute || len(q.GetHistory()) != 2 || !q.GetHistory()[1].GetServing() || q.GetLifted() {
			t.Errorf("quarantine %v", q)
		}
		if r := x.GetRamp(); r.GetPercent() != 25 || r.GetStep() != 2 || r.GetSteps() != 7 || !r.GetTrial() || r.GetHeldBy() == "" {
			t.Errorf("ramp %v", r)
		}
		if d := x.GetDependencies(); len(d) != 2 || d[0].GetDetail() != "not degraded" || !strings.Contains(d[1].GetDetail(), "the contract does not name it") ||
			d[1].GetAuthority() != registryv1.DependencyAuthority_DEPENDENCY_AUTHORITY_REDUCE_WEIGHT {
			t.Errorf("dependencies %v", d)
		}
		var held []string
		for _, d := range append(s.GetDampers(), x.GetDampers()...) {
			held = append(held, strings.TrimPrefix(d.GetKind().String(), "DAMPER_KIND_"))
		}
		if got := strings.Join(held, " "); got != "BRAKE CONTRACT_ROLLOUT CALLERS_THIRD RETURN_HOLD RETURN_HOLD QUARANTINE CALLERS_THIRD RAMP" {
			t.Errorf("dampers %s", got)
		}
		for _, what := range []string{"brake", "contract", "quarantine", "dependencies"} {
			if says := asideOf(x, what); says != "" {
				t.Errorf("%s is named as not the cause: %s", what, says)
			}
		}
		if asideOf(x, "override") != "none" || !strings.HasPrefix(asideOf(x, "lease"), "valid") {
			t.Errorf("asides %v", x.GetNotTheCause())
		}
	})
}
