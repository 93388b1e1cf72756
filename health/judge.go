package health

import (
	"slices"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// Judge decides on every instance that input touched or whose time has come,
// and returns what changed and when to judge again.
func (e *Evaluator) Judge(now time.Time) Judgement {
	for i := e.queue.popDue(now); i != nil; i = e.queue.popDue(now) {
		e.touch(i)
	}
	var o Judgement
	e.steadiestKnown = false
	if len(e.touched) > 0 {
		e.callers.settle(now, e.ask.sibling)
		e.stepLeases(now)
		e.judgeTouched(now, &o)
	}
	o.Transitions = append(e.transitions, o.Transitions...)
	o.Incidents = append(e.incidents, o.Incidents...)
	o.Probing = append(e.gone, o.Probing...)
	e.transitions, e.incidents, e.gone = nil, nil, nil
	o.Next = e.queue.next()
	return o
}

// keptBatch is up to how many instances the space of a batch is kept for the
// next: a service of the usual size whole.
const keptBatch = 256

func (e *Evaluator) stepLeases(now time.Time) {
	var fresh map[*instance]bool
	for _, i := range e.touched {
		if i.touched && i.row.Lease > 0 && i.lease.step(now, i.row.Lease) && i.onRenewalPath() {
			if fresh == nil {
				fresh = make(map[*instance]bool)
			}
			fresh[i] = true
		}
	}
	if fresh != nil {
		e.findSuspects(now, fresh)
	}
}

func (e *Evaluator) judgeTouched(now time.Time, o *Judgement) {
	batch := e.touched
	e.touched = nil
	if len(batch) > 1 {
		slices.SortFunc(batch, byUID)
	}
	var aged []*instance
	for _, i := range batch {
		if !i.touched {
			continue // removed after it was touched
		}
		i.touched = false
		e.judge(i, now, o)
		if at := i.lease.ageOutAt(i.draining()); !at.IsZero() && !now.Before(laterOf(at, i.askAt)) {
			aged = append(aged, i)
		}
	}
	e.ageOut(aged, now, o)
	for _, i := range batch {
		if e.instances[i.row.UID] == i {
			e.queue.schedule(i, e.next(i, now))
		}
	}
	if cap(batch) <= keptBatch && len(e.touched) == 0 {
		clear(batch) // whoever is gone by the next time is not to be kept by it
		e.touched = batch[:0]
	}
}

func (e *Evaluator) judge(i *instance, now time.Time, o *Judgement) {
	i.quarantine.over(now)
	e.look(i, now)
	var f finding
	waits, admitted := noNote, i.member
	if !admitted {
		waits, admitted = e.admit(i, now)
	}
	if admitted {
		f = e.decide(i, now)
	} else {
		f = e.unadmitted(waits)
	}
	e.turn(i, f, now, o)
	e.climb(i, now)
	e.recount(i)
	e.record(i, f, now, o)
	e.tellProbers(i, o)
	e.stir(i)
}

// turn sees to what a change between serving and ineligible brings with it: a
// ramp for who comes back, and its count as a flap.
func (e *Evaluator) turn(i *instance, f finding, now time.Time, o *Judgement) {
	was, excused := &i.verdict, i.excused
	i.excused = false
	if !was.Member || !i.member || was.State.Serving() == f.state.Serving() {
		return
	}
	e.callers.moved(i)
	if excused {
		i.quarantine.takeBack()
		if !i.onceFull || i.trial.onCallersWord {
			// It was on its way up: so it is again, and a trial has its end.
			i.trial.runs = i.trial.onCallersWord
			e.startRamp(i, now)
		}
		return
	}
	if f.state.Serving() {
		e.startRamp(i, now)
	} else {
		i.stopRamp()
		i.trial.runs = false
	}
	e.flapped(i, Flap{At: now, Serving: f.state.Serving(), Rule: f.rule}, o)
}

// gist is what a verdict's text says; the text is made anew only when it
// changes, with the numbers of that moment.
type gist struct {
	note       note
	outs       uint16
	fresh, bad registry.ClassSet
	supplied   registry.ClassSet
	primary    registry.ClassSet
	waits      Wait
	names      uint64 // of degraded dependencies
}

func (i *instance) gistOf(n note) gist {
	return gist{
		note: n, outs: i.outs.rules(), fresh: i.seen.fresh, bad: i.seen.bad, supplied: i.profile.Supplies,
		primary: i.seen.primary, waits: i.waits.what, names: i.seen.needs.names,
	}
}

// record compares the finding with the last verdict and notes what changed.
func (e *Evaluator) record(i *instance, f finding, now time.Time, o *Judgement) {
	last := i.verdict
	kept := f.kept
	if kept == 0 {
		kept = 100
	}
	weight, full := i.weight(kept)
	v := Verdict{
		UID: last.UID, State: f.state, Member: i.member, Draining: i.draining(),
		Weight: weight, Full: full, Kept: kept,
		Ramp: i.ramp.percent(), Ramping: i.ramp.runs(), RampHeld: i.ramp.held != notHeld,
		Quarantined: i.quarantine.runs(), Flaps: i.quarantine.count, QuarantineEnds: i.quarantine.until,
		Confirmed: f.state == Ineligible && (i.outs.confirmed() || e.inDeadZone(i)), DeadZone: e.inDeadZone(i),
		Waits: i.waits.what, Rule: f.rule, OutBy: i.outs.first(),
		Supplied: i.profile.Supplies, Fresh: i.seen.fresh, Primary: i.seen.primary,
		Detail: last.Detail, Since: last.Since,
	}
	g := i.gistOf(f.note)
	if i.handed && v == last && g == i.gist {
		return
	}
	if f.note != noteBefore && g != i.gist {
		v.Detail = e.describe(i, f.note)
	}
	if v.State != last.State || v.Rule != last.Rule || v.Member != last.Member {
		v.Since = now
	}
	if v.State != last.State || v.Member != last.Member || v.Draining != last.Draining {
		o.Transitions = append(o.Transitions, Transition{
			UID: v.UID, From: last.State, To: v.State, Member: v.Member, Draining: v.Draining,
			Rule: v.Rule, Detail: v.Detail, At: now,
		})
	}
	changed := !i.handed || v != last
	i.verdict, i.gist, i.handed = v, g, true
	if changed {
		o.Changed = append(o.Changed, v)
	}
}

// tellProbers says how the instance is to be probed, when that changed.
func (e *Evaluator) tellProbers(i *instance, o *Judgement) {
	p := Probing{UID: i.row.UID, Confirming: i.cadence.confirming, Third: i.cadence.third}
	if p == i.probing || i.probing.UID == 0 && !p.Confirming && !p.Third {
		return
	}
	i.probing = p
	o.Probing = append(o.Probing, p)
}

// next is when the instance must be judged again without new input.
func (e *Evaluator) next(i *instance, now time.Time) time.Time {
	s := sooner{now: now}
	for _, c := range classes {
		if i.profile.Supplies.Has(c) {
			s.add(e.silentAt(i, c))
		}
	}
	e.nextOfEvidence(i, &s)
	for k := range i.outs {
		s.add(e.returnAt(i, &i.outs[k], now))
	}
	s.add(e.trialAt(i))
	if i.ramp.runs() {
		s.add(i.ramp.at)
		due := i.ramp.next(i.terms)
		s.add(due)
		s.add(e.trialWaitsUntil(i, due))
	}
	s.add(i.quarantine.until)
	if i.waits.what != NoWait {
		s.add(now.Add(lookAgain))
	}
	if !i.member {
		s.add(i.retry.again())
		if i.profile.Supplies != 0 {
			s.add(e.admitsAt(i))
		}
	}
	e.nextOfLease(i, &s)
	return s.at
}

// lookAgain is how often a withdrawal that waits is looked at.
const lookAgain = time.Second

// nextOfEvidence adds what changes in how evidence is read.
func (e *Evaluator) nextOfEvidence(i *instance, s *sooner) {
	if i.calm() {
		s.add(i.readAt.Add(calmLook))
	}
	if at := i.primacy.enoughAt; !at.IsZero() && !i.primacy.callers {
		s.add(at.Add(primacyAfter))
	}
	if at := i.primacy.fewAt; !at.IsZero() && i.primacy.callers {
		s.add(at.Add(primacyAfter))
	}
	if !i.supplies(registry.ClassProbe) {
		return
	}
	s.add(i.seen.probe.next)
	s.add(i.cadence.fullUntil)
	s.add(i.cadence.strictAt(i.terms))
	for _, at := range [...]time.Time{i.seen.probe.disagree, i.cadence.aloneAt} {
		if !at.IsZero() && !i.cadence.third {
			s.add(at.Add(thirdAfter))
		}
	}
	if at := i.cadence.agreeAt; !at.IsZero() {
		s.add(at.Add(thirdAfter))
	}
}

func (e *Evaluator) nextOfLease(i *instance, s *sooner) {
	term := i.row.Lease
	if term <= 0 {
		return
	}
	s.add(i.lease.ends(term))
	s.add(i.lease.verdictAt(term))
	if i.lease.suspect() {
		// Until the rest is seen to renew, look once in a while.
		s.add(laterOf(i.standsAt(), s.now.Add(term/5)))
	}
	if at := i.lease.ageOutAt(i.draining()); !at.IsZero() {
		s.add(laterOf(at, i.askAt))
	}
}
