package views_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// TestDamagedRows: a member whose stored row does not decode stays listed as it
// was, while the rest of the service goes on, and leaves when it is repaired.
func TestDamagedRows(t *testing.T) {
	n := views.Name{Namespace: "shop", Service: "checkout"}
	now := time.Unix(1000, 0)
	row := func(uid views.UID) *registry.Instance {
		return &registry.Instance{UID: uid, Service: n, Label: uid.String()[:1] + "nst", Weight: 100}
	}
	change := func(damaged int, rows ...views.UID) *registry.Change {
		c := &registry.Change{Name: n, Revision: uint64(len(rows) + 10*damaged), Service: &registry.Service{Name: n, Ports: []registry.Port{{Name: "grpc", Number: 1}}}, DamagedRows: damaged}
		for _, uid := range rows {
			c.Instances = append(c.Instances, registry.InstanceChange{UID: uid, Row: row(uid)})
		}
		return c
	}
	listed := func(c views.Candidate) (out []views.UID) {
		for _, m := range c.View.Members {
			if m.Listed {
				out = append(out, m.UID)
			}
		}
		return out
	}
	a := views.NewAssembler(n, views.Memory{HadMembers: true})
	a.Restore([]*views.Member{{UID: 7, Label: "seven", Weight: 100, BaseWeight: 100, State: views.Eligible, Listed: true}})
	c, _ := a.Apply(now, views.Input{Change: change(1, 8), Verdicts: []health.Verdict{{UID: 8, State: health.Eligible, Member: true, Weight: 100}}})
	if got := listed(c); len(got) != 2 || got[0] != 7 || got[1] != 8 {
		t.Fatalf("with a damaged row: %v listed, want 7 and 8", got)
	}
	c, _ = a.Apply(now, views.Input{Verdicts: []health.Verdict{{UID: 8, State: health.Ineligible, Member: true, Weight: 100, Rule: health.R2}}})
	if got := listed(c); len(got) == 0 || got[0] != 7 {
		t.Fatalf("after a withdrawal beside it: %v listed", got)
	}
	c, _ = a.Apply(now, views.Input{Change: change(0, 8), Verdicts: []health.Verdict{{UID: 8, State: health.Eligible, Member: true, Weight: 100}}})
	if got := listed(c); len(got) != 1 || got[0] != 8 {
		t.Fatalf("once repaired: %v listed, want 8", got)
	}
}

// TestDamagedRowsComeBack: a member whose row does not decode registers anew,
// and the list names it again. It is listed once, as what was restored until
// the new one is a member; nobody else is dropped for it.
func TestDamagedRowsComeBack(t *testing.T) {
	n := views.Name{Namespace: "shop", Service: "checkout"}
	now := time.Unix(1000, 0)
	at := func(last byte) views.Endpoint {
		return views.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, last})}
	}
	a := views.NewAssembler(n, views.Memory{HadMembers: true})
	a.Restore([]*views.Member{
		{UID: 5, Endpoint: at(5), Weight: 100, BaseWeight: 100, State: views.Eligible, Listed: true},
		{UID: 6, Label: "six", Endpoint: at(6), Weight: 100, BaseWeight: 100, State: views.Eligible, Listed: true},
		{UID: 7, Label: "seven", Endpoint: at(7), Weight: 100, BaseWeight: 100, State: views.Eligible, Listed: true},
	})
	back := []*registry.Instance{
		{UID: 8, Service: n, Label: "eight", Endpoint: at(5), Weight: 100}, // the address of i5, under a name
		{UID: 9, Service: n, Label: "six", Endpoint: at(9), Weight: 100},   // the name of i6, elsewhere
	}
	c := &registry.Change{Name: n, Service: &registry.Service{Name: n, Ports: []registry.Port{{Name: "grpc", Number: 1}}}, DamagedRows: 3}
	var verdicts []health.Verdict
	for _, row := range back {
		c.Instances = append(c.Instances, registry.InstanceChange{UID: row.UID, Row: row})
		verdicts = append(verdicts, health.Verdict{UID: row.UID, State: health.Eligible, Member: true, Weight: 100})
	}
	uids := func(c views.Candidate) (out []views.UID) {
		for _, m := range c.View.Members {
			out = append(out, m.UID)
		}
		return out
	}
	before, _ := a.Apply(now, views.Input{Change: c})
	if got := uids(before); !slices.Equal(got, []views.UID{5, 6, 7}) {
		t.Fatalf("before the new ones are members: %v", got)
	}
	after, _ := a.Apply(now, views.Input{Verdicts: verdicts})
	if got := uids(after); !slices.Equal(got, []views.UID{7, 8, 9}) {
		t.Errorf("once they are: %v", got)
	}
	given := &registry.Change{Name: n, Service: c.Service, DamagedRows: 2, Instances: []registry.InstanceChange{{UID: 7, Removal: registry.RemovedByOperator}}}
	up, _ := a.Apply(now, views.Input{Change: given})
	if got := uids(up); !slices.Equal(got, []views.UID{8, 9}) {
		t.Errorf("once an operator gave up the last: %v", got)
	}
}

// TestHeldView: a service whose own row does not decode is not announced as
// deleted, and a candidate made once the row is back replaces what was held.
func TestHeldView(t *testing.T) {
	n := views.Name{Namespace: "shop", Service: "checkout"}
	held := &views.View{Name: n, Endpoint: views.Version{Epoch: 3, Seq: 9}, Config: views.Version{Epoch: 3, Seq: 4}}
	p := views.NewPublisher(views.PublisherConfig{Epoch: 4, Next: 100, Reserved: 1000,
		Stored: map[views.Name]views.Stored{n: {Endpoint: held.Endpoint, Config: held.Config}}})
	if anew := p.Hold(held); anew != nil {
		t.Fatalf("the newest stored view got version %s", anew.Version)
	}
	if gone := p.Complete(); len(gone) != 0 {
		t.Fatalf("announced as deleted: %v", gone)
	}
	if v := p.Snapshot().Get(n); v != held || !p.Snapshot().Complete() {
		t.Fatalf("the last good view is not served: %v", v)
	}
	c := views.Candidate{Name: n, Revision: 1, View: &views.View{Name: n, ListedCount: 1, EndpointHash: [32]byte{1}}}
	now := time.Unix(1000, 0)
	r := p.Publish(now, c)
	if r.Outcome != views.Stale || r.Held != held.Version() {
		t.Fatalf("computed without knowing what is held: %+v", r)
	}
	c.Base = r.Held
	for range 3 {
		if r = p.Publish(now, c); r.Outcome == views.Published {
			break
		}
		now = r.Until
	}
	if r.Outcome != views.Published || !held.Endpoint.Less(p.Snapshot().Get(n).Endpoint) {
		t.Fatalf("once the row is back: %+v", r)
	}
}

// TestHeldViewThatWasNotTheNewest: when it is not known that callers have seen
// nothing newer than the view that is held, it goes out under a new version.
func TestHeldViewThatWasNotTheNewest(t *testing.T) {
	n := views.Name{Namespace: "shop", Service: "checkout"}
	held := &views.View{Name: n, Endpoint: views.Version{Epoch: 3, Seq: 9}, Config: views.Version{Epoch: 3, Seq: 4},
		EndpointHash: [32]byte{1}, ConfigHash: [32]byte{2}, ListedCount: 1}
	for what, stored := range map[string]map[views.Name]views.Stored{
		"a view was dropped":        {n: {Endpoint: held.Endpoint, Config: held.Config}}, // as the store tells it
		"the newest is another one": {n: {Endpoint: views.Version{Epoch: 3, Seq: 12}, Config: held.Config, EndpointHash: [32]byte{5}, ConfigHash: held.ConfigHash}},
		"the newest is not known":   nil,
	} {
		p := views.NewPublisher(views.PublisherConfig{Epoch: 4, Next: 100, Reserved: 1000, Stored: stored})
		anew := p.Hold(held)
		if gone := p.Complete(); anew == nil || len(gone) != 0 {
			t.Fatalf("%s: %v, announced as deleted: %v", what, anew, gone)
		}
		v := p.Snapshot().Get(n)
		if v != anew.New || v.Endpoint != anew.Version || v.Config != anew.Version || anew.Version != (views.Version{Epoch: 4, Seq: 100}) || v.ListedCount != 1 {
			t.Errorf("%s: held at %s and %s, published %+v", what, v.Endpoint, v.Config, anew)
		}
		if changes, _, ok := p.Since(views.Version{Epoch: 4, Seq: 99}); !ok || len(changes) != 1 || changes[0].Name != n {
			t.Errorf("%s: whoever resumes is told %v, %v", what, changes, ok)
		}
		c := views.Candidate{Name: n, Base: v.Version(), View: &views.View{Name: n, EndpointHash: [32]byte{1}, ConfigHash: [32]byte{2}}}
		if r := p.Publish(time.Unix(1000, 0), c); r.Outcome != views.Unchanged || r.Held != v.Version() {
			t.Errorf("%s: the same again: %+v", what, r)
		}
	}
}
