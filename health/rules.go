package health

import (
	"time"
)

// note says which of a rule's cases fired; describe turns it into text, and
// only when it differs from the last one.
type note uint8

const (
	noNote note = iota
	noteLapsed
	noteNotServing
	noteUnready
	noteHeld
	noteSilent
	noteSilentOut
	noteSuspect
	noteBefore // as before the start
	noteGood
	noteDraining
	noteUnheard
	noteExistence
	noteDependency  // degraded: what it depends on is
	noteProbeOnly   // degraded: its probes fail, and its callers are content
	noteApplication // degraded: only callers that count application errors are against
	noteUnproved
	noteUnadmittedLapsed
	noteUnadmittedDraining
	noteUnadmittedNotServing
	noteUnadmittedBad
	noteUnadmittedRetry
	noteUnadmittedWaits
)

// finding is what a rule says of an instance.
type finding struct {
	state State
	rule  Rule
	note  note
	kept  uint32 // percent of the weight that degradation leaves; 0: all of it
}

// decide walks the rules of HEALTH.md §4 in their order; the first that fires
// speaks. A rule that takes the instance out leaves its mark, and while a mark
// is left no later rule can bring the instance back.
func (e *Evaluator) decide(i *instance, now time.Time) finding {
	e.returns(i, now)
	for _, rule := range [...]func(*instance, time.Time) (finding, bool){
		e.lapsed,     // R1
		e.notServing, // R2
		e.unready,    // R2, by a dependency of its own
		e.observed,   // R3, R4, R5
		e.held,       // what took it out has not returned
		e.dependent,  // R2, by dependencies that lower the weight
		e.suspected,  // HEALTH.md §6: a suspect lapse
		e.stood,      // the verdict of before the start
		e.silent,     // R6
	} {
		if f, fires := rule(i, now); fires {
			if !f.state.Serving() {
				e.wait(i, NoWait, charge{}, now) // it is out; nothing waits
			}
			return f
		}
	}
	return e.otherwise(i, now)
}

// lapsed is R1: a lapsed lease that is not suspect. The authority's word and a
// deregistration need no rule, they remove the row.
func (e *Evaluator) lapsed(i *instance, now time.Time) (finding, bool) {
	l := &i.lease
	if !l.ended || now.Before(l.verdictAt(i.row.Lease)) || l.suspect() && !e.suspectStands(i, now) {
		return finding{}, false
	}
	l.lapse(now, i.row.Lease)
	i.outs.set(mark{rule: R1, at: now})
	return finding{state: Ineligible, rule: R1, note: noteLapsed}, true
}

// notServing is R2 for the instance itself: its newest report speaks.
func (e *Evaluator) notServing(i *instance, now time.Time) (finding, bool) {
	if i.self.newest.status != NotServing {
		return finding{}, false
	}
	i.outs.set(mark{rule: R2, at: now})
	return finding{state: Ineligible, rule: R2, note: noteNotServing}, true
}

// held keeps an instance out until the return of what took it out. Silence does
// not bring it back, and is shown.
func (e *Evaluator) held(i *instance, now time.Time) (finding, bool) {
	if len(i.outs) == 0 {
		return finding{}, false
	}
	if _, silent := e.allSilent(i, now); silent {
		return finding{state: Ineligible, rule: R6, note: noteSilentOut}, true
	}
	return finding{state: Ineligible, rule: i.outs.first(), note: noteHeld}, true
}

// suspected holds an instance whose lapse is one of too many: unknown, in
// rotation, until it renews, a second class agrees, or the rest shows that the
// renewal path works.
func (e *Evaluator) suspected(i *instance, now time.Time) (finding, bool) {
	if !i.lease.suspect() || now.Before(i.lease.verdictAt(i.row.Lease)) {
		return finding{}, false
	}
	return finding{state: Unknown, rule: R6, note: noteSuspect}, true
}

// stood lets the checkpointed state stand after a start, until evidence of a
// supplied class arrives or all of them have been silent for their limits.
func (e *Evaluator) stood(i *instance, now time.Time) (finding, bool) {
	if !i.stands {
		return finding{}, false
	}
	_, silent := e.allSilent(i, now)
	if silent || i.profile.Supplies == 0 || i.seen.fresh != 0 {
		i.stands = false
		return finding{}, false
	}
	return finding{state: i.verdict.State, rule: i.verdict.Rule, note: noteBefore, kept: i.verdict.Kept}, true
}

// silent is R6: every supplied class silent.
func (e *Evaluator) silent(i *instance, now time.Time) (finding, bool) {
	if _, silent := e.allSilent(i, now); !silent {
		return finding{}, false
	}
	if i.silenceTakesOut() {
		i.outs.set(mark{rule: R6, at: now})
		return finding{state: Ineligible, rule: R6, note: noteSilent}, true
	}
	return finding{state: Unknown, rule: R6, note: noteSilent}, true
}

// otherwise is R7.
func (e *Evaluator) otherwise(i *instance, now time.Time) finding {
	f := finding{state: Eligible, rule: R7, note: noteGood}
	switch {
	case i.profile.Supplies == 0:
		f.note = noteExistence
	case i.seen.fresh == 0:
		f.note = noteUnheard
	case i.self.newest.status == Draining:
		f.note = noteDraining
	}
	return f
}
