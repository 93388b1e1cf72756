package admin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/health"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
)

func draftOf(change func(*registryv1.Contract)) *adminv1.TestContractRequest {
	c := &registryv1.Contract{}
	if change != nil {
		change(c)
	}
	return &adminv1.TestContractRequest{Namespace: "shop", Name: "checkout", Contract: c}
}

// TestTrial hands the draft on as it would be in effect, and shows what the
// replay found.
func TestTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		u := w.put(checkoutName, checkout, "10.0.0.1")
		from := time.Now().Add(-time.Hour)
		var given registry.Contract
		w.trial = func(_ context.Context, n registry.Name, draft registry.Contract, since time.Duration) (ContractTrial, error) {
			if n != checkoutName || since != time.Hour {
				t.Errorf("asked for %v since %s", n, since)
			}
			given = draft
			trial := ContractTrial{From: from, To: from.Add(time.Hour), Minutes: 58, Missing: 2, Instances: 1,
				Peak:   TrialPeak{At: from, DraftOut: 1, Members: 1},
				Guards: []TrialGuard{{At: from, Zone: "a", Members: 1, Floor: 50}}, Caveats: []string{"minutes hide seconds"}}
			for k := range trialChanges + 5 {
				trial.Changes = append(trial.Changes, TrialChange{UID: u[0], From: from.Add(time.Duration(k)),
					Live: TrialVerdict{State: health.Eligible, Rule: health.R7}, Draft: TrialVerdict{health.Ineligible, health.R5, "probe 0.30 > 0.20"}})
			}
			return trial, nil
		}
		out := 0.2
		resp, err := w.TestContract(as(operator), draftOf(func(c *registryv1.Contract) { c.Probes = &registryv1.Score{Out: &out} }))
		if err != nil {
			t.Fatal(err)
		}
		if given.ProbeOut != 0.2 || given.CallersOut != 0.20 || given.Lease != 25*time.Second {
			t.Errorf("the draft was replayed as %+v", given)
		}
		got := resp.GetTrial()
		if got.GetMinutes() != 58 || got.GetMissingMinutes() != 2 || len(got.GetChanges()) != trialChanges || got.GetChangesOmitted() != 5 ||
			got.GetPeak().GetDraftOut() != 1 || len(got.GetGuards()) != 1 || got.GetGuards()[0].GetZone() != "a" || len(got.GetCaveats()) != 1 {
			t.Errorf("the trial %v", got)
		}
		c := got.GetChanges()[0]
		if c.GetLabel() != "a" || c.GetEndTime() != nil || c.GetLive() != viewv1.State_STATE_ELIGIBLE || c.GetDraft() != viewv1.State_STATE_INELIGIBLE ||
			c.GetDraftRule() != "R5" || c.GetDetail() != "probe 0.30 > 0.20" {
			t.Errorf("a change %v", c)
		}
	})
}

// TestTrialRefusesWhatAPutWould: the same rules, by field, and nothing is kept.
func TestTrialRefusesWhatAPutWould(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(checkoutName, checkout, "10.0.0.1")
		w.put(ledgerName, ledger, "10.1.0.1")
		w.trial = func(context.Context, registry.Name, registry.Contract, time.Duration) (ContractTrial, error) {
			return ContractTrial{}, errors.New("the disk hums")
		}
		for _, c := range []struct {
			change func(*registryv1.Contract)
			says   string
		}{
			{func(c *registryv1.Contract) { c.Lease = durationpb.New(time.Second) }, "lease"},
			{func(c *registryv1.Contract) {
				c.Require = []registryv1.EvidenceClass{registryv1.EvidenceClass_EVIDENCE_CLASS_PROBE}
			}, "require"},
			{func(c *registryv1.Contract) {
				c.Dependencies = []*registryv1.Dependency{{Name: "db", Shared: true, Authority: registryv1.DependencyAuthority_DEPENDENCY_AUTHORITY_UNREADINESS}}
			}, "dependencies"},
		} {
			_, err := w.TestContract(as(operator), draftOf(c.change))
			wants(t, err, codes.InvalidArgument, status.InvalidContract)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v does not name %s", err, c.says)
			}
		}
		_, err := w.TestContract(as(operator), draftOf(nil))
		wants(t, err, codes.Unavailable, status.StoreUnavailable)
		for _, since := range []time.Duration{time.Second, 8 * 24 * time.Hour} {
			req := draftOf(nil)
			req.Since = durationpb.New(since)
			_, err := w.TestContract(as(operator), req)
			wants(t, err, codes.InvalidArgument, status.InvalidField)
		}
		_, err = w.TestContract(as(operator), &adminv1.TestContractRequest{Namespace: "shop", Name: "checkout"})
		wants(t, err, codes.InvalidArgument, status.InvalidField)
		req := draftOf(nil)
		req.Namespace, req.Name = "bank", "ledger"
		for _, who := range []string{checkout, reader, stranger} {
			_, err := w.TestContract(as(who), req)
			wants(t, err, codes.NotFound, status.NotFound)
		}
		w.writer.Read(func(ix *registry.Index) {
			for c := range ix.Contracts() {
				t.Errorf("a trial left %v behind", c.Name)
			}
		})
	})
}

// TestTrialsAreFew: a replay costs, so only some run at once.
func TestTrialsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(checkoutName, checkout, "10.0.0.1")
		goOn := make(chan struct{})
		w.trial = func(context.Context, registry.Name, registry.Contract, time.Duration) (ContractTrial, error) {
			<-goOn
			return ContractTrial{}, nil
		}
		results := make(chan error, w.cfg.API.Trials)
		for range w.cfg.API.Trials {
			go func() {
				_, err := w.TestContract(as(operator), draftOf(nil))
				results <- err
			}()
		}
		synctest.Wait()
		_, err := w.TestContract(as(operator), draftOf(nil))
		wants(t, err, codes.ResourceExhausted, status.LimitExceeded)
		close(goOn)
		for range w.cfg.API.Trials {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
}
