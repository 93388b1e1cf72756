package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sightlinedev/sightline/health"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// walkLog lists the details of every page, and calls between after each.
func (w *world) walkLog(id string, req *adminv1.ListTransitionsRequest, between func()) (out []string) {
	w.t.Helper()
	for n := 0; n == 0 || req.PageToken != ""; n++ {
		resp, err := w.ListTransitions(as(id), req)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, x := range resp.GetTransitions() {
			out = append(out, x.GetDetail())
		}
		if between != nil {
			between()
		}
		req.PageToken = resp.GetNextPageToken()
	}
	return out
}

// TestTheLogIsReadBackwards by pages, also where many entries are of one
// moment, and while entries are added.
func TestTheLogIsReadBackwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1")
		w.put(ledgerName, ledger, "10.1.0.1")
		base := time.Now()
		var all, shop []string
		for i := 20; i > 0; i-- { // newest first; five entries a moment
			x := Transition{At: base.Add(time.Duration((i-1)/5) * time.Second), Name: checkoutName, UID: u[0], Detail: fmt.Sprint(i), Rule: health.R2}
			if i%3 == 0 {
				x.Name, x.UID = ledgerName, 7
			} else {
				shop = append(shop, x.Detail)
			}
			all = append(all, x.Detail)
			w.log = append(w.log, x)
		}
		for size := int32(1); size < 22; size += 3 {
			if got := w.walkLog(operator, &adminv1.ListTransitionsRequest{PageSize: size}, nil); !slices.Equal(got, all) {
				t.Errorf("pages of %d: %v", size, got)
			}
			if got := w.walkLog(checkout, &adminv1.ListTransitionsRequest{PageSize: size}, nil); !slices.Equal(got, shop) {
				t.Errorf("pages of %d for checkout: %v", size, got)
			}
		}
		for want, req := range map[string]*adminv1.ListTransitionsRequest{
			"all of shop":          {Namespace: "shop"},
			"all of shop/checkout": {Namespace: "shop", Name: "checkout"},
			"all of a":             {Namespace: "shop", Name: "checkout", Instance: "a"},
			"all by uid":           {Namespace: "shop", Name: "checkout", Instance: u[0].String()},
		} {
			req.PageSize = 4
			if got := w.walkLog(operator, req, nil); !slices.Equal(got, shop) {
				t.Errorf("%s: %v", want, got)
			}
		}
		some := &adminv1.ListTransitionsRequest{PageSize: 2, StartTime: timestamppb.New(base.Add(time.Second)), EndTime: timestamppb.New(base.Add(3 * time.Second))}
		if got := w.walkLog(operator, some, nil); !slices.Equal(got, all[5:15]) {
			t.Errorf("of two seconds: %v", got)
		}
		grow := func() {
			w.log = slices.Insert(w.log, 0, Transition{At: base.Add(time.Minute), Name: checkoutName, Detail: "new"})
		}
		if got := w.walkLog(operator, &adminv1.ListTransitionsRequest{PageSize: 3}, grow); !slices.Equal(got, all) {
			t.Errorf("while it grows: %v", got)
		}
	})
}

// TestEntries: what an entry says of admission and removal.
func TestEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1")
		w.log = []Transition{
			{At: time.Now(), Name: checkoutName, UID: 7, From: health.Eligible, To: health.Ineligible, Rule: health.R1, Removal: registry.Deregistered, Detail: "deregistered itself"},
			{At: time.Now(), Name: checkoutName, UID: u[0], To: health.Eligible, Member: true, Rule: health.R7, Version: views.Version{Epoch: 7, Seq: 9}},
			{At: time.Now(), Name: checkoutName, UID: u[0], Rule: health.Admission},
		}
		resp, err := w.ListTransitions(as(operator), &adminv1.ListTransitionsRequest{})
		if err != nil || len(resp.GetTransitions()) != 3 {
			t.Fatal(resp, err)
		}
		gone, in, waits := resp.GetTransitions()[0], resp.GetTransitions()[1], resp.GetTransitions()[2]
		if gone.GetEvent() != "removal" || gone.GetTo() != viewv1.State_STATE_UNSPECIFIED || gone.GetFrom() != viewv1.State_STATE_ELIGIBLE || gone.GetLabel() != "" {
			t.Errorf("%v", gone)
		}
		if in.GetEvent() != "" || in.GetVersion() != "7.9" || in.GetLabel() != "a" || in.GetRule() != "R7" || in.GetService() != "shop/checkout" {
			t.Errorf("%v", in)
		}
		if waits.GetEvent() != "not admitted" || waits.GetVersion() != "" {
			t.Errorf("%v", waits)
		}
	})
}

// TestALongLogIsNotWalkedAtOnce: a page may be empty and not the last.
func TestALongLogIsNotWalkedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(ledgerName, ledger, "10.1.0.1")
		for i := range searchedEntries + 500 {
			w.log = append(w.log, Transition{At: time.Now().Add(-time.Duration(i) * time.Second), Name: checkoutName})
		}
		w.log = append(w.log, Transition{At: time.Now().Add(-24 * time.Hour), Name: ledgerName, Detail: "old"})
		resp, err := w.ListTransitions(as(ledger), &adminv1.ListTransitionsRequest{})
		if err != nil || len(resp.GetTransitions()) != 0 || resp.GetNextPageToken() == "" || w.reads > searchedEntries/readEntries+1 {
			t.Errorf("%d entries, %v, %d reads", len(resp.GetTransitions()), err, w.reads)
		}
		if got := w.walkLog(ledger, &adminv1.ListTransitionsRequest{}, nil); !slices.Equal(got, []string{"old"}) {
			t.Errorf("found %v", got)
		}
	})
}

// TestWhatTheLogIsNotAsked.
func TestWhatTheLogIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(checkoutName, checkout, "10.0.0.1")
		w.put(ledgerName, ledger, "10.1.0.1")
		for _, c := range []struct {
			who  string
			req  *adminv1.ListTransitionsRequest
			grpc codes.Code
			code status.Code
		}{
			{checkout, &adminv1.ListTransitionsRequest{Namespace: "bank", Name: "ledger"}, codes.NotFound, status.NotFound},
			{checkout, &adminv1.ListTransitionsRequest{Namespace: "bank", Name: "nobody"}, codes.NotFound, status.NotFound},
			{operator, &adminv1.ListTransitionsRequest{Namespace: "shop", Name: "checkout", Instance: "none"}, codes.NotFound, status.NotFound},
			{operator, &adminv1.ListTransitionsRequest{Namespace: "shop", Name: "nobody"}, codes.NotFound, status.NotFound},
			{operator, &adminv1.ListTransitionsRequest{Namespace: "shop", Name: "checkout", Instance: "i99"}, codes.NotFound, status.NotFound},
			{operator, &adminv1.ListTransitionsRequest{Namespace: "shop", Name: "checkout"}, codes.OK, 0},
			{operator, &adminv1.ListTransitionsRequest{Namespace: "shop", Name: "checkout", Instance: "a"}, codes.OK, 0},
			{operator, &adminv1.ListTransitionsRequest{Namespace: "nowhere"}, codes.OK, 0},
			{operator, &adminv1.ListTransitionsRequest{Name: "checkout"}, codes.InvalidArgument, status.InvalidField},
			{operator, &adminv1.ListTransitionsRequest{Namespace: "shop", Instance: "a"}, codes.InvalidArgument, status.InvalidField},
			{operator, &adminv1.ListTransitionsRequest{StartTime: &timestamppb.Timestamp{Seconds: 1 << 60}}, codes.InvalidArgument, status.InvalidField},
			{operator, &adminv1.ListTransitionsRequest{PageToken: "x"}, codes.InvalidArgument, status.InvalidPageToken},
		} {
			_, err := w.ListTransitions(as(c.who), c.req)
			wants(t, err, c.grpc, c.code)
		}
		// Of a service that was deleted the log still speaks, and of an instance.
		w.log = []Transition{{At: time.Now(), Name: registry.Name{Namespace: "shop", Service: "gone"}, UID: 99, Detail: "deleted"}}
		for _, instance := range []string{"", "i99"} {
			if got := w.walkLog(operator, &adminv1.ListTransitionsRequest{Namespace: "shop", Name: "gone", Instance: instance}, nil); !slices.Equal(got, []string{"deleted"}) {
				t.Errorf("instance %q of a deleted service: %v", instance, got)
			}
		}
		broken := New(w.cfg)
		broken.cfg.Transitions = func(context.Context, TransitionQuery) ([]Transition, error) { return nil, errors.New("broken") }
		_, err := broken.ListTransitions(callerOf(operator), &adminv1.ListTransitionsRequest{})
		wants(t, err, codes.Unavailable, status.StoreUnavailable)
	})
}
