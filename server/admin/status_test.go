package admin

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

func (w *world) status(id string) *adminv1.Status {
	w.t.Helper()
	resp, err := w.GetStatus(as(id), &adminv1.GetStatusRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.GetStatus()
}

// TestStatusCountsWhatTheCallerMaySee.
func TestStatusCountsWhatTheCallerMaySee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
		l := w.put(ledgerName, ledger, "10.1.0.1", "10.1.0.2")
		shop := view(checkoutName, 9, map[registry.UID]views.State{u[0]: views.Eligible, u[1]: views.Ineligible, u[2]: views.Degraded})
		shop.Guard = views.Guard{Tripped: true, Zones: []string{"a"}, Floor: 50, Serving: 1, Members: 3}
		shop.Members[0].Draining = true
		bank := view(ledgerName, 11, map[registry.UID]views.State{l[0]: views.Unknown, l[1]: views.Unknown})
		bank.Members[1].Evidence.Rule = "admission" // stands in, and is no member
		bank.Confidence = views.ConfidenceDegraded
		w.snapshot = views.NewSnapshot(true, shop, bank)
		w.checks = []Check{{Name: "store"}, {Name: "views"}}
		w.store = Store{Since: time.Now()}
		w.alarms = []string{"row instance bank/ledger/i9 cannot be read"}

		st := w.status(operator)
		if !st.GetReady() || st.GetVersion() != "1.2.3" || st.GetRegion() != "eu" || st.GetEpoch() != 7 || st.GetHeadVersion() != "7.11" ||
			st.GetServices() != 2 || len(st.GetAlarms()) != 1 || st.GetSingleClassServices() != 1 || st.GetStore().GetState() != adminv1.StoreState_STORE_STATE_OK {
			t.Errorf("status %v", st)
		}
		want := &adminv1.InstanceCounts{Eligible: 1, Degraded: 1, Ineligible: 1, Unknown: 1, Unadmitted: 2, Draining: 1}
		if got := st.GetInstances(); got.String() != want.String() {
			t.Errorf("counted %v, want %v", got, want)
		}
		if g := st.GetGuards(); st.GetGuardsTripped() != 1 || len(g) != 1 || g[0].GetService() != "shop/checkout" || g[0].GetServing() != 1 || g[0].GetFloorPercent() != 50 {
			t.Errorf("guards %v", g)
		}
		for id, services := range map[string]uint32{checkout: 1, ledger: 1, reader: 1, stranger: 0} {
			st := w.status(id)
			if st.GetServices() != services || len(st.GetAlarms()) != 0 {
				t.Errorf("%s is told of %v", id, st)
			}
			if id == ledger && (st.GetInstances().GetUnknown() != 1 || st.GetInstances().GetEligible() != 0 || st.GetGuardsTripped() != 0) {
				t.Errorf("%s is told of %v", id, st)
			}
		}
		_, err := w.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
		wants(t, err, codes.Unauthenticated, status.NoIdentity)
	})
}

// TestStatusSaysWhatIsWrong, also while the server starts.
func TestStatusSaysWhatIsWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.snapshot = views.NewSnapshot(false)
		w.checks = []Check{{Name: "store"}, {Name: "views", Why: "3 of 9 are built"}}
		w.store = Store{Frozen: true, Reason: errors.New("no space").Error(), Since: time.Now()}
		w.shed = time.Now()
		st := w.status(operator)
		if st.GetReady() || len(st.GetChecks()) != 2 || !st.GetChecks()[0].GetOk() || st.GetChecks()[1].GetReason() != "3 of 9 are built" {
			t.Errorf("checks %v", st.GetChecks())
		}
		if st.GetStore().GetState() != adminv1.StoreState_STORE_STATE_FROZEN || st.GetStore().GetReason() != "no space" || st.GetStore().GetSince() == nil {
			t.Errorf("store %v", st.GetStore())
		}
		if sh := st.GetShed(); !sh.GetActive() || sh.GetSince() == nil || sh.GetReason() == "" {
			t.Errorf("shed %v", sh)
		}
		_, err := w.Explain(as(operator), &adminv1.ExplainRequest{Namespace: "shop", Name: "checkout"})
		wants(t, err, codes.Unavailable, status.ViewsLoading)
		_, err = w.DiffViews(as(operator), &adminv1.DiffViewsRequest{FromVersion: "7.1"})
		wants(t, err, codes.Unavailable, status.ViewsLoading)
	})
}
