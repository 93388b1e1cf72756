package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// replayedMost bounds a trial: so many minutes of one instance are replayed at
// most, the newest ones.
const replayedMost = 500_000

// ErrNoService is returned for a service that no shard holds.
var ErrNoService = errors.New("no such service is evaluated")

// Trial is a draft contract held against recorded minutes, beside the contract in
// effect on the same minutes.
type Trial struct {
	// From and To bound the minutes replayed; both zero: nothing is recorded.
	From, To  time.Time
	Minutes   int // replayed
	Missing   int // minutes of the span that no record is left of
	Instances int // that the records speak of
	// Changes are the spans within which the two verdicts differ, by time: in the
	// state, or in whether the instance is admitted.
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
	Detail string // the numbers
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
	LiveToo          bool // it is tripped by the contract in effect too
}

// TestContract replays what is recorded of a service since so long ago, by its
// contract in effect and by the draft, and tells where they differ. Nothing is
// changed by it. It takes as long as there is to replay, on the caller's
// goroutine. The error is ErrNoService, ErrStopped, ctx's, or the store's.
func (s *Set) TestContract(ctx context.Context, n registry.Name, draft registry.Contract, since time.Duration) (Trial, error) {
	type governed struct {
		contract  registry.Contract
		instances int
	}
	svc, err := ask(ctx, s, n, func(svc *service) *governed {
		if svc == nil {
			return nil
		}
		return &governed{svc.contracts.effective(), svc.evaluator.Len()}
	})
	switch {
	case err != nil:
		return Trial{}, err
	case svc == nil:
		return Trial{}, fmt.Errorf("%w: %s", ErrNoService, n)
	}
	t := newTrial(n, svc.contract, draft.WithDefaults())
	if most := time.Duration(replayedMost/max(svc.instances, 1)) * time.Minute; since > most {
		since = most
		t.out.Caveats = append(t.out.Caveats, fmt.Sprintf("of so many instances no more than %s are replayed", most))
	}
	if s.cfg.Minutes == nil {
		return t.finish(), nil
	}
	now := time.Now()
	unread := 0
	damaged, err := s.cfg.Minutes(ctx, n, now.Add(-since), now, func(_ time.Time, record []byte) bool {
		m, readErr := health.ReadMinute(record)
		if readErr != nil {
			unread++
			return true
		}
		t.replay(&m)
		return ctx.Err() == nil
	})
	if err = errors.Join(err, ctx.Err()); err != nil {
		return Trial{}, err
	}
	if unread += damaged; unread > 0 {
		t.out.Caveats = append(t.out.Caveats, fmt.Sprintf("%d recorded minutes cannot be read", unread))
	}
	return t.finish(), nil
}

// trial is a Trial while it is replayed.
type trial struct {
	out         Trial
	live, draft *replaying
	seen        map[registry.UID]bool
	open        map[registry.UID]*TrialChange
	rows        map[registry.UID]registry.InstanceChange
	name        registry.Name
}

// replaying is one contract's side of a trial.
type replaying struct {
	contract  registry.Contract
	evaluator *health.Evaluator
	assembler *views.Assembler
	verdicts  map[registry.UID]health.Verdict
	out       int // members that are
	members   int
	tripped   []string
	assemble  time.Time
}

func newTrial(n registry.Name, live, draft registry.Contract) *trial {
	t := &trial{
		name: n, seen: map[registry.UID]bool{}, open: map[registry.UID]*TrialChange{},
		live: &replaying{contract: live}, draft: &replaying{contract: draft},
	}
	t.out.Caveats = []string{
		"minutes keep counts and not their order: a time is exact to about a minute",
		"leases, overrides, the region's brake and blind probers are not replayed",
	}
	if live.Probe != draft.Probe {
		t.out.Caveats = append(t.out.Caveats, "what was recorded was probed as the contract in effect says, not as the draft does")
	}
	return t
}

// replay takes one recorded minute on both sides.
func (t *trial) replay(m *health.Minute) {
	end := m.Start.Add(m.Length)
	switch {
	case t.out.Minutes == 0:
		t.out.From = m.Start
		t.begin(m)
	case m.Start.Sub(t.out.To) > time.Minute/2:
		// Nobody knows what was heard meanwhile: silence of ours, not of theirs.
		t.out.Missing += int(m.Start.Sub(t.out.To).Round(time.Minute) / time.Minute)
		t.live.evaluator.Gap(m.Start)
		t.draft.evaluator.Gap(m.Start)
	}
	t.out.Minutes++
	t.out.To = end
	t.take(m)
	m.Replay(func(now time.Time, samples []health.Sample, outcomes []health.Outcomes) {
		t.step(now, nil, func(side *replaying) {
			side.evaluator.Observe(now, samples)
			for k := range outcomes {
				side.evaluator.ObserveOutcomes(now, &outcomes[k])
			}
		})
	})
}

// step lets something happen on both sides, judges them, and compares.
func (t *trial) step(now time.Time, c *registry.Change, happen func(*replaying)) {
	changed := map[registry.UID]bool{}
	var guards []views.Incident
	for _, side := range [...]*replaying{t.live, t.draft} {
		happen(side)
		if c != nil {
			own := *c
			own.Contract = side.contract
			side.forget(&own, changed)
			guards = side.judge(now, &own, changed)
		} else {
			guards = side.judge(now, nil, changed)
		}
	}
	t.compare(now, changed)
	t.note(now, guards) // the draft's
}

// begin makes both sides of the instances of the first minute: whoever was a
// member is one.
func (t *trial) begin(m *health.Minute) {
	t.rows = map[registry.UID]registry.InstanceChange{}
	first := registry.Change{Name: t.name, Service: t.service()}
	for k := range m.Instances {
		if i := &m.Instances[k]; i.Member {
			first.Instances = append(first.Instances, t.row(m, i))
		}
	}
	t.step(m.Start, &first, func(side *replaying) {
		side.evaluator = health.New(t.name, m.Start, health.Memory{})
		side.assembler = views.NewAssembler(t.name, views.Memory{})
		side.verdicts = map[registry.UID]health.Verdict{}
		c := first
		c.Contract = side.contract
		side.evaluator.Load(c)
	})
}

func (t *trial) service() *registry.Service {
	return &registry.Service{Name: t.name, Ports: []registry.Port{{Name: "replayed", Number: 1}}}
}

// row is an instance as the minute describes it. It has no lease: whether that
// lapsed is not a contract's to decide.
func (t *trial) row(m *health.Minute, i *health.InstanceMinute) registry.InstanceChange {
	row := registry.InstanceChange{
		UID: i.UID, Profile: registry.Profile{Supplies: i.Supplies},
		Row: &registry.Instance{UID: i.UID, Service: t.name, Zone: m.Zones[i.Zone], Weight: 100, Draining: i.Draining, Proof: registry.ByAuthority},
	}
	t.rows[i.UID], t.seen[i.UID] = row, true
	return row
}

// take tells both sides of who came, went or changed since the minute before.
func (t *trial) take(m *health.Minute) {
	c := registry.Change{Name: t.name, Service: t.service()}
	here := map[registry.UID]bool{}
	for k := range m.Instances {
		i := &m.Instances[k]
		here[i.UID] = true
		was, known := t.rows[i.UID]
		row := t.row(m, i)
		if !known || was.Row.Zone != row.Row.Zone || was.Row.Draining != row.Row.Draining || was.Profile != row.Profile {
			c.Instances = append(c.Instances, row)
		}
	}
	for uid := range t.rows {
		if !here[uid] {
			delete(t.rows, uid)
			c.Instances = append(c.Instances, registry.InstanceChange{UID: uid, Removal: registry.RemovedByList})
		}
	}
	if len(c.Instances) == 0 {
		return
	}
	slices.SortFunc(c.Instances, func(a, b registry.InstanceChange) int { return cmp.Compare(a.UID, b.UID) })
	t.step(m.Start, &c, func(side *replaying) { side.evaluator.ApplyRows(m.Start, c) })
}

// forget drops the verdicts on instances that are gone.
func (r *replaying) forget(c *registry.Change, changed map[registry.UID]bool) {
	for _, i := range c.Instances {
		if i.Row == nil {
			r.count(r.verdicts[i.UID], -1)
			delete(r.verdicts, i.UID)
			changed[i.UID] = true
		}
	}
}

// judge judges one side, notes whose verdict changed, and returns the guards that
// tripped.
func (r *replaying) judge(now time.Time, c *registry.Change, changed map[registry.UID]bool) (tripped []views.Incident) {
	o := r.evaluator.Judge(now)
	for _, v := range o.Changed {
		r.count(r.verdicts[v.UID], -1)
		r.count(v, 1)
		r.verdicts[v.UID] = v
		changed[v.UID] = true
	}
	if c == nil && len(o.Changed) == 0 && !due(r.assemble, now) {
		return nil
	}
	var made views.Candidate
	made, r.assemble = r.assembler.Apply(now, views.Input{Change: c, Verdicts: o.Changed})
	r.tripped = made.View.Guard.Zones
	for _, i := range made.Incidents {
		if i.Kind == views.GuardTripped {
			tripped = append(tripped, i)
		}
	}
	return tripped
}

func (r *replaying) count(v health.Verdict, by int) {
	if v.Member {
		r.members += by
		if !v.State.Serving() {
			r.out += by
		}
	}
}

func shown(v health.Verdict) TrialVerdict { return TrialVerdict{v.State, v.Rule, v.Detail} }

// compare opens and closes the spans of those whose verdict changed.
func (t *trial) compare(now time.Time, changed map[registry.UID]bool) {
	uids := make([]registry.UID, 0, len(changed))
	for uid := range changed {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	for _, uid := range uids {
		live, there := t.live.verdicts[uid]
		draft, thereToo := t.draft.verdicts[uid]
		open := t.open[uid]
		differs := there && thereToo && (live.State != draft.State || live.Member != draft.Member)
		if open != nil && (!differs || open.Live.State != live.State || open.Draft.State != draft.State) {
			open.To = now
			t.out.Changes = append(t.out.Changes, *open)
			delete(t.open, uid)
			open = nil
		}
		if open == nil && differs {
			t.open[uid] = &TrialChange{UID: uid, From: now, Live: shown(live), Draft: shown(draft)}
		}
	}
}

// note keeps the worst moment, and the guards that tripped by the draft.
func (t *trial) note(now time.Time, guards []views.Incident) {
	if t.draft.out > t.out.Peak.DraftOut {
		t.out.Peak = TrialPeak{At: now, LiveOut: t.live.out, DraftOut: t.draft.out, Members: t.draft.members}
	}
	for _, g := range guards {
		t.out.Guards = append(t.out.Guards, TrialGuard{
			At: now, Zone: g.Zone, Serving: g.Serving, Members: g.Members, Floor: g.Floor, LiveToo: slices.Contains(t.live.tripped, g.Zone),
		})
	}
}

func (t *trial) finish() Trial {
	for _, open := range t.open {
		t.out.Changes = append(t.out.Changes, *open)
	}
	slices.SortFunc(t.out.Changes, func(a, b TrialChange) int {
		return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.UID, b.UID))
	})
	t.out.Instances = len(t.seen)
	return t.out
}
