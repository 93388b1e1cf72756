package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	// maxOutcomeCalls is where a count of one reporter on one instance within one
	// interval stops being believed: a power of two, 2 M calls a second at the
	// usual interval.
	maxOutcomeCalls = 1 << 22
	// maxOutcomesInterval is the longest interval of a report. That a backlog is
	// dropped (an interval above 2.5 times the one asked for) is up to whoever
	// asked for it.
	maxOutcomesInterval = time.Minute

	// pickedAtLeast is how many calls an instance should have been given before
	// it counts that it was given none; maxNeverPicked bounds the charge
	// (HEALTH.md §2).
	pickedAtLeast  = 10
	maxNeverPicked = 50

	// cursorReach is how many cells ahead an instance is looked for before it is
	// looked up.
	cursorReach = 4
)

// report is a report while its entries are applied.
type report struct {
	*Outcomes
	from   *reporter // nil: not kept apart
	pool   int
	at     int64
	now    int64
	weight float64 // stored per count
	number uint32  // of its stream; 0: late, no report follows on it
	// share is how many of the calls to weighted entries one unit of weight should
	// have been given.
	share float64

	cursor int         // the reporter's cell that comes next
	row    *callersRow // of the entry that is applied
}

// hear records a report and returns how many entries were refused: of an unknown instance, or with a count that no
// caller can have; all of them when the report is from the future, older than a
// minute, or of an interval that cannot be. More calls may have ended than begun:
// they began earlier. A report without entries says that the reporter called
// nobody; it keeps what never was picked accruing.
//
// The instances that it speaks of are touched (bad: it fails there as much as the
// out-line asks for, by itself). Until the time that touch returns they need not
// be touched again by good reports: nearly all are such, and looking up each
// instance would be most of what a report costs.
func (c *callers) hear(now time.Time, o *Outcomes, find func(registry.UID) *instance, touch func(i *instance, bad bool) time.Time) (refused int) {
	if !o.acceptable(now) {
		return len(o.Entries)
	}
	c.finishClears()
	c.dirty = true
	r := c.open(now, o)
	for k := range o.Entries {
		e := &o.Entries[k]
		if (e.Issued | e.OK | e.Failed | e.Refused | e.InProgress) >= maxOutcomeCalls {
			refused++
			continue
		}
		x := r.next(e.UID)
		own := x != nil
		if !own {
			i := find(e.UID)
			if i == nil {
				refused++
				continue
			}
			if x, own = c.cellFor(&r, i, e); x == nil {
				continue
			}
			r.row = i.callers
		}
		spoke, bad := c.apply(&r, e, x, own)
		switch {
		case !spoke, !bad && r.now < x.quietUntil && x.quietIn == c.stirs:
			continue
		case bad:
			c.stirs++
		}
		x.quietUntil = 0
		if until := touch(r.row.of, bad); !until.IsZero() {
			x.quietUntil, x.quietIn = c.clock.offset(until), c.stirs
		}
	}
	return refused
}

// acceptable reports whether the report can say something of now.
func (o *Outcomes) acceptable(now time.Time) bool {
	return o.Kind <= FromGRPC && o.Interval > 0 && o.Interval <= maxOutcomesInterval &&
		!o.At.After(now.Add(futureSlack)) && !o.At.Before(now.Add(-maxSampleAge))
}

func (c *callers) open(now time.Time, o *Outcomes) report {
	r := report{Outcomes: o, now: c.advance(now)}
	r.at = min(r.now, c.clock.offset(o.At))
	r.weight = c.weight(r.at)
	if r.from = c.known(o.Reporter); r.from == nil {
		r.pool = int(rankOf(&o.Reporter) % poolCount)
		return r
	}
	r.pool = r.from.pool()
	r.from.heard = max(r.from.heard, r.at)
	r.number = r.from.streams[o.Kind].take(r.at, o, c.gapAt)
	r.share = -1
	return r
}

// take gives the report a number: the next one if it follows on the last report
// of the stream, else one more than that; 0 if it came late. At most half an
// interval may lie between: else a report is missing.
func (s *stream) take(at int64, o *Outcomes, gapAt int64) uint32 {
	if at < s.last {
		return 0
	}
	follows := s.number > 0 && s.last >= gapAt && at-s.last <= int64(o.Interval)*3/2
	switch {
	case !follows:
		s.number += 2
	case len(o.Entries) > 0:
		s.number++
	}
	s.last = at
	return s.number
}

// sharePerWeight spreads the calls of a report over its weights. Entries whose
// weight is not known take no part.
func sharePerWeight(entries []Outcome) float64 {
	var issued, weight uint64
	for k := range entries {
		if e := &entries[k]; e.Weight > 0 && e.Issued < maxOutcomeCalls {
			issued += uint64(e.Issued)
			weight += uint64(e.Weight)
		}
	}
	if weight == 0 {
		return 0
	}
	return float64(issued) / float64(weight)
}

// next is the reporter's cell on the instance if it comes where the last report
// had it, or soon after: idle instances are left out of reports.
func (r *report) next(uid registry.UID) *cell {
	if r.from == nil {
		return nil
	}
	cells := r.from.cells
	for k := r.cursor; k < len(cells) && k < r.cursor+cursorReach; k++ {
		if x := &cells[k]; x.uid == uid && x.row != nil {
			r.cursor, r.row = k+1, x.row
			return x
		}
	}
	return nil
}

// cellFor is where an entry on an instance is recorded: the reporter's own cell,
// or the pool of those that are not kept apart. An entry that says nothing makes
// no cell.
func (c *callers) cellFor(r *report, i *instance, e *Outcome) (x *cell, own bool) {
	says := e.called() || e.Weight > 0
	if !says && i.callers == nil {
		return nil, false
	}
	row := c.row(i)
	if r.from != nil {
		index := -1
		if at, is := row.at(r.from); is {
			index = row.refs[at].index
		} else if says {
			index = row.track(at, r.from)
		}
		if index >= 0 {
			r.cursor = index + 1
			return &r.from.cells[index], true
		}
	}
	if !says {
		return nil, false
	}
	return row.pool(r.pool), false
}

// called reports whether the entry tells of any call.
func (e *Outcome) called() bool { return e.Issued|e.OK|e.Failed|e.Refused|e.InProgress != 0 }

// apply records one entry, and reports whether it said something of now, and
// whether that is as bad by itself as would take the instance out.
func (c *callers) apply(r *report, e *Outcome, x *cell, own bool) (spoke, bad bool) {
	samples, failures, ignored := float64(e.OK+e.Failed), float64(e.Failed), 0.0
	switch r.Kind {
	case FromEnvoy:
		hidden := float64(x.hidden(r.number, e, own))
		samples += hidden
		failures += hidden
	case FromGRPC:
		if c.terms.ignoreLRS {
			failures, ignored = 0, failures
		}
		if own && !e.called() {
			charge := r.neverPicked(x, e)
			samples += charge
			failures += charge
		}
	case FromLibrary:
		if e.Refused > 0 {
			x.refused = max(x.refused, r.at)
		}
	}
	if x.accruedIn > 0 && e.called() {
		x.accrued, x.accruedIn = 0, 0
	}
	if samples == 0 {
		return e.Refused > 0, e.Refused > 0
	}
	x.minute.add(samples, failures+ignored)
	x.samples += r.weight * samples
	x.failures += r.weight * failures
	x.kinds = x.kinds.with(r.Kind)
	x.newest = max(x.newest, r.at)
	return true, failures > 0 && failures >= c.terms.out*samples
}

// neverPicked accrues what the instance should have been given and was not, and
// returns the failures to charge for it.
func (r *report) neverPicked(x *cell, e *Outcome) float64 {
	if r.number == 0 {
		return 0
	}
	if e.Weight == 0 {
		x.accrued, x.accruedIn = 0, 0
		return 0
	}
	if x.accruedIn+1 != r.number {
		x.accrued = 0
	}
	if r.share < 0 {
		r.share = sharePerWeight(r.Entries)
	}
	x.accruedIn = r.number
	x.accrued += float32(r.share * float64(e.Weight))
	if x.accrued < pickedAtLeast {
		return 0
	}
	charge := min(float64(x.accrued), maxNeverPicked)
	x.accrued = 0
	return charge
}

// hidden is how many calls Envoy's counters hide: begun, neither ended nor in
// progress any more. Where the last count of those in progress is not known, all
// of them count as new ones: rather too few are charged.
//
// Two Envoys may be one reporter, and their counts of calls in progress take
// turns. So growth that no call explains is kept as credit against the fall that
// follows it.
func (x *cell) hidden(number uint32, e *Outcome, own bool) int64 {
	ended := int64(e.Issued) - int64(e.OK) - int64(e.Failed)
	if !own || number == 0 {
		return max(0, ended-int64(e.InProgress))
	}
	follows := x.progressIn+1 == number
	if !follows {
		x.progress, x.credit = 0, 0
	}
	if ended == 0 && e.InProgress == x.progress {
		x.progressIn = number
		return 0
	}
	growth := int64(e.InProgress) - int64(x.progress)
	x.progress, x.progressIn = e.InProgress, number
	lost := ended - growth
	if lost <= 0 {
		if unexplained := growth - max(0, ended); follows && unexplained > 0 {
			x.credit = uint32(min(int64(x.credit)+unexplained, maxOutcomeCalls))
		}
		return 0
	}
	used := min(lost, int64(x.credit))
	x.credit -= uint32(used)
	return lost - used
}
