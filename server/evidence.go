package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/admin"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/report"
	"github.com/sightlinedev/sightline/server/xds"
	"github.com/sightlinedev/sightline/views"
)

// newReports wires the way of evidence in: streams of the API port, and what
// comes by LRS, to the shards; rows and verdicts back to the probers.
func (s *Server) newReports() *report.Service {
	l := s.cfg.Limits.Reports
	if s.cfg.Mode == Dev {
		l.ProberGrace = time.Millisecond // nobody waits for a second prober there
	}
	epoch, _ := s.publisher.Reserved()
	return report.New(report.Config{
		Lookup: s.writer.Lookup, Submit: s.shards.Submit, SubmitOutcomes: s.shards.SubmitOutcomes, Policy: s.Policy,
		Proved: s.proved, Member: s.isMember,
		Epoch: epoch, AnyAddress: s.cfg.Mode == Dev, Limits: l, Events: s.reportEvents(),
	})
}

// isMember looks an instance up in the views. It never waits.
func (s *Server) isMember(n registry.Name, uid registry.UID) bool {
	v := s.Snapshot().Get(n)
	if v == nil {
		return false
	}
	_, is := slices.BinarySearchFunc(v.Members, uid, func(m *views.Member, uid registry.UID) int { return cmp.Compare(m.UID, uid) })
	return is
}

// proved queues an address that a prober has proved. When too many wait it is
// dropped: the prober dials back again until it is told that the row is proved.
func (s *Server) proved(uid registry.UID) {
	select {
	case s.proofs <- uid:
	default:
	}
}

// proofsWaiting is how many proved addresses may wait for the disk.
const proofsWaiting = 1024

// writeProofs makes proved addresses desired state, until ctx ends.
func (s *Server) writeProofs(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case uid := <-s.proofs:
			if err := s.writeProof(ctx, uid); err != nil && ctx.Err() == nil {
				s.report.notProved(uid, err)
			}
		}
	}
}

func (s *Server) writeProof(ctx context.Context, uid registry.UID) error {
	held, ok := s.writer.Lookup(uid)
	if !ok || held.Proof != registry.Unproved {
		return nil // it is gone, or two probers met it
	}
	row := *held
	row.Proof = registry.ByDialBack
	_, err := s.writer.Write(ctx, desired.Request{Mutations: []registry.Mutation{
		registry.PutInstance{Row: row, Mode: registry.Update, Expect: held.Revision},
	}})
	var refused *registry.ItemError
	if errors.As(err, &refused) {
		return nil // it changed meanwhile: it is dialled again
	}
	return err
}

// stance is told what the region's observers make of themselves.
func (s *Server) stance(st *health.Stance) {
	s.reports.Stand(st)
	s.report.metrics.Observers(len(st.Blind), len(st.Dead), st.Braked)
}

// reportEvents adds whoever taps to what the reporter counts.
func (s *Server) reportEvents() report.Events {
	e := s.report.reportEvents()
	e.Sample, e.Outcomes = s.tapSample, s.tapOutcomes
	e.OutOfScope = func(who identity.Principal, n registry.Name, rule string) { s.refused(who, n, "outcomes", rule) }
	return e
}

func (s *Server) tapSample(who identity.Principal, n registry.Name, sample *health.Sample, result report.Result) {
	if !s.taps.Wanted(n) {
		return
	}
	t := admin.Sample{At: sample.At, Name: n, UID: sample.UID, Class: sample.Class, Reporter: who, Count: 1}
	switch {
	case sample.Class == registry.ClassProbe:
		t.Detail, t.Zone = sample.Result.String(), sample.Prober.Zone
	case len(sample.Degraded) > 0:
		t.Detail = sample.Status.String() + ", degraded: " + strings.Join(sample.Degraded, ", ")
	default:
		t.Detail = sample.Status.String()
	}
	if result != report.Accepted {
		t.Refused = result.String()
	}
	s.taps.Offer(t)
}

func (s *Server) tapOutcomes(who identity.Principal, n registry.Name, o *health.Outcomes, result report.Result) {
	if !s.taps.Wanted(n) {
		return
	}
	all := make([]admin.Sample, 0, len(o.Entries))
	for i := range o.Entries {
		e := &o.Entries[i]
		t := admin.Sample{At: o.At, Name: n, UID: e.UID, Class: registry.ClassCallers, Reporter: who, Detail: describeOutcome(e), Count: e.Issued,
			Calls: &admin.Calls{Outcome: *e, Interval: o.Interval, Kind: o.Kind}}
		if result != report.Accepted {
			t.Refused = result.String()
		}
		all = append(all, t)
	}
	s.taps.Offer(all...)
}

// loads takes a load report of a stock client the way of all callers' outcomes.
func (s *Server) loads(r xds.LoadReport) {
	o, _ := s.loadRows.Get().(*health.Outcomes)
	if o == nil {
		o = &health.Outcomes{}
	}
	o.Kind, o.Interval, o.Entries = health.FromGRPC, r.Interval, o.Entries[:0]
	if r.Kind == xds.EnvoyLoad {
		o.Kind = health.FromEnvoy
	}
	for _, e := range r.Entries {
		o.Entries = append(o.Entries, health.Outcome{UID: e.UID, Issued: e.Issued, OK: e.OK, Failed: e.Failed,
			InProgress: e.InProgress, Weight: e.Weight})
	}
	s.reports.SubmitOutcomes(r.Who, r.Service, o)
	s.loadRows.Put(o)
}

// loadDropped counts entries of a load report that never became outcomes.
func (s *Server) loadDropped(who identity.Principal, n views.Name, why xds.LoadDrop, entries int) {
	result := report.Unattributed
	switch why {
	case xds.DropInterval:
		result = report.Stale
	case xds.DropScope:
		result = report.OutOfScope
		s.refused(who, n, "lrs", "outside the caller's scope")
	}
	s.report.metrics.Reports(classNames[registry.ClassCallers], result.String(), entries)
	s.report.metrics.LoadDropped(why.String(), entries)
	if s.taps.Wanted(n) {
		s.taps.Offer(admin.Sample{At: time.Now(), Name: n, Class: registry.ClassCallers, Reporter: who,
			Detail: "entries of a load report", Count: uint32(entries), Refused: why.String()})
	}
}

// describeOutcome says what a caller counted, for whoever taps.
func describeOutcome(o *health.Outcome) string {
	text := fmt.Sprintf("issued %d, ok %d, failed %d", o.Issued, o.OK, o.Failed)
	for _, more := range [...]struct {
		what string
		n    uint32
	}{{"refused", o.Refused}, {"in progress", o.InProgress}} {
		if more.n > 0 {
			text += fmt.Sprintf(", %s %d", more.what, more.n)
		}
	}
	return text
}
