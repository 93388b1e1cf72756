package admin

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sightlinedev/sightline/health"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
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
			!strings.Contains(out.GetDetail(), "lease: not renewed since the start, runs for another 23s") {
			t.Errorf("the one that is out: %v", out)
		}
		if d := out.GetDampers(); len(d) != 2 || d[0].GetKind() != adminv1.DamperKind_DAMPER_KIND_RETURN_HOLD || d[0].GetEndTime() != nil || d[1].GetKind() != adminv1.DamperKind_DAMPER_KIND_GUARD {
			t.Errorf("its dampers: %v", d)
		}
		e := out.GetEvidence()
		if len(e) != 3 || e[0].GetSupplied() || e[2].GetSupplied() || !e[1].GetSupplied() || !e[1].GetFresh() || !e[1].GetPrimary() || e[1].GetReporters() != 1 ||
			e[1].GetNewestAge().AsDuration() != 2*time.Second || e[1].GetDetail() != "NOT_SERVING, calls degraded: payments" {
			t.Errorf("its evidence: %v", e)
		}
		if waits.GetMember() || waits.GetRule() != "admission" || waits.GetListed() || !strings.Contains(waits.GetDetail(), "waits for first good evidence") ||
			waits.GetEvidence()[1].GetDetail() != "not heard; silent in 4s" {
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
		if !strings.Contains(held.GetDetail(), "renewed 100ms ago, runs for another 24.9s") {
			t.Errorf("the lease: %s", held.GetDetail())
		}
		time.Sleep(time.Minute)
		w.evaluators[checkoutName].Judge(time.Now())
		if d := w.explain(operator, u[0].String()).GetInstances()[0].GetEvidence()[1].GetDetail(); d != "SERVING; silent for 54.1s" {
			t.Errorf("silence: %s", d)
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
