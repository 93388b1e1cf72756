package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// instance is what the evaluator remembers of one instance: the rows that the
// registry gave, the evidence by class, and the last verdict.
type instance struct {
	row     *registry.Instance
	profile registry.Profile
	terms   *terms // of the contract that holds for it
	// quietFrom is where silence is counted from while nothing was heard: the
	// latest of birth, own start, and the end of an own gap.
	quietFrom time.Time
	// gained are the classes that a change of its profile added, and gainedAt when:
	// they have had no time to speak before.
	gained   registry.ClassSet
	gainedAt time.Time
	// startLimit is when a start of ours is long enough ago for callers to be
	// called silent (HEALTH.md §1); zero for an instance born later.
	startLimit time.Time

	member   bool
	onceFull bool // it has once been a member at full weight
	stands   bool // the checkpointed state speaks until evidence or silence does

	self   selfWord
	probes probes
	lease  lease
	outs   outs

	callers *callersRow // owned by callers; nil: none was heard

	seen        sight
	quiet       bool      // good news from callers were told to wait
	readAt      time.Time // when its callers' numbers were read
	failedAt    time.Time // last report of a caller that was bad by itself
	primacy     primacy
	cadence     cadence
	callersGood time.Time // since when callers have been good; zero: they are not

	minute minuteWords // what it and probers said in the minute that runs

	waits      waiting
	trial      trial
	ramp       ramp
	retry      retry
	quarantine quarantine
	excused    bool // it comes back because taking it out was an error of ours
	heldOut    bool // counted in Evaluator.heldOut
	sentBack   bool // counted in Evaluator.sentBack

	verdict Verdict // last one handed out, or the state remembered from before a start
	gist    gist    // what its text says
	probing Probing // last one handed out
	handed  bool    // verdict was handed out
	// leaving: it was named as aged out; askAt is when to name it again, or to
	// look again whether it may go.
	leaving bool
	askAt   time.Time

	touched bool
	batch   uint64 // the last batch of samples that spoke of it
	queued  bool
	due     time.Time // queue key; never after the time at which to judge next
	index   int       // position in the queue, while queued
}

// draining reports whether its authority or the instance itself said that it
// is about to go. Only its own SERVING takes the instance's word back: one
// that stops answers NOT_SERVING after DRAINING, and is draining all the same.
func (i *instance) draining() bool { return i.row.Draining || i.self.draining() }

// proved reports whether the address was shown to belong to the identity.
func (i *instance) proved() bool { return i.row.Proof != registry.Unproved }

// baseWeight is the row's weight within its range, 100 when not given.
func (i *instance) baseWeight() uint32 {
	switch w := i.row.Weight; {
	case w == 0:
		return 100
	case w > 1000:
		return 1000
	default:
		return w
	}
}

// heard is when the class last gave a sample.
func (i *instance) heard(c registry.EvidenceClass) time.Time {
	switch c {
	case registry.ClassSelf:
		return i.self.newest.at
	case registry.ClassProbe:
		return i.seen.probe.newest
	default:
		return i.seen.callers.newest
	}
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// sooner keeps the earliest of the times that lie ahead; it is how the next
// judgement of an instance is found.
type sooner struct{ now, at time.Time }

func (s *sooner) add(t time.Time) {
	if t.IsZero() || !t.After(s.now) {
		return
	}
	if s.at.IsZero() || t.Before(s.at) {
		s.at = t
	}
}
