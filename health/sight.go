package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// sight is what the evidence says of one instance, as of its last judgement.
// Only what the profile supplies is looked at.
type sight struct {
	probe   probeReading
	callers callersReading
	fresh   registry.ClassSet // supplied classes within their silence limits
	bad     registry.ClassSet // those of them that are over their line
	primary registry.ClassSet // the class that decides, at most one
	needs   need              // what the instance's dependencies do
}

// look reads every class of the instance at now. Each class is read once a
// judgement: what they say must be of one moment.
func (e *Evaluator) look(i *instance, now time.Time) {
	s := &i.seen
	reading := s.callers
	again := !i.quietAt(now)
	s.fresh, s.bad, s.primary = 0, 0, 0
	s.callers = callersReading{}
	if i.supplies(registry.ClassCallers) && i.callers != nil {
		if again {
			i.readAt, reading = now, e.callers.read(i, now, i.question())
		}
		s.callers = reading
		if e.isFresh(i, registry.ClassCallers, now) {
			s.fresh = s.fresh.With(registry.ClassCallers)
			if s.callers.over {
				s.bad = s.bad.With(registry.ClassCallers)
			}
		}
	}
	since(&i.callersGood, now, i.good(registry.ClassCallers))
	i.primacy.step(now, &s.callers, i.ramp.runs())
	e.lookAtProbes(i, now)
	if i.supplies(registry.ClassSelf) && e.isFresh(i, registry.ClassSelf, now) {
		s.fresh = s.fresh.With(registry.ClassSelf)
		if i.self.newest.status == NotServing {
			s.bad = s.bad.With(registry.ClassSelf)
		}
	}
	s.primary = i.primaryClass()
	s.needs = e.dependencies(i, now)
}

// lookAtProbes reads the probe class at the cadence that holds, and starts the
// full cadence where a confirmation failed.
func (e *Evaluator) lookAtProbes(i *instance, now time.Time) {
	s := &i.seen
	s.probe = probeReading{}
	if !i.supplies(registry.ClassProbe) {
		i.cadence = cadence{}
		return
	}
	i.cadence.follow(now, i.callersLead())
	s.probe = i.probes.read(now, &i.terms.probes, e.stance, i.cadence.lenient(now, i.terms))
	// In a dead zone the word of those outside stands, also of one alone.
	s.probe.over = s.probe.over || s.probe.alone && e.inDeadZone(i)
	if s.probe.anyBad {
		i.cadence.failed(now)
	}
	if e.isFresh(i, registry.ClassProbe, now) {
		s.fresh = s.fresh.With(registry.ClassProbe)
		if s.probe.over {
			s.bad = s.bad.With(registry.ClassProbe)
		}
	}
	i.disagree(now)
}

// question is the bar under which callers are read.
func (i *instance) question() callersQuestion {
	t := &i.terms.callers
	return callersQuestion{trial: i.trial.onCallersWord, ramping: i.ramp.runs(), out: t.out, in: t.in}
}

func (i *instance) supplies(c registry.EvidenceClass) bool { return i.profile.Supplies.Has(c) }

// good reports whether the class is fresh, and at or under its in-line.
func (i *instance) good(c registry.EvidenceClass) bool {
	if !i.seen.fresh.Has(c) {
		return false
	}
	switch c {
	case registry.ClassSelf:
		return i.self.newest.status == Serving
	case registry.ClassProbe:
		return i.seen.probe.good
	default:
		return i.seen.callers.good
	}
}

// otherBad reports whether a supplied class besides c is fresh and over its line.
func (i *instance) otherBad(c registry.EvidenceClass) bool {
	return i.seen.bad&^(1<<c) != 0
}
