package shard

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// The pace of a changed contract (HEALTH.md §9).
const (
	// shadowFor is how long it is judged by beside the one in effect, and zoneFor
	// how long a zone has it before the next one.
	shadowFor = 60 * time.Second
	zoneFor   = 60 * time.Second
	// tripFor is how long a guard must be tripped on one side alone: a fault that
	// both contracts see is seen by one a little sooner.
	tripFor = 10 * time.Second
)

// RolloutState is how far a changed contract is.
type RolloutState uint8

// The states of a rollout. Done is only told of, and never shown.
const (
	RolloutShadow  RolloutState = iota // judged by beside the one in effect, deciding nothing
	RolloutZones                       // in effect in some zones
	RolloutRefused                     // it would trip a guard, or did; the one before is in effect
	RolloutDone                        // in effect
)

var rolloutNames = [...]string{"shadow", "zones", "refused", "done"}

// String is the state's name in logs and metrics.
func (s RolloutState) String() string { return rolloutNames[s] }

// Rollout is a changed contract on its way into effect, for a person.
type Rollout struct {
	State    RolloutState
	Contract registry.Name
	Revision uint64 // of the row
	Since    time.Time
	Next     time.Time // of the next step; zero: none comes by itself
	// Zones are those in which it is in effect, sorted, of ZonesTotal.
	Zones      []string
	ZonesTotal int
	// WouldWithdraw is how many of the Members are out by it and not by the
	// contract before; of a refused one, at that moment.
	WouldWithdraw, Members int
	Detail                 string
}

// contracts are what governs a service. The contract of its newest rows is put
// into effect by steps; until then what is in effect is active. Identities and
// locality do not wait: who may serve is a matter of identity, which a step of
// 60 s would leave open to whoever was just forbidden, and the order of zones
// takes nobody out. Nor do the form for gRPC, which takes nobody out either, and
// a guard that is raised, which only keeps more.
type contracts struct {
	row     registry.Change // newest, without instances
	active  registry.Contract
	rollout *rollout // nil: the newest contract is in effect
}

// rollout is a changed contract that is not in effect, or not everywhere.
type rollout struct {
	wanted registry.Contract
	state  RolloutState
	since  time.Time // of the state
	next   time.Time // of the next step
	zones  []string  // in the order of activation
	done   int       // in how many of them it is in effect

	// What is judged beside, on the same evidence: in the shadow by the wanted
	// contract, in the zones by the one before. Nil: not yet, or refused.
	beside  *health.Evaluator
	mirror  *views.Assembler // of its verdicts
	pending *registry.Change
	view    *views.View
	judgeAt time.Time
	// assemble is when the mirror is due, tripped since when a guard is tripped on
	// the wanted contract's side alone.
	assemble, tripped time.Time

	withdraws, members int // when it was refused
	detail             string
}

// judgesAlike reports whether two contracts judge alike, and the guard lets as
// much go by both.
func judgesAlike(a, b registry.Contract) bool {
	for _, c := range []*registry.Contract{&a, &b} {
		*c = c.WithDefaults()
		c.Name, c.Source, c.Revision, c.Lease, c.Require = registry.Name{}, "", 0, 0, 0
		c.Identities, c.Locality, c.GRPC = nil, registry.Spread, registry.FormPerEndpoint
		c.Dependencies = append([]registry.Dependency{}, c.Dependencies...) // none is one form
	}
	return reflect.DeepEqual(a, b)
}

// atOnce reports whether a contract needs no rollout: it judges like the one in
// effect, and its guard keeps no less.
func atOnce(c, active registry.Contract) bool {
	raised := c.GuardPercent >= active.GuardPercent
	c.GuardPercent = active.GuardPercent
	return raised && judgesAlike(c, active)
}

// effective is the contract in effect where no zone is ahead.
func (k *contracts) effective() registry.Contract {
	c := k.active
	if r := k.rollout; r != nil {
		c.Identities, c.Locality, c.GRPC = r.wanted.Identities, r.wanted.Locality, r.wanted.GRPC
		c.GuardPercent = max(c.GuardPercent, r.wanted.GuardPercent)
	}
	return c
}

// zonesAhead reports whether the newest contract is in effect somewhere: then
// everybody was told of it where it is, and of the one before elsewhere.
func (k *contracts) zonesAhead() bool { return k.rollout != nil && k.rollout.done > 0 }

// resume takes the rows of a start, and what a checkpoint remembers: a contract
// that was on its way is so again, from its shadow on, and one that was refused
// stays refused. Without a memory the newest contract governs.
func (s *service) resume(now time.Time, c registry.Change, m *storedContract) registry.Change {
	k := &s.contracts
	k.take(c)
	k.active = c.Contract
	if m != nil && c.Service != nil && !atOnce(c.Contract, m.Active) {
		k.active = m.Active
		k.rollout = m.rollout(now, c.Contract)
	}
	c.Contract = k.effective()
	return c
}

func (k *contracts) take(c registry.Change) {
	c.Instances = nil
	k.row = c
}

// govern takes the rows of a change and returns it with the contract that is in
// effect. The contract of a service that is new is in effect at once.
func (s *service) govern(now time.Time, c registry.Change) registry.Change {
	k := &s.contracts
	isNew := k.row.Service == nil
	k.take(c)
	switch {
	case c.Service == nil:
		*k = contracts{}
	case isNew:
		k.active = c.Contract
		s.evaluator.SetContract(now, c.Contract, "")
	default:
		s.want(now, c.Contract)
	}
	s.evaluator.ApplyRows(now, c)
	if r := k.rollout; r != nil && r.beside != nil {
		r.beside.ApplyRows(now, c)
		r.add(c, k.effective())
	}
	if c.Service != nil {
		c.Contract = k.effective()
	}
	return c
}

// want takes the newest contract of a service that has one in effect.
func (s *service) want(now time.Time, c registry.Contract) {
	k := &s.contracts
	switch r := k.rollout; {
	case atOnce(c, k.active):
		s.cancel(now)
		k.active = c
	case r != nil && judgesAlike(c, r.wanted):
		r.wanted = c
	case !s.observed():
		s.cancel(now)
		k.active = c
		s.evaluator.SetContract(now, c, "")
	default:
		s.cancel(now)
		k.rollout = &rollout{wanted: c, since: now, next: now.Add(shadowFor)}
		s.rolled(now, k.rollout)
	}
}

// observed reports whether there is a member whose verdict a contract decides.
func (s *service) observed() bool {
	return slices.ContainsFunc(s.evaluator.Verdicts(), func(v health.Verdict) bool { return v.Member && v.Supplied != 0 })
}

// cancel ends a rollout whose contract is no longer wanted.
func (s *service) cancel(now time.Time) {
	if s.contracts.rollout == nil {
		return
	}
	s.undo(now)
	s.contracts.rollout = nil
	s.save(now)
}

// undo brings the contract before back into effect everywhere. Whom the other
// one took out returns as its rule says; until then the guard keeps what it
// tripped for.
func (s *service) undo(now time.Time) {
	k := &s.contracts
	r := k.rollout
	if r == nil {
		return
	}
	if r.done > 0 {
		r.done = 0
		s.evaluator.SetContract(now, k.active, "")
		s.tellContract(k.effective(), "")
	}
	r.beside, r.mirror, r.view, r.pending = nil, nil, nil, nil
}

// roll takes a rollout further: what is beside is judged, and its step taken
// where its time has come. It comes after the service's own judgement, so that
// both sides have seen the same.
func (s *service) roll(now time.Time) {
	r := s.contracts.rollout
	if r == nil || r.state == RolloutRefused || s.deleted {
		return
	}
	if r.beside == nil {
		s.startBeside(now, r)
	}
	r.judge(now)
	zones := r.alone(s.assembler.Candidate().View)
	switch {
	case s.braked():
		// Neither side shows whom it would withdraw: nothing can be told now.
		r.tripped = time.Time{}
	case len(zones) == 0:
		r.tripped = time.Time{}
		if due(r.next, now) {
			s.advance(now, r)
		}
	case r.tripped.IsZero():
		r.tripped = now
	case now.Sub(r.tripped) >= tripFor:
		s.refuse(now, r, zones)
	}
	s.judgeAt = earliest(s.judgeAt, r.wakeAt(s.braked()))
}

// startBeside begins to judge by the contract that does not decide.
func (s *service) startBeside(now time.Time, r *rollout) {
	k := &s.contracts
	c := r.wanted
	if r.state == RolloutZones {
		c = k.active
	}
	r.beside = s.evaluator.Shadow(now, c)
	r.mirror = views.NewAssembler(s.name, s.assembler.Memory())
	r.view, r.pending, r.judgeAt, r.assemble, r.tripped = nil, nil, time.Time{}, time.Time{}, time.Time{}
	row := k.row
	row.Instances = r.beside.Rows()
	r.add(row, k.effective())
	r.zones = zonesOf(row.Instances)
}

// add notes a change for the mirror. Its guard is the stricter one: a contract
// must not pass because it lowers the guard that it would trip.
func (r *rollout) add(c registry.Change, effective registry.Contract) {
	c.Contract = effective
	if r.pending != nil {
		c.Instances = append(slices.Clone(r.pending.Instances), c.Instances...)
	}
	r.pending = &c
}

// zonesOf are the zones that there are instances in, by name. Those without a zone
// come last: their step is the one that puts a contract into effect everywhere.
func zonesOf(rows []registry.InstanceChange) (zones []string) {
	nowhere := false
	for _, i := range rows {
		switch zone := i.Row.Zone; {
		case zone == "":
			nowhere = true
		case !slices.Contains(zones, zone):
			zones = append(zones, zone)
		}
	}
	slices.Sort(zones)
	if nowhere {
		zones = append(zones, "")
	}
	return zones
}

// judge judges what is beside.
func (r *rollout) judge(now time.Time) {
	o := r.beside.Judge(now)
	r.judgeAt = o.Next
	if r.pending == nil && len(o.Changed) == 0 && !due(r.assemble, now) {
		return
	}
	var c views.Candidate
	c, r.assemble = r.mirror.Apply(now, views.Input{Change: r.pending, Verdicts: o.Changed})
	r.pending, r.view = nil, c.View
	if lift(now, r.beside, r.mirror) {
		r.judgeAt = now
	}
}

// alone are the zones whose guard is tripped by the wanted contract and not by
// the one before.
func (r *rollout) alone(live *views.View) (zones []string) {
	if live == nil || r.view == nil {
		return nil
	}
	wanted, before := r.view.Guard.Zones, live.Guard.Zones
	if r.state == RolloutZones {
		wanted, before = before, wanted
	}
	for _, z := range wanted {
		if !slices.Contains(before, z) {
			zones = append(zones, z)
		}
	}
	return zones
}

// count is how many members are out by the wanted contract and not by the other.
func (r *rollout) count(live *health.Evaluator) (withdraws, members int) {
	if r.beside == nil {
		return r.withdraws, r.members
	}
	other := map[registry.UID]bool{}
	for _, v := range r.beside.Verdicts() {
		other[v.UID] = !v.State.Serving() || !v.Member
	}
	for _, v := range live.Verdicts() {
		if !v.Member {
			continue
		}
		members++
		isOut, otherOut := !v.State.Serving(), other[v.UID]
		if r.state == RolloutZones {
			isOut, otherOut = otherOut, isOut
		}
		if otherOut && !isOut {
			withdraws++
		}
	}
	return withdraws, members
}

// advance takes the next step: out of the shadow into the first zone, on to the
// next one, and after the last to its end.
func (s *service) advance(now time.Time, r *rollout) {
	if r.state == RolloutShadow {
		r.state, r.since = RolloutZones, now
		s.startBeside(now, r)
	}
	if r.done == len(r.zones) {
		s.finish(now, r)
		return
	}
	zone := ""
	if r.done++; r.done < len(r.zones) {
		zone = r.zones[r.done-1]
	}
	s.evaluator.SetContract(now, r.wanted, zone)
	s.tellContract(r.wanted, zone)
	r.next = now.Add(zoneFor)
	s.judgeAt = now
	s.rolled(now, r)
}

// finish ends a rollout: the contract is in effect. Where all instances went
// before the first zone had its turn, nothing was told of it yet.
func (s *service) finish(now time.Time, r *rollout) {
	k := &s.contracts
	k.active, k.rollout = r.wanted, nil
	if r.done == 0 {
		s.evaluator.SetContract(now, r.wanted, "")
		s.tellContract(k.effective(), "")
	}
	s.reassemble(now)
	s.tellRollout(Rollout{State: RolloutDone, Contract: r.wanted.Name, Revision: r.wanted.Revision, Since: now})
	s.save(now)
}

// refuse leaves the contract before in effect, or brings it back.
func (s *service) refuse(now time.Time, r *rollout, zones []string) {
	r.withdraws, r.members = r.count(s.evaluator)
	where := "of the region"
	if z := zones[0]; z != "" {
		where = "of zone " + z
	}
	if r.state == RolloutShadow {
		r.detail = fmt.Sprintf("would withdraw %d of %d: the guard %s would trip", r.withdraws, r.members, where)
	} else {
		r.detail = fmt.Sprintf("withdrew %d of %d where it was in effect: the guard %s tripped, and the contract before is back", r.withdraws, r.members, where)
	}
	s.undo(now)
	r.state, r.since, r.next = RolloutRefused, now, time.Time{}
	s.judgeAt = now
	s.rolled(now, r)
}

// reassemble makes the assembler take the contract that is in effect now.
func (s *service) reassemble(now time.Time) {
	if s.pending == nil {
		row := s.contracts.row
		s.pending = &row
	}
	s.pending.Contract = s.contracts.effective()
	s.judgeAt = now
}

// wakeAt is when the rollout has to be looked at again.
func (r *rollout) wakeAt(braked bool) time.Time {
	at := earliest(r.judgeAt, r.assemble)
	switch {
	case braked: // its end is told
		return at
	case r.tripped.IsZero():
		return earliest(at, r.next)
	}
	return earliest(at, r.tripped.Add(tripFor))
}

// braked reports whether the region's brake holds withdrawals back.
func (s *service) braked() bool { return s.shard.stance != nil && s.shard.stance.Braked }

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// rolled tells of a step, and saves at once what the step depends on: the next
// checkpoint may never come.
func (s *service) rolled(now time.Time, r *rollout) {
	s.tellRollout(r.describe(s.evaluator))
	s.save(now)
}

func (s *service) tellRollout(r Rollout) {
	if f := s.set.cfg.Events.Rollout; f != nil {
		f(s.name, r)
	}
}

func (s *service) tellContract(c registry.Contract, zone string) {
	if f := s.set.cfg.Events.Contract; f != nil {
		f(s.name, c, zone)
	}
}

// describe is what a person is told of the rollout.
func (r *rollout) describe(live *health.Evaluator) Rollout {
	d := Rollout{
		State: r.state, Contract: r.wanted.Name, Revision: r.wanted.Revision, Since: r.since, Next: r.next,
		Zones: slices.Clone(r.zones[:r.done]), ZonesTotal: len(r.zones), Detail: r.detail,
	}
	d.WouldWithdraw, d.Members = r.count(live)
	slices.Sort(d.Zones)
	switch r.state {
	case RolloutShadow:
		d.Detail = fmt.Sprintf("in shadow: would withdraw %d of %d", d.WouldWithdraw, d.Members)
	case RolloutZones:
		d.Detail = fmt.Sprintf("in effect in %d of %d zones: withdrew %d of %d", r.done, len(r.zones), d.WouldWithdraw, d.Members)
	}
	return d
}

// inspectRollout is the rollout, nil where there is none.
func (s *service) inspectRollout() *Rollout {
	if s.contracts.rollout == nil {
		return nil
	}
	d := s.contracts.rollout.describe(s.evaluator)
	return &d
}
