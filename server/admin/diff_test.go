package admin

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// region publishes, one after the other: checkout with 1 and 2 (3), ledger (5),
// checkout without 2 and with 3 (7), deletes cart (8), ledger's 9 degraded (9).
func (w *world) region() {
	w.put(checkoutName, checkout, "10.0.0.1")
	w.put(ledgerName, ledger, "10.1.0.1")
	cart := registry.Name{Namespace: "shop", Service: "cart"}
	first := view(checkoutName, 3, map[registry.UID]views.State{1: views.Eligible, 2: views.Eligible})
	second := view(checkoutName, 7, map[registry.UID]views.State{1: views.Eligible, 3: views.Eligible})
	second.Members[0].Evidence.Detail = "other words"
	bank := view(ledgerName, 5, map[registry.UID]views.State{9: views.Eligible})
	bank2 := view(ledgerName, 9, map[registry.UID]views.State{9: views.Degraded})
	w.history[checkoutName] = []*views.View{first, second}
	w.history[ledgerName] = []*views.View{bank, bank2}
	w.history[cart] = []*views.View{view(cart, 4, map[registry.UID]views.State{4: views.Unknown})}
	at := func(seq uint64) views.Version { return views.Version{Epoch: 7, Seq: seq} }
	w.changes = []views.Change{{Version: at(3), Name: checkoutName}, {Version: at(4), Name: cart}, {Version: at(5), Name: ledgerName},
		{Version: at(7), Name: checkoutName}, {Version: at(8), Name: cart, Deleted: true}, {Version: at(9), Name: ledgerName}}
	w.snapshot = views.NewSnapshot(true, second, bank2)
}

func (w *world) diff(id string, req *adminv1.DiffViewsRequest) (out []string, err error) {
	resp, err := w.DiffViews(as(id), req)
	for _, d := range resp.GetDiffs() {
		text := d.GetBefore().GetName() + "→" + d.GetAfter().GetName()
		if len(d.GetBefore().GetMembers())+len(d.GetAfter().GetMembers()) > 0 {
			text += " whole"
		}
		for _, m := range d.GetMembers() {
			switch {
			case m.GetBefore() == nil:
				text += " +" + m.GetAfter().GetUid()
			case m.GetAfter() == nil:
				text += " -" + m.GetBefore().GetUid()
			default:
				text += " ~" + m.GetAfter().GetUid()
			}
		}
		out = append(out, text)
	}
	return out, err
}

// TestTwoVersionsAreCompared.
func TestTwoVersionsAreCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.region()
		for _, c := range []struct {
			who, ns, name, from, to string
			want                    []string
		}{
			{operator, "", "", "7.5", "", []string{"ledger→ledger ~i9", "cart→ -i4", "checkout→checkout -i2 +i3"}},
			{operator, "", "", "7.2", "7.6", []string{"→ledger +i9", "→cart +i4", "→checkout +i1 +i2"}},
			{operator, "shop", "", "7.5", "", []string{"cart→ -i4", "checkout→checkout -i2 +i3"}},
			{operator, "shop", "checkout", "7.3", "7.7", []string{"checkout→checkout -i2 +i3"}},
			{operator, "shop", "checkout", "7.3", "7.6", nil},
			{operator, "", "", "7.9", "", nil},
			{reader, "", "", "7.5", "", []string{"cart→ -i4", "checkout→checkout -i2 +i3"}},
			{ledger, "", "", "7.5", "", []string{"ledger→ledger ~i9"}},
			{stranger, "", "", "7.5", "", nil},
		} {
			got, err := w.diff(c.who, &adminv1.DiffViewsRequest{Namespace: c.ns, Name: c.name, FromVersion: c.from, ToVersion: c.to})
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s %s/%s %s..%s: %q, %v; want %q", c.who, c.ns, c.name, c.from, c.to, got, err, c.want)
			}
		}
	})
}

// TestWhatCannotBeCompared.
func TestWhatCannotBeCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.region()
		for _, c := range []struct {
			req  *adminv1.DiffViewsRequest
			grpc codes.Code
			code status.Code
		}{
			{&adminv1.DiffViewsRequest{}, codes.InvalidArgument, status.InvalidField},
			{&adminv1.DiffViewsRequest{FromVersion: "7.5", ToVersion: "7.10"}, codes.InvalidArgument, status.InvalidField},
			{&adminv1.DiffViewsRequest{FromVersion: "7.9", ToVersion: "7.5"}, codes.InvalidArgument, status.InvalidField},
			{&adminv1.DiffViewsRequest{FromVersion: "7.5", Name: "checkout"}, codes.InvalidArgument, status.InvalidField},
			{&adminv1.DiffViewsRequest{FromVersion: "7.5", Namespace: "shop", Name: "none"}, codes.NotFound, status.NotFound},
		} {
			_, err := w.diff(operator, c.req)
			wants(t, err, c.grpc, c.code)
		}
		_, forbidden := w.diff(checkout, &adminv1.DiffViewsRequest{FromVersion: "7.5", Namespace: "bank", Name: "ledger"})
		_, missing := w.diff(checkout, &adminv1.DiffViewsRequest{FromVersion: "7.5", Namespace: "bank", Name: "nobody"})
		if a, b := forbidden.Error(), missing.Error(); len(a) != len(b) {
			t.Errorf("%s\n%s", a, b)
		}
		w.whole = false
		_, err := w.diff(operator, &adminv1.DiffViewsRequest{FromVersion: "6.5"})
		wants(t, err, codes.OutOfRange, status.ResumeTooOld)
		_, err = w.diff(operator, &adminv1.DiffViewsRequest{FromVersion: "6.5", Namespace: "shop", Name: "checkout"})
		wants(t, err, codes.OutOfRange, status.ResumeTooOld)
		broken := New(w.cfg)
		broken.cfg.Changes = func(context.Context, views.Version) ([]views.Change, bool, error) {
			return nil, false, errors.New("broken")
		}
		_, err = broken.DiffViews(callerOf(operator), &adminv1.DiffViewsRequest{FromVersion: "7.5"})
		wants(t, err, codes.Unavailable, status.StoreUnavailable)
	})
}
