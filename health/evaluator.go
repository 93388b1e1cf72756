package health

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// Evaluator judges the instances of one service. It is not safe for concurrent
// use: the service's shard owns it.
//
// Input (Load, Apply, Renew, Observe, Gap) is only recorded; Judge decides, and
// looks only at the instances that input touched or whose time has come. What
// it decides depends on the input since the last Judge, not on its order.
type Evaluator struct {
	// Fixed after New.
	name  registry.Name
	start time.Time
	ask   asked

	terms     *terms            // of the contract that is in effect everywhere
	zoneTerms map[string]*terms // and of another one where that is in effect
	callers   *callers
	stance    *Stance
	tally     tallying // for the region's observers
	minutes   minuteBook
	instances map[registry.UID]*instance
	members   int    // instances with member set
	full      int    // of those, the ones that have once been at full weight
	heldOut   int    // of those, the ones that callers' word alone or a quarantine holds out
	sentBack  int    // others, whom callers sent back to their admission
	memory    Memory // of before the start; consulted by Load

	// What is to be said at the next Judge.
	touched     []*instance
	transitions []Transition
	incidents   []Incident
	gone        []Probing

	queue   queue
	hearing time.Time // of the outcomes that are being recorded
	batch   uint64    // counts the batches of samples
	// steadiest caches restRenewsSince within one Judge.
	steadiest      time.Time
	steadiestKnown bool
}

// New returns the evaluator of a service, without instances. Start is when this
// process began to look: at a start of the server, the moment its desired state
// was loaded. Memory is what a checkpoint remembered; the zero Memory admits
// all that Load brings.
func New(name registry.Name, start time.Time, memory Memory) *Evaluator {
	e := &Evaluator{
		name:      name,
		start:     start,
		terms:     termsOf(registry.Contract{}),
		callers:   newCallers(),
		instances: make(map[registry.UID]*instance),
		memory:    memory,
	}
	e.ask = asked{
		find: func(uid registry.UID) *instance { return e.instances[uid] }, touch: e.heardCallers, sibling: e.sibling,
	}
	return e
}

// asked are the evaluator's functions that the callers' table calls, made once.
type asked struct {
	find    func(registry.UID) *instance
	touch   func(i *instance, bad bool) time.Time
	sibling func(*instance) bool
}

// Name is the service that the evaluator judges.
func (e *Evaluator) Name() registry.Name { return e.name }

// Len is the number of instances, members or not.
func (e *Evaluator) Len() int { return len(e.instances) }

// Load takes the rows that were stored when the server started. What the
// memory does not name as unadmitted is a member, and the remembered verdicts
// stand until evidence or silence speaks (HEALTH.md §1).
func (e *Evaluator) Load(c registry.Change) {
	e.SetContract(e.start, c.Contract, "")
	for k := range c.Instances {
		if c.Instances[k].Row != nil {
			e.load(&c.Instances[k])
		}
	}
}

func (e *Evaluator) load(c *registry.InstanceChange) {
	i := e.insert(c, e.start)
	i.startLimit = e.start.Add(callersSilenceAtStart)
	i.lease.floor = e.start.Add(i.row.Lease + grace(i.row.Lease))
	e.memory.restore(i, e.start)
	e.forgiveSilence(i)
	if i.member {
		e.members++
		if i.onceFull {
			e.full++
		}
	}
	e.recount(i)
}

// Apply takes a registry change: new, changed and removed rows, and the
// contract, at once and everywhere. Removed instances leave with a transition at
// the next Judge.
func (e *Evaluator) Apply(now time.Time, c registry.Change) {
	e.SetContract(now, c.Contract, "")
	e.ApplyRows(now, c)
}

// ApplyRows is Apply without the contract, for whoever rolls contracts out.
func (e *Evaluator) ApplyRows(now time.Time, c registry.Change) {
	for k := range c.Instances {
		if c.Instances[k].Row != nil {
			e.put(&c.Instances[k], now)
		}
	}
	for k := range c.Instances {
		if c.Instances[k].Row == nil {
			e.remove(c.Instances[k].UID, c.Instances[k].Removal, now)
		}
	}
	if c.Service == nil {
		for _, i := range e.sorted() {
			e.remove(i.row.UID, registry.ServiceDeleted, now)
		}
	}
}

// forgiveSilence clears what silence took out where silence takes nobody out
// any more: nothing else could bring back an instance that is never heard of.
func (e *Evaluator) forgiveSilence(i *instance) {
	if !i.silenceTakesOut() {
		i.outs.clear(R6)
	}
}

func (e *Evaluator) put(c *registry.InstanceChange, now time.Time) {
	i := e.instances[c.UID]
	if i == nil {
		e.insert(c, now)
		return
	}
	switch {
	case i.row.Lease == 0 && c.Row.Lease > 0:
		i.lease.grant(now)
	case i.row.Lease > 0 && c.Row.Lease == 0:
		i.lease = lease{}
		i.outs.clear(R1)
	}
	if gained := c.Profile.Supplies &^ i.profile.Supplies; gained != 0 {
		i.gained, i.gainedAt = gained, now
	}
	i.row, i.profile, i.terms = c.Row, c.Profile, e.termsIn(c.Row.Zone)
	i.readAt = time.Time{}
	e.forgiveSilence(i)
	e.touch(i)
}

func (e *Evaluator) insert(c *registry.InstanceChange, now time.Time) *instance {
	i := &instance{row: c.Row, profile: c.Profile, terms: e.termsIn(c.Row.Zone), quietFrom: now}
	i.verdict = Verdict{UID: c.UID, Since: now}
	i.lease.grant(now)
	e.instances[c.UID] = i
	e.touch(i)
	return i
}

func (e *Evaluator) remove(uid registry.UID, why registry.Removal, now time.Time) {
	i := e.instances[uid]
	if i == nil {
		return
	}
	delete(e.instances, uid)
	e.queue.drop(i)
	i.touched = false
	e.callers.drop(i)
	if i.member {
		e.members--
		move(&i.onceFull, false, &e.full)
	}
	move(&i.heldOut, false, &e.heldOut)
	move(&i.sentBack, false, &e.sentBack)
	e.untally(i)
	if i.probing.UID != 0 {
		e.gone = append(e.gone, Probing{UID: uid, Gone: true})
	}
	e.transitions = append(e.transitions, Transition{
		UID: uid, From: i.verdict.State, To: Ineligible, Rule: R1,
		Detail: describeRemoval(why), Removal: why, At: now,
	})
}

// Renew records that the holder of the instance's lease renewed it at at. It
// reports false for an instance that is not there.
func (e *Evaluator) Renew(at time.Time, uid registry.UID) bool {
	i := e.instances[uid]
	if i == nil {
		return false
	}
	i.lease.renew(at)
	// A lease that runs has nothing to be judged: its end is in the queue.
	if i.lease.ended || !i.lease.lapsedAt.IsZero() {
		e.touch(i)
	}
	return true
}

// Observe records evidence and returns the instances that it touched, and how
// many samples were refused: of an unknown instance, without a status or a
// result, of callers, from the future, or older than a minute.
func (e *Evaluator) Observe(now time.Time, batch []Sample) (touched []registry.UID, refused int) {
	e.batch++
	if !slices.IsSortedFunc(batch, compareSamples) {
		batch = slices.SortedFunc(slices.Values(batch), compareSamples)
	}
	for k := range batch {
		s := batch[k]
		i := e.instances[s.UID]
		if i == nil || !s.acceptable(now) {
			refused++
			continue
		}
		if s.At.After(now) {
			s.At = now
		}
		if s.Class == registry.ClassProbe {
			e.hearProbe(i, &s)
		} else {
			i.self.hear(&s, i.quietFrom)
		}
		e.minutes.hear(e.start, i, &s)
		if i.batch != e.batch {
			i.batch = e.batch
			touched = append(touched, s.UID)
		}
		e.touch(i)
	}
	return touched, refused
}

// compareSamples is the order in which samples are heard: of one moment, an
// instance's more cautious word last.
func compareSamples(a, b Sample) int {
	return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Status, b.Status), cmp.Compare(a.UID, b.UID),
		cmp.Compare(a.Class, b.Class), cmp.Compare(a.Prober.Name, b.Prober.Name), cmp.Compare(a.Result, b.Result))
}

// acceptable reports whether the sample can say something of now.
func (s *Sample) acceptable(now time.Time) bool {
	if s.At.After(now.Add(futureSlack)) || s.At.Before(now.Add(-maxSampleAge)) {
		return false
	}
	switch s.Class {
	case registry.ClassSelf:
		return s.Status > NoStatus && s.Status <= NotServing && s.Interval >= 0
	case registry.ClassProbe:
		return s.Prober.Name != "" && s.Result > NoResult && s.Result <= ProbeWrongIdentity
	default: // callers' word comes by ObserveOutcomes
		return false
	}
}

// Stand takes what the region's observers make of themselves. The value is
// kept, and must not change.
func (e *Evaluator) Stand(now time.Time, s *Stance) {
	old := e.stance
	e.stance = s
	if old.sameAs(s) {
		return
	}
	for _, i := range e.instances {
		e.touch(i)
	}
}

// sameAs reports whether two stances mean the same to every instance.
func (s *Stance) sameAs(o *Stance) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.Braked == o.Braked && maps.Equal(s.Blind, o.Blind) && maps.Equal(s.Silenced, o.Silenced) &&
		maps.Equal(s.Dead, o.Dead) && maps.Equal(s.Released, o.Released)
}

// LateAfter is how long after the last tick a tick counts as a gap of our own:
// two ticks and a second (HEALTH.md §6).
func LateAfter(tick time.Duration) time.Duration { return 2*tick + time.Second }

// Gap says that nothing was looked at until now: what would have been heard
// meanwhile is missing, not bad, and every lease gets a full term.
func (e *Evaluator) Gap(now time.Time) {
	e.callers.gap(now)
	for _, i := range e.instances {
		i.quietFrom = now
		i.self.servingSince, i.callersGood = time.Time{}, time.Time{}
		i.probes.gap(now)
		i.primacy.gap()
		if i.row.Lease > 0 {
			i.lease.gap(now, i.row.Lease)
		}
		e.touch(i)
	}
}

func (e *Evaluator) touch(i *instance) {
	if !i.touched {
		i.touched = true
		e.touched = append(e.touched, i)
	}
}

// Verdicts returns the last verdict on every instance, by UID, unadmitted ones
// included.
func (e *Evaluator) Verdicts() []Verdict {
	all := e.sorted()
	vs := make([]Verdict, len(all))
	for k, i := range all {
		vs[k] = i.verdict
	}
	return vs
}

func (e *Evaluator) sorted() []*instance {
	all := make([]*instance, 0, len(e.instances))
	for _, i := range e.instances {
		all = append(all, i)
	}
	slices.SortFunc(all, byUID)
	return all
}

func byUID(a, b *instance) int { return cmp.Compare(a.row.UID, b.row.UID) }
