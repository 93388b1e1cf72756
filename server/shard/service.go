package shard

import (
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// service is one service's part of the loop: what it is judged and assembled
// by, and when it needs to be looked at again.
type service struct {
	shard     *shard
	set       *Set
	name      registry.Name
	evaluator *health.Evaluator
	assembler *views.Assembler

	loaded   uint64 // registry revision of the rows it started with
	pending  *registry.Change
	held     views.Version // published
	deleted  bool
	judgeAt  time.Time
	assemble time.Time
	// publishAt and why: the newest candidate waits for its lane.
	publishAt time.Time
	why       string

	saved []byte // last checkpoint

	contracts contracts
	minuteAt  time.Time // when the minute of evidence ends
}

func (s *shard) newService(name registry.Name, now time.Time) *service {
	svc := &service{
		shard: s, set: s.set, name: name,
		evaluator: health.New(name, now, health.Memory{}),
		assembler: views.NewAssembler(name, views.Memory{}),
	}
	s.services[name] = svc
	svc.evaluator.Stand(now, s.stance)
	return svc
}

// loadService makes a stored service anew and offers its view.
func (s *shard) loadService(c registry.Change, memory []byte, lost []*views.Member) *service {
	now := time.Now()
	m, err := readMemory(memory, now)
	if err != nil && s.set.cfg.Events.LostMemory != nil {
		s.set.cfg.Events.LostMemory(c.Name, err)
	}
	svc := &service{
		shard: s, set: s.set, name: c.Name, loaded: c.Revision, saved: memory,
		evaluator: health.New(c.Name, now, m.health),
		assembler: views.NewAssembler(c.Name, m.views),
	}
	s.services[c.Name] = svc
	delete(s.held, c.Name)
	svc.assembler.Restore(lost)
	c = svc.resume(now, c, m.contract)
	svc.evaluator.Load(c)
	svc.evaluator.Stand(now, s.stance)
	svc.tellProbers(c)
	svc.pending = &c
	svc.step(now)
	return svc
}

// change takes rows. A deletion is published before what comes after it.
func (s *service) change(now time.Time, c registry.Change) {
	if s.loaded != 0 && c.Revision <= s.loaded {
		return // its rows were read already
	}
	c = s.govern(now, c)
	s.tellProbers(c)
	s.pending = &c
	s.deleted = c.Service == nil
	if s.deleted {
		s.step(now)
	}
}

// tellProbers says what there is to probe, and by which contract.
func (s *service) tellProbers(c registry.Change) {
	e := &s.set.cfg.Events
	if e.Changed != nil {
		e.Changed(c)
	}
	if c.Service != nil && !s.contracts.zonesAhead() {
		s.tellContract(c.Contract, "")
	}
}

// receive takes the rest of the mail and lets the service judge and publish,
// at once or at the next tick.
func (s *service) receive(now time.Time, m *mail, atOnce bool) {
	for uid, at := range m.renewals {
		s.evaluator.Renew(at, uid)
	}
	samples := m.samples
	for _, sample := range m.urgent {
		samples = append(samples, sample)
	}
	if len(samples) > 0 {
		_, refused := s.evaluator.Observe(now, samples)
		count(s.set.cfg.Events.Observed, len(samples)-refused)
		count(s.set.cfg.Events.Refused, refused)
	}
	for _, o := range m.outcomes {
		refused := s.evaluator.ObserveOutcomes(now, o)
		count(s.set.cfg.Events.Observed, len(o.Entries)-refused)
		count(s.set.cfg.Events.OutcomesRefused, refused)
	}
	s.contracts.rollout.overhear(now, m, samples)
	if !atOnce {
		s.judgeAt = now
		return
	}
	s.step(now)
	if m.restamp && !s.deleted {
		c := s.assembler.Candidate()
		c.Restamp = true
		s.publish(now, c)
	}
}

func count(event func(int), n int) {
	if event != nil && n > 0 {
		event(n)
	}
}

// turn does what is due.
func (s *service) turn(now time.Time) {
	s.recordMinute(now)
	switch {
	case due(s.judgeAt, now), due(s.assemble, now):
		s.step(now)
	case due(s.publishAt, now):
		s.publish(now, s.assembler.Candidate())
	}
}

// staleRetry is how long after a refusal a candidate is offered once more. The
// base was right, so another term or a defect is behind it.
const staleRetry = time.Second

func due(at, now time.Time) bool { return !at.IsZero() && !at.After(now) }

// step judges, assembles when there is something new to assemble, and publishes.
func (s *service) step(now time.Time) {
	o := s.evaluator.Judge(now)
	s.judgeAt = o.Next
	if s.set.cfg.Events.HealthIncident != nil {
		for _, i := range o.Incidents {
			s.set.cfg.Events.HealthIncident(s.name, i)
		}
	}
	if len(o.Probing) > 0 && s.set.cfg.Events.Probing != nil {
		s.set.cfg.Events.Probing(s.name, o.Probing)
	}
	var version views.Version
	if s.pending != nil || len(o.Changed) > 0 || due(s.assemble, now) {
		var c views.Candidate
		c, s.assemble = s.assembler.Apply(now, views.Input{Change: s.pending, Verdicts: o.Changed})
		s.pending = nil
		if lift(now, s.evaluator, s.assembler) {
			s.judgeAt = now
		}
		s.report(c.Incidents)
		version = s.publish(now, c)
	} else if due(s.publishAt, now) {
		s.publish(now, s.assembler.Candidate())
	}
	if len(o.Transitions) > 0 && s.set.cfg.Events.Transitions != nil {
		s.set.cfg.Events.Transitions(s.name, version, o.Transitions)
	}
	if len(o.AgedOut) > 0 {
		select {
		case s.set.aged <- agedOut{s.name, o.AgedOut}:
		default: // the registry is slow; they are named again
		}
	}
	s.roll(now)
}

// lift tells the evaluator whose quarantine the guard lifted: their ramps begin.
func lift(now time.Time, e *health.Evaluator, a *views.Assembler) (news bool) {
	for _, uid := range a.Lifted() {
		news = e.LiftQuarantine(now, uid) || news
	}
	return news
}

func (s *Set) feed(p views.Publication) {
	for _, feed := range s.cfg.Feeds {
		feed(p)
	}
}

func (s *service) report(incidents []views.Incident) {
	if f := s.set.cfg.Events.ViewIncident; f != nil {
		for _, i := range incidents {
			f(i)
		}
	}
}

// publish offers a candidate, tells the feeds, and returns the version that it
// was published under, if it was.
func (s *service) publish(now time.Time, c views.Candidate) views.Version {
	restamp := c.Restamp
	r := s.set.cfg.Publish(now, c)
	s.publishAt, s.why = time.Time{}, ""
	delete(s.shard.deferred, s)
	if r.Outcome == views.Stale {
		// Computed from another base than what is published: offer it once more
		// from the right one.
		s.assembler.Published(r.Held)
		c = s.assembler.Candidate()
		c.Restamp = restamp
		r = s.set.cfg.Publish(now, c)
	}
	s.assembler.Published(r.Held)
	s.held = r.Held
	switch r.Outcome {
	case views.Published:
		s.set.feed(r.Publication)
	case views.Deferred:
		s.publishAt, s.why = r.Until, r.Reason
		s.shard.deferred[s] = true
		return views.Version{}
	case views.Stale:
		if f := s.set.cfg.Events.Stale; f != nil {
			f(s.name, r.Reason)
		}
		s.publishAt, s.why = now.Add(staleRetry), r.Reason
		s.shard.deferred[s] = true
		return views.Version{}
	}
	if s.deleted {
		s.shard.gone = append(s.shard.gone, s)
	}
	if r.Outcome != views.Published {
		return views.Version{}
	}
	return r.Publication.Version
}
