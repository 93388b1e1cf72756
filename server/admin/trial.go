package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sightlinedev/sightline/health"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
	"github.com/sightlinedev/sightline/server/status"
)

// Bounds of a contract's trial: how far back it begins by itself and at most,
// and how many changes an answer lists.
const (
	trialSince   = time.Hour
	trialAtMost  = 7 * 24 * time.Hour
	trialChanges = 1000
)

// ContractTrial is a draft contract held against recorded minutes: what
// Config.TestContract returns.
type ContractTrial struct {
	// From and To bound the minutes replayed; both zero: nothing is recorded.
	From, To  time.Time
	Minutes   int // replayed
	Missing   int // minutes of the span that no record is left of
	Instances int // that the records speak of
	// Changes are the spans within which the two verdicts differ, by time.
	Changes []TrialChange
	// Peak is the moment at which most members would have been out; zero: never
	// any.
	Peak   TrialPeak
	Guards []TrialGuard // by time
	// Caveats say what the replay cannot, a sentence each.
	Caveats []string
}

// TrialVerdict is what one contract makes of an instance.
type TrialVerdict struct {
	State  health.State
	Rule   health.Rule
	Detail string
}

// TrialChange is a span within which the verdict on one instance differs.
type TrialChange struct {
	UID         registry.UID
	From        time.Time
	To          time.Time // zero: it still differs at the end of the records
	Live, Draft TrialVerdict
}

// TrialPeak is one moment's members by whether they are out.
type TrialPeak struct {
	At                         time.Time
	LiveOut, DraftOut, Members int
}

// TrialGuard is a time at which the fraction guard would have tripped.
type TrialGuard struct {
	At               time.Time
	Zone             string // empty: judged by the region
	Serving, Members int
	Floor            uint32
	LiveToo          bool // it trips by the contract in effect too
}

// TestContract replays the recorded minutes of a service against a draft.
func (s *Server) TestContract(ctx context.Context, req *adminv1.TestContractRequest) (*adminv1.TestContractResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetName()}
	if svc, serves := s.row(n); !s.mayInspect(who, n, serves) || svc == nil {
		return nil, status.Hidden("service", n.String())
	}
	draft, err := s.draft(n, req)
	if err != nil {
		return nil, err
	}
	since := trialSince
	if req.GetSince() != nil {
		since = req.GetSince().AsDuration()
	}
	if since < time.Minute || since > trialAtMost {
		return nil, status.Field(status.InvalidField, "since", "range", fmt.Sprintf("%s is not between 1m and %s", since, trialAtMost))
	}
	if s.cfg.TestContract == nil {
		return nil, status.Errorf(status.NotOffered, "this server keeps no record of past minutes")
	}
	select {
	case s.trials <- struct{}{}:
		defer func() { <-s.trials }()
	default:
		return nil, status.Limit("API.Trials", fmt.Sprintf("%d contract tests at once", cap(s.trials)))
	}
	trial, err := s.cfg.TestContract(ctx, n, draft, since)
	if err != nil {
		return nil, notRead(err)
	}
	return &adminv1.TestContractResponse{Trial: s.trialOf(&trial)}, nil
}

// draft is the contract of the request as it would be in effect, validated as a
// put of it would be.
func (s *Server) draft(n registry.Name, req *adminv1.TestContractRequest) (registry.Contract, error) {
	if req.GetContract() == nil {
		return registry.Contract{}, status.Field(status.InvalidField, "contract", "required", "give a draft of the contract")
	}
	row, err := wire.ContractFromProto(req.GetContract())
	if err != nil {
		return registry.Contract{}, badDraft(err)
	}
	s.cfg.Read(func(ix *registry.Index) { err = planDraft(ix, n, row) })
	if err != nil {
		return registry.Contract{}, badDraft(err)
	}
	return row.WithDefaults(), nil
}

// planDraft plans the put of a draft that governs the service, and forgets it.
// The row is given the name and the owner that such a put would need.
func planDraft(ix *registry.Index, n registry.Name, row *registry.Contract) error {
	svc, ok := ix.Service(n)
	if !ok {
		return errors.New("the service was deleted meanwhile")
	}
	linked := *svc
	if linked.Contract == "" {
		linked.Contract = n.Service
	}
	row.Name = registry.Name{Namespace: n.Namespace, Service: linked.Contract}
	row.Source, row.Revision = svc.Source, 0
	if held, ok := ix.Contract(row.Name); ok {
		row.Source = held.Source
	}
	o := ix.Begin()
	if _, err := o.PlanAll([]registry.Mutation{registry.PutContract{Row: *row}, registry.PutService{Row: linked}}); err != nil {
		return err.Err
	}
	return nil
}

// badDraft is the status of a draft that a put would refuse.
func badDraft(err error) error {
	var bad registry.Violations
	if !errors.As(err, &bad) {
		return status.Errorf(status.InvalidContract, "contract: %v", err)
	}
	b := status.New(status.InvalidContract, "contract: %s", bad.Error())
	for _, v := range bad {
		b.Field("contract."+wire.Path(v.Field), v.Rule, v.Detail)
	}
	return b.Err()
}

func (s *Server) trialOf(t *ContractTrial) *adminv1.ContractTrial {
	out := &adminv1.ContractTrial{
		FromTime: stamp(t.From), ToTime: stamp(t.To), Minutes: uint32(t.Minutes), MissingMinutes: uint32(t.Missing),
		Instances: uint32(t.Instances), Caveats: t.Caveats,
	}
	listed := t.Changes[:min(len(t.Changes), trialChanges)]
	out.ChangesOmitted = uint32(len(t.Changes) - len(listed))
	labels := s.labels(listed)
	for i := range listed {
		c := &listed[i]
		out.Changes = append(out.Changes, &adminv1.TrialChange{
			Uid: c.UID.String(), Label: labels[c.UID], StartTime: stamp(c.From), EndTime: stamp(c.To),
			Live: stateOf(c.Live.State), LiveRule: c.Live.Rule.String(),
			Draft: stateOf(c.Draft.State), DraftRule: c.Draft.Rule.String(), Detail: c.Draft.Detail,
		})
	}
	if p := t.Peak; p.DraftOut > 0 {
		out.Peak = &adminv1.TrialPeak{Time: stamp(p.At), DraftOut: uint32(p.DraftOut), LiveOut: uint32(p.LiveOut), Members: uint32(p.Members)}
	}
	for _, g := range t.Guards {
		out.Guards = append(out.Guards, &adminv1.TrialGuard{Time: stamp(g.At), Zone: g.Zone, Serving: uint32(g.Serving),
			Members: uint32(g.Members), FloorPercent: g.Floor, LiveToo: g.LiveToo})
	}
	return out
}

func (s *Server) labels(changes []TrialChange) map[registry.UID]string {
	labels := make(map[registry.UID]string)
	s.cfg.Read(func(ix *registry.Index) {
		for i := range changes {
			if row, live := ix.Instance(changes[i].UID); live {
				labels[row.UID] = row.Label
			}
		}
	})
	return labels
}
