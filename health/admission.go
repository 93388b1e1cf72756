package health

import (
	"time"
)

// admissionSilence is how long a new instance of which nothing is heard waits
// before it becomes a member as unknown (HEALTH.md §5).
const admissionSilence = 30 * time.Second

const (
	// retryAfter is how long a membership that ended within its first ramp is
	// over at least; it doubles each time, up to maxRetryAfter.
	retryAfter    = 30 * time.Second
	maxRetryAfter = 10 * time.Minute
)

// retry is a membership that ended within its first ramp (HEALTH.md §5).
type retry struct {
	rule  Rule // that ended it; NoRule: none was
	at    time.Time
	times int // in a row
	why   string
}

// again is when the instance may be admitted again.
func (r *retry) again() time.Time {
	if r.rule == NoRule {
		return time.Time{}
	}
	wait := retryAfter
	for n := 1; n < r.times && wait < maxRetryAfter; n++ {
		wait *= 2
	}
	return r.at.Add(min(wait, maxRetryAfter))
}

// putBack ends the membership of an instance that failed within its first ramp.
func (e *Evaluator) putBack(i *instance, c charge, now time.Time) {
	i.retry = retry{rule: c.rule, at: now, times: i.retry.times + 1, why: e.describeCharge(i, c)}
	i.outs, i.trial, i.primacy = nil, trial{}, primacy{}
	i.member = false
	i.stopRamp()
	e.members--
	e.callers.moved(i)
	// From here on it has to earn its admission by another class.
	i.cadence.follow(now, i.callersLead())
	i.seen.primary = i.primaryClass()
}

// admit makes a new instance a member where the rules of HEALTH.md §5 allow it,
// and says what it waits for where they do not.
func (e *Evaluator) admit(i *instance, now time.Time) (waits note, admitted bool) {
	l := &i.lease
	switch {
	case !i.proved():
		return noteUnproved, false
	case i.draining():
		return noteUnadmittedDraining, false
	case l.ended && !now.Before(l.verdictAt(i.row.Lease)):
		// Whoever died before it was ever admitted must not enter by silence.
		l.lapse(now, i.row.Lease)
		return noteUnadmittedLapsed, false
	case i.self.newest.status == NotServing, i.seen.needs.unready:
		return noteUnadmittedNotServing, false
	case now.Before(i.retry.again()):
		return noteUnadmittedRetry, false
	case i.seen.bad != 0:
		return noteUnadmittedBad, false
	case i.profile.Supplies == 0, e.someGood(i):
	case i.silenceTakesOut(), now.Before(e.admitsAt(i)):
		// A contract that calls silence ineligible does not admit on it.
		return noteUnadmittedWaits, false
	}
	l.forgive()
	i.outs = nil
	i.member = true
	e.members++
	if i.retry.rule != NoRule {
		e.callers.clear(i) // of the last time
		i.seen.callers = callersReading{}
	}
	e.callers.moved(i)
	e.startRamp(i, now)
	return noNote, true
}

// admitsAt is when silence admits: after 30 s of it, and not before every
// supplied class counts as silent, so that what it admits is unknown.
func (e *Evaluator) admitsAt(i *instance) time.Time {
	last := laterOf(i.quietFrom, i.retry.at)
	var silent time.Time
	for _, c := range classes {
		if i.profile.Supplies.Has(c) {
			last = laterOf(last, i.heard(c))
			silent = laterOf(silent, e.silentAt(i, c))
		}
	}
	return laterOf(last.Add(admissionSilence), silent)
}

// someGood reports whether a supplied class has fresh and good evidence.
func (e *Evaluator) someGood(i *instance) bool {
	for _, c := range classes {
		if i.supplies(c) && i.good(c) {
			return true
		}
	}
	return false
}

// unadmitted is the finding on an instance that is no member: in no view. The
// views may let it stand in for a service that has nothing else left.
func (e *Evaluator) unadmitted(waits note) finding {
	return finding{state: Unknown, rule: Admission, note: waits}
}
