package admin

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// TestStatusListsEveryDamper: the region's brake, rollouts, guards, and what is
// held back of instances, each with its end; the holds of ordinary returns not.
func TestStatusListsEveryDamper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1", "10.0.0.2")
		l := w.put(ledgerName, ledger, "10.1.0.1")
		w.snapshot = views.NewSnapshot(true,
			view(checkoutName, 9, map[registry.UID]views.State{u[0]: views.Ineligible, u[1]: views.Eligible}),
			view(ledgerName, 11, map[registry.UID]views.State{l[0]: views.Eligible}))
		until := time.Now().Add(time.Minute)
		w.edit = func(x *health.Explanation) {
			switch x.Verdict.UID {
			case u[0]:
				x.Verdict.Quarantined, x.Quarantine = true, health.QuarantineEvidence{Until: until, Window: 10 * time.Minute}
				x.Holds = []health.Hold{{Rule: health.R4, Until: until}}
			case l[0]:
				x.Waits = &health.WaitEvidence{What: health.WaitsBrake, Rule: health.R5, Since: time.Now()}
			}
		}
		kinds := func(id string) (kinds, services string) {
			st := w.status(id)
			for _, d := range st.GetDampers() {
				kinds += strings.TrimPrefix(d.GetDamper().GetKind().String(), "DAMPER_KIND_") + " "
				services += d.GetService() + " "
			}
			if int(st.GetDampersTotal()) != len(st.GetDampers()) {
				t.Errorf("%d dampers, %d of them listed", st.GetDampersTotal(), len(st.GetDampers()))
			}
			return kinds, services
		}
		if got, of := kinds(operator); got != "QUARANTINE " || of != "shop/checkout " {
			t.Errorf("%s of %s: who is listed at full weight is not looked at", got, of)
		}
		st := w.status(operator)
		if d := st.GetDampers()[0]; st.GetQuarantined() != 1 || d.GetUid() != u[0].String() || d.GetDamper().GetEndTime().AsTime() != until.UTC() {
			t.Errorf("%v", st.GetDampers())
		}
		w.rollouts = []registry.Name{ledgerName}
		w.rollout = &Rollout{State: RolloutZones, Contract: ledgerName, Next: until}
		if got, _ := kinds(operator); got != "CONTRACT_ROLLOUT BRAKE CONTRACT_ROLLOUT QUARANTINE " {
			t.Errorf("with a rollout: %s", got)
		}
		w.rollouts, w.rollout = nil, nil
		w.stance = &health.Stance{Braked: true, BrakeDetail: "61 of 300 members"}
		if got, of := kinds(operator); got != "BRAKE BRAKE QUARANTINE " || of != " bank/ledger shop/checkout " {
			t.Errorf("with the brake: %s of %s", got, of)
		}
		if got, of := kinds(checkout); got != "QUARANTINE " || of != "shop/checkout " {
			t.Errorf("a workload is told %s of %s", got, of)
		}
	})
}

// TestWhoHoldsAService counts the streams that know it.
func TestWhoHoldsAService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fleet()
		want := &adminv1.ClientCounts{Connected: 2, Behind: 1, Nacked: 1}
		if got := w.explain(operator, "").GetClients(); got.String() != want.String() {
			t.Errorf("%v, want %v", got, want)
		}
	})
}
