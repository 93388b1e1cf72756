package registry

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// tenant is a workload at an address.
type tenant struct {
	*world
	api *harness.API
	id  string
	uid string
}

// moveIn registers the address as an instance of the service, by the service's
// own workload.
func (w *world) moveIn(host, account string, at netip.AddrPort) *tenant {
	w.Helper()
	who := w.s.CA.Mint(w, "/ns/shop/sa/"+account)
	n := &tenant{world: w, api: w.s.DialAPI(w, who), id: who.ID}
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	defer cancel()
	r, err := n.api.Registry.RegisterInstance(ctx, &registryv1.RegisterInstanceRequest{Instance: harness.PutInstance(host, "", at).GetPutInstance()})
	w.ok(err)
	n.uid = r.GetInstance().GetUid()
	return n
}

// says reports an instance's own status, and returns what became of it.
func (n *tenant) says(s healthv1.SelfStatus, uid string) *healthv1.Tally {
	n.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	defer cancel()
	st, err := healthv1.NewReportServiceClient(n.api.Conn).ReportSelf(ctx)
	n.ok(err)
	n.ok(st.Send(&healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Bind{Bind: &healthv1.SelfBind{Instances: []string{uid}}}}))
	n.ok(st.Send(&healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Batch{Batch: &healthv1.SelfBatch{
		Instance: []uint32{0}, Status: []healthv1.SelfStatus{s}}}}))
	r, err := st.CloseAndRecv()
	n.ok(err)
	return r.GetTally()
}

// owner is who the assignment says is at the only address: uid and identity.
func (w *world) owner(c *rawxds.Client, host string, within time.Duration, at netip.AddrPort, want *tenant) {
	w.Helper()
	var uid, id string
	if err := c.Await(within, func() bool {
		res, had := c.Held(rawxds.EDS)[host]
		m, err := res.Assignment()
		if !had || err != nil || len(m.GetEndpoints()) != 1 || len(m.GetEndpoints()[0].GetLbEndpoints()) != 1 {
			return false
		}
		f := m.GetEndpoints()[0].GetLbEndpoints()[0].GetMetadata().GetFilterMetadata()["sightline"].GetFields()
		uid, id = f["uid"].GetStringValue(), f["spiffe_id"].GetStringValue()
		return uid == want.uid && id == want.id
	}); err != nil {
		w.Fatalf("%s at %v: %v; it says %s %s, want %s %s", host, at, err, uid, id, want.uid, want.id)
	}
	w.holds(c, host, time.Second, at)
}

// C36: an address belongs to whom proved it last. Who had it before is gone at
// once, for every caller, and cannot reach its successor with a late word.
func TestC36NewTenantAtAnOldAddress(t *testing.T) {
	t.Parallel()
	w := start(t, harness.ServerConfig{})
	profile := &registryv1.Change{Change: &registryv1.Change_PutProfile{PutProfile: &registryv1.Profile{
		Namespace: "shop", Name: "speaks", Supplies: []registryv1.EvidenceClass{registryv1.EvidenceClass_EVIDENCE_CLASS_SELF}}}}
	ledger, orders := harness.PutService("ledger.shop"), harness.PutService("orders.shop")
	ledger.GetPutService().Profile, orders.GetPutService().Profile = "speaks", "speaks"
	w.api.Apply(t, profile, ledger, orders)
	c, grpc := w.delta(), w.sotw()
	w.ok(c.Subscribe(rawxds.EDS, "ledger.shop", "orders.shop"))
	w.ok(grpc.Ask(rawxds.EDS, "ledger.shop", "orders.shop"))
	const serving = healthv1.SelfStatus_SELF_STATUS_SERVING
	place, other := netip.MustParseAddrPort("10.20.5.9:8443"), netip.MustParseAddrPort("10.20.5.8:8443")
	l0, l1 := w.moveIn("ledger.shop", "ledger", other), w.moveIn("ledger.shop", "ledger", place)
	for _, n := range []*tenant{l0, l1} {
		if tally := n.says(serving, n.uid); tally.GetAccepted() != 1 {
			t.Fatalf("a report about oneself: %v", tally)
		}
	}
	w.holds(c, "ledger.shop", starts, other, place)

	// L1 dies without a word, and O1 is at its address.
	o1 := w.moveIn("orders.shop", "orders", place)
	o1.says(serving, o1.uid)
	began := time.Now()
	w.holds(c, "ledger.shop", budget, other)
	w.holds(grpc, "ledger.shop", budget, other)
	w.owner(c, "orders.shop", budget, place, o1)
	w.holds(grpc, "orders.shop", budget, place)
	w.dnsLists("ledger.shop", began.Add(budget), other)
	w.dnsLists("orders.shop", began.Add(budget), place)

	// O1 dies likewise, and O2 is there.
	o2 := w.moveIn("orders.shop", "orders", place)
	o2.says(serving, o2.uid)
	w.owner(c, "orders.shop", budget, place, o2)
	w.holds(grpc, "orders.shop", budget, place)
	if uids := []string{l0.uid, l1.uid, o1.uid, o2.uid}; !slices.IsSorted(uids) || len(slices.Compact(slices.Clone(uids))) != 4 {
		t.Errorf("uids %v: each is new", uids)
	}

	// The late words: a deregistration of O1, a report and a renewal of L1.
	stay := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); pause(context.Background(), time.Second) {
			l0.says(serving, l0.uid)
			o2.says(serving, o2.uid)
		}
	}
	stay(5 * time.Second)
	before := len(c.Responses(rawxds.EDS))
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	defer cancel()
	_, err := o2.api.Registry.DeregisterInstance(ctx, &registryv1.DeregisterInstanceRequest{Instance: o1.uid})
	if code := status.Code(err); code != codes.OK && code != codes.NotFound {
		t.Errorf("the late deregistration: %v", err)
	}
	if tally := l1.says(healthv1.SelfStatus_SELF_STATUS_NOT_SERVING, l1.uid); tally.GetAccepted() != 0 || tally.GetUnattributed() != 1 {
		t.Errorf("the late report: %v", tally)
	}
	if tally := l1.says(healthv1.SelfStatus_SELF_STATUS_NOT_SERVING, o2.uid); tally.GetAccepted() != 0 {
		t.Errorf("a report on the successor: %v", tally)
	}
	if _, err := l1.api.Registry.RenewLease(ctx, &registryv1.RenewLeaseRequest{Uid: l1.uid}); status.Code(err) != codes.NotFound {
		t.Errorf("the late renewal: %v", err)
	}
	stay(2 * time.Second)
	w.owner(c, "orders.shop", time.Second, place, o2)
	w.holds(c, "ledger.shop", time.Second, other)
	for _, r := range c.Responses(rawxds.EDS)[before:] { // a ramp's step may come, but nobody goes
		for _, res := range r.Resources {
			want := map[string]string{"ledger.shop": other.String(), "orders.shop": place.String()}[res.Name]
			if got, err := res.Addresses(); err != nil || !slices.Equal(got, []string{want}) {
				t.Errorf("after late words %s listed %v (%v)", res.Name, got, err)
			}
		}
	}
	w.dnsLists("orders.shop", time.Now().Add(time.Second), place)
}
