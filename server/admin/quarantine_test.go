package admin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"unicode"

	"google.golang.org/grpc/codes"

	"github.com/sightlinedev/sightline/health"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

func ending(instance, why string) *adminv1.ReleaseQuarantineRequest {
	return &adminv1.ReleaseQuarantineRequest{Namespace: "shop", Name: "checkout", Instance: instance, Justification: why}
}

// TestQuarantinesAreListedAndReleased: a release is on record before it has its
// effect, and so is one that is refused.
func TestQuarantinesAreListedAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1", "10.0.0.2")
		l := w.put(ledgerName, ledger, "10.1.0.1")
		w.flapping = map[registry.UID]int{u[1]: 5, l[0]: 7}

		all, err := w.ListQuarantines(as(operator), &adminv1.ListQuarantinesRequest{})
		if err != nil || len(all.GetQuarantines()) != 2 || all.GetQuarantines()[0].GetService() != "bank/ledger" {
			t.Fatalf("%v, %v", all, err)
		}
		if q := all.GetQuarantines()[1]; q.GetLabel() != "b" || q.GetUid() != u[1].String() || !q.GetQuarantine().GetActive() || q.GetQuarantine().GetChanges() != 5 {
			t.Errorf("%v", q)
		}
		first, err := w.ListQuarantines(as(operator), &adminv1.ListQuarantinesRequest{PageSize: 1})
		if err != nil || len(first.GetQuarantines()) != 1 || first.GetNextPageToken() == "" {
			t.Errorf("%v, %v", first, err)
		}
		if seen, err := w.ListQuarantines(as(checkout), &adminv1.ListQuarantinesRequest{}); err != nil || len(seen.GetQuarantines()) != 1 {
			t.Errorf("a workload sees its own: %v, %v", seen, err)
		}
		_, err = w.ListQuarantines(as(reader), &adminv1.ListQuarantinesRequest{Namespace: "bank", Name: "ledger"})
		wants(t, err, codes.NotFound, status.NotFound)

		r, err := w.ReleaseQuarantine(as(operator), ending("b", " repaired its disk "))
		if err != nil || r.GetQuarantine().GetQuarantine().GetChanges() != 5 {
			t.Fatalf("%v, %v", r, err)
		}
		if len(w.records) != 1 || !w.records[0].Allowed || w.records[0].Reason != "repaired its disk" || w.records[0].Actor != operator ||
			w.records[0].Target != "instance/shop/checkout/b" || w.records[0].Address != "10.9.9.9" {
			t.Errorf("on record: %+v", w.records)
		}
		if len(w.released) != 1 || !strings.HasSuffix(w.released[0], "after 1 records") {
			t.Errorf("released: %v", w.released)
		}
	})
}

// TestRefusedReleasesAreOnRecord: who asked for what, and why not.
func TestRefusedReleasesAreOnRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1", "10.0.0.2")
		w.flapping = map[registry.UID]int{u[1]: 5}
		for _, c := range []struct {
			req  *adminv1.ReleaseQuarantineRequest
			grpc codes.Code
			code status.Code
		}{
			{ending("a", "why not"), codes.FailedPrecondition, status.NothingHeld},
			{ending("b", "  "), codes.InvalidArgument, status.InvalidField},
			{ending("b", "two\nlines"), codes.InvalidArgument, status.InvalidField},
			{ending("b", strings.Repeat("x", reasonAtMost+1)), codes.InvalidArgument, status.InvalidField},
			{ending("none", "gone"), codes.NotFound, status.NotFound},
		} {
			w.records = nil
			_, err := w.ReleaseQuarantine(as(operator), c.req)
			wants(t, err, c.grpc, c.code)
			if len(w.records) != 1 || w.records[0].Allowed || w.records[0].Reason == "" || strings.Contains(w.records[0].Reason, "rpc error") {
				t.Errorf("%v: on record: %+v", c.req, w.records)
			}
		}
		w.fullDisk = errors.New("no room")
		_, err := w.ReleaseQuarantine(as(operator), ending("b", "repaired"))
		wants(t, err, codes.Unavailable, status.StoreUnavailable)
		if len(w.released) != 0 || len(w.flapping) != 1 {
			t.Errorf("released without a record: %v", w.released)
		}
	})
}

// TestBrakesAreReleased: a source's and the region's.
func TestBrakesAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		release := func(source string) (string, error) {
			r, err := w.ReleaseBrake(as(operator), &adminv1.ReleaseBrakeRequest{Source: source, Justification: "checked by hand"})
			return r.GetDetail(), err
		}
		_, err := release("")
		wants(t, err, codes.FailedPrecondition, status.NothingHeld)
		_, err = w.ReleaseBrake(as(operator), &adminv1.ReleaseBrakeRequest{})
		wants(t, err, codes.InvalidArgument, status.InvalidField)
		w.stance = &health.Stance{Braked: true, BrakeDetail: "61 of 300 members"}
		if said, err := release(""); err != nil || !strings.Contains(said, "61 of 300 members") {
			t.Errorf("%q, %v", said, err)
		}
		w.held = map[string]int{"file:prod": 4}
		if said, err := release("file:prod"); err != nil || !strings.Contains(said, "4 held removals of file:prod") {
			t.Errorf("%q, %v", said, err)
		}
		_, err = release("file:prod")
		wants(t, err, codes.FailedPrecondition, status.NothingHeld)
		if len(w.records) != 5 || w.released[0] != "region after 3 records" {
			t.Errorf("records %+v, released %v", w.records, w.released)
		}
	})
}

// TestOnRecordIsWhatALogCanHold: a refused attempt is on record also where it
// names a thing that cannot be.
func TestOnRecordIsWhatALogCanHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		odd := "x\nAllowed=true" + strings.Repeat("é", 10_000)
		_, err := w.ReleaseQuarantine(as(operator), &adminv1.ReleaseQuarantineRequest{Namespace: odd, Name: odd, Instance: odd, Justification: "y"})
		wants(t, err, codes.NotFound, status.NotFound)
		_, err = w.ReleaseBrake(as(operator), &adminv1.ReleaseBrakeRequest{Source: odd, Justification: "y"})
		wants(t, err, codes.FailedPrecondition, status.NothingHeld)
		if len(w.records) != 2 {
			t.Fatalf("%d records", len(w.records))
		}
		for _, r := range w.records {
			if n := len(r.Target) + len(r.Reason); n > 4*(reasonAtMost+targetAtMost) || strings.ContainsFunc(r.Target+r.Reason, unicode.IsControl) {
				t.Errorf("%d bytes: %q", n, r.Target)
			}
		}
	})
}

// TestWhoIsListedIsNotAskedFor: a service whose view shows that nobody is held
// out costs its shard nothing; any doubt does.
func TestWhoIsListedIsNotAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1", "10.0.0.2")
		asked := 0
		inspect := w.cfg.Inspect
		s := New(w.cfg)
		s.cfg.Inspect = func(ctx context.Context, n registry.Name) (Inspection, bool, error) {
			asked++
			return inspect(ctx, n)
		}
		good := func() *views.View {
			return view(checkoutName, 9, map[registry.UID]views.State{u[0]: views.Eligible, u[1]: views.Eligible})
		}
		for name, row := range map[string]struct {
			edit func(*views.View)
			want int
		}{
			"all listed": {func(*views.View) {}, 0},
			"one out":    {func(v *views.View) { v.Members[1].Listed = false }, 1},
			"draining":   {func(v *views.View) { v.Members[1].Listed, v.Members[1].Draining = false, true }, 1},
			"unadmitted": {func(v *views.View) { v.Members = v.Members[:1] }, 1},
			"guard":      {func(v *views.View) { v.Guard.Tripped = true }, 1},
			"degraded":   {func(v *views.View) { v.Confidence = views.ConfidenceDegraded }, 1},
		} {
			v := good()
			row.edit(v)
			w.snapshot, asked = views.NewSnapshot(true, v), 0
			if _, err := s.ListQuarantines(callerOf(operator), &adminv1.ListQuarantinesRequest{}); err != nil || asked != row.want {
				t.Errorf("%s: asked %d times, %v", name, asked, err)
			}
		}
	})
}
