package admin

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
)

func sample(n registry.Name, uid registry.UID, refused string) Sample {
	return Sample{
		At: time.Now(), Name: n, UID: uid, Class: registry.ClassSelf, Detail: "SERVING", Refused: refused,
		Reporter: identity.Principal{ID: identity.MustParse(checkout)},
	}
}

// TestATapShowsWhatComesIn: taken in or not, of the service, instance and
// classes asked for.
func TestATapShowsWhatComesIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1", "10.0.0.2")
		taps := w.cfg.Taps
		if taps.Wanted(checkoutName) {
			t.Error("wanted without a reader")
		}
		taps.Offer(sample(checkoutName, u[0], "")) // nobody hears it
		open := func(req *adminv1.TapRequest) (adminv1.AdminService_TapClient, context.CancelFunc) {
			ctx, cancel := context.WithCancel(as(operator))
			req.Namespace, req.Name = "shop", "checkout"
			s, err := w.Tap(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			return s, cancel
		}
		all, endAll := open(&adminv1.TapRequest{})
		one, endOne := open(&adminv1.TapRequest{Instance: "b"})
		probes, endProbes := open(&adminv1.TapRequest{EvidenceClasses: []registryv1.EvidenceClass{registryv1.EvidenceClass_EVIDENCE_CLASS_PROBE}})
		synctest.Wait()
		probe := sample(checkoutName, u[0], "")
		probe.Class, probe.Zone = registry.ClassProbe, "b"
		call := sample(checkoutName, u[0], "")
		call.Class, call.Calls = registry.ClassCallers, &Calls{Outcome: health.Outcome{Issued: 20, OK: 12, Failed: 8}, Interval: 2 * time.Second, Kind: health.FromEnvoy}
		taps.Offer(sample(checkoutName, u[0], ""), sample(ledgerName, 7, ""), sample(checkoutName, u[1], "stale"), probe, call)

		got, err := all.Recv()
		if err != nil || len(got.GetSamples()) != 4 || got.GetLost() != 0 {
			t.Fatalf("%v, %v", got, err)
		}
		if s := got.GetSamples()[0]; !s.GetAccepted() || s.GetReason() != "" || s.GetUid() != u[0].String() || s.GetReporter() != checkout || s.GetCount() != 1 || s.GetService() != "shop/checkout" {
			t.Errorf("sample %v", s)
		}
		if s := got.GetSamples()[1]; s.GetAccepted() || s.GetReason() != "stale" {
			t.Errorf("sample %v", s)
		}
		if s := got.GetSamples()[2]; s.GetZone() != "b" || s.GetOutcome() != nil {
			t.Errorf("sample %v", s)
		}
		if o := got.GetSamples()[3].GetOutcome(); o.GetIssued() != 20 || o.GetOk() != 12 || o.GetFailed() != 8 || o.GetInterval().AsDuration() != 2*time.Second ||
			o.GetKind() != adminv1.ReporterKind_REPORTER_KIND_ENVOY {
			t.Errorf("sample %v", got.GetSamples()[3])
		}
		if got, err = one.Recv(); err != nil || len(got.GetSamples()) != 1 || got.GetSamples()[0].GetUid() != u[1].String() {
			t.Errorf("%v, %v", got, err)
		}
		if got, err = probes.Recv(); err != nil || len(got.GetSamples()) != 1 || got.GetSamples()[0].GetEvidenceClass() != registryv1.EvidenceClass_EVIDENCE_CLASS_PROBE {
			t.Errorf("%v, %v", got, err)
		}
		endOne()
		endProbes()
		if _, err := one.Recv(); grpcstatus.Code(err) != codes.Canceled {
			t.Error(err)
		}
		synctest.Wait()
		if !taps.Wanted(checkoutName) || taps.Wanted(ledgerName) {
			t.Error("one tap is open, of one service: whoever reports on another has to put no sample together")
		}
		taps.Close()
		taps.Close()
		_, err = all.Recv()
		wants(t, err, codes.Unavailable, status.Stopping)
		endAll()
		synctest.Wait()
		if taps.Wanted(checkoutName) {
			t.Error("a tap is left")
		}
	})
}

// TestASlowReaderLosesAndIsTold.
func TestASlowReaderLosesAndIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1")
		ctx, cancel := context.WithCancel(as(operator))
		defer cancel()
		s, err := w.Tap(ctx, &adminv1.TapRequest{Namespace: "shop", Name: "checkout"})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		batch := make([]Sample, 3*tapQueue)
		for i := range batch {
			batch[i] = sample(checkoutName, u[0], "")
		}
		w.cfg.Taps.Offer(batch...)
		shown, lost := 0, uint64(0)
		for shown+int(lost) < len(batch) {
			got, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			shown += len(got.GetSamples())
			lost += got.GetLost()
		}
		if shown != tapQueue || lost != 2*tapQueue {
			t.Errorf("shown %d, lost %d", shown, lost)
		}
	})
}

// TestWhoMayTap, what, and how often.
func TestWhoMayTap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(checkoutName, checkout, "10.0.0.1")
		w.put(ledgerName, ledger, "10.1.0.1")
		try := func(who string, req *adminv1.TapRequest) error {
			ctx, cancel := context.WithTimeout(as(who), time.Second)
			defer cancel()
			s, err := w.Tap(ctx, req)
			if err == nil {
				_, err = s.Recv()
			}
			return err
		}
		wants(t, try(reader, &adminv1.TapRequest{Namespace: "bank", Name: "ledger"}), codes.NotFound, status.NotFound)
		wants(t, try(reader, &adminv1.TapRequest{Namespace: "shop", Name: "none"}), codes.NotFound, status.NotFound)
		wants(t, try(operator, &adminv1.TapRequest{Namespace: "shop", Name: "checkout", Instance: "z"}), codes.NotFound, status.NotFound)
		wants(t, try(operator, &adminv1.TapRequest{Namespace: "shop", Name: "checkout", EvidenceClasses: []registryv1.EvidenceClass{9}}), codes.InvalidArgument, status.InvalidField)
		if err := try(reader, &adminv1.TapRequest{Namespace: "shop", Name: "checkout"}); grpcstatus.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
		req := &adminv1.TapRequest{Namespace: "shop", Name: "checkout"}
		for k := range w.cfg.API.Taps / w.cfg.API.TapsPerCaller {
			who := fmt.Sprintf("spiffe://example.org/sightline/operator/o%d", k)
			for range w.cfg.API.TapsPerCaller {
				ctx, cancel := context.WithCancel(as(who))
				defer cancel()
				if _, err := w.Tap(ctx, req); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			// Nobody takes all of them.
			wants(t, try(who, req), codes.ResourceExhausted, status.LimitExceeded)
			if k == 0 {
				if err := try(operator, req); grpcstatus.Code(err) != codes.DeadlineExceeded {
					t.Errorf("another: %v", err)
				}
			}
		}
		wants(t, try(operator, req), codes.ResourceExhausted, status.LimitExceeded)
	})
}
