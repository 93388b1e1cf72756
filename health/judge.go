package health

import (
	"slices"
	"time"
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
		e.stepLeases(now)
		e.judgeTouched(now, &o)
	}
	o.Transitions = append(e.transitions, o.Transitions...)
	o.Incidents = e.incidents
	e.transitions, e.incidents = nil, nil
	o.Next = e.queue.next()
	return o
}

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
	if cap(batch) <= 64 && len(e.touched) == 0 {
		e.touched = batch[:0] // the usual batch is small: keep its space
	}
}

func (e *Evaluator) judge(i *instance, now time.Time, o *Judgement) {
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
	e.record(i, f, now, o)
}

// record compares the finding with the last verdict and notes what changed.
func (e *Evaluator) record(i *instance, f finding, now time.Time, o *Judgement) {
	last := i.verdict
	v := Verdict{
		UID: last.UID, State: f.state, Member: i.member, Draining: i.draining(),
		Weight: i.baseWeight(), Confirmed: f.confirmed, Rule: f.rule, OutBy: i.outs.first(),
		Supplied: i.profile.Supplies, Fresh: e.fresh(i, now),
		Detail: last.Detail, Since: last.Since,
	}
	if i.handed && v == last && f.note == i.note {
		return
	}
	if f.note != noteBefore && (f.note != i.note || v.Fresh != last.Fresh || v.Supplied != last.Supplied) {
		v.Detail = e.describe(i, f.note, v.Fresh)
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
	i.verdict, i.note, i.handed = v, f.note, true
	o.Changed = append(o.Changed, v)
}

// next is when the instance must be judged again without new input.
func (e *Evaluator) next(i *instance, now time.Time) time.Time {
	s := sooner{now: now}
	for _, c := range classes {
		if i.profile.Supplies.Has(c) {
			s.add(e.silentAt(i, c))
		}
	}
	for _, m := range i.outs {
		s.add(e.returnAt(i, m.rule, now))
	}
	if !i.member && i.profile.Supplies != 0 {
		s.add(e.admitsAt(i))
	}
	if term := i.row.Lease; term > 0 {
		s.add(i.lease.ends(term))
		s.add(i.lease.verdictAt(term))
		if i.lease.suspect() {
			// Until the rest is seen to renew, look once in a while.
			s.add(laterOf(i.standsAt(), now.Add(term/5)))
		}
		if at := i.lease.ageOutAt(i.draining()); !at.IsZero() {
			s.add(laterOf(at, i.askAt))
		}
	}
	return s.at
}
