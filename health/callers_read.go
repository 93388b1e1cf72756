package health

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	reporterSamples      = 5    // decayed, for a reporter to count, and of a sibling
	reporterSamplesTrial = 1    // for it to count during a trial, and together: reporterSamples
	pooledSamples        = 0.1  // for a small one to be in a pool: else it would only stand for siblings
	maxSiblingBad        = 0.70 // above it a reporter could never speak against
	minExcess            = 0.20
	noiseFactor          = 4 // 3 needs a confirmation of one interval (HEALTH.md §11)
	minNoiseMedian       = 0.02
	maxNoiseMedian       = 0.5

	// minFailures are the decayed failures of a reporter against, and those of
	// all of them together. During a trial a reporter that counts can speak from
	// its first failure, since it counts from its first sample.
	minFailures      = 2
	minFailuresTrial = 1
	allFailures      = 8
	allFailuresTrial = 3
	allSamplesTrial  = 5
	minAgainst       = 2

	primarySamples        = 20 // to become primary (HEALTH.md §3)
	primarySamplesRamping = 5
	primarySamplesKept    = 10 // below it callers do not stay primary
	minCounting           = 2

	refusedWithin = 10 * time.Second
)

// voice is what one reporter, or a pool, says of the instance that is read.
type voice struct {
	tally            // decayed until now
	stored     tally // as the table holds it: what a column was made of, to the bit
	score      float64
	from       *reporter
	pool       int // 1 to poolCount; 0: one reporter
	kinds      kindSet
	newest     int64
	median     float64 // of its siblings
	hasSibling bool    // one at least
	owed       bool    // a pool's median that was not worked out yet
	counts     bool
	against    bool
}

// read says what callers think of an instance, as of the last settle; it is to be
// called with the same now.
func (c *callers) read(i *instance, now time.Time, q callersQuestion) callersReading {
	row := i.callers
	if row == nil {
		return callersReading{few: true}
	}
	c.reopen(now)
	q = c.lines(q)
	var r callersReading
	vs := c.gather(row, q, &r)
	if row.cleared {
		return callersReading{newest: r.newest, few: true}
	}
	c.weigh(row, vs, q, &r)
	c.count(vs, q, &r)
	return r
}

// lines fills in the lines of a question that names none.
func (c *callers) lines(q callersQuestion) callersQuestion {
	if q.out == 0 {
		q.out, q.in = c.terms.out, c.terms.in
	}
	return q
}

// reopen settles again where something was heard since, or at another time: a
// reading is never of a mixture.
func (c *callers) reopen(now time.Time) {
	if c.dirty || !c.settledAt.Equal(now) {
		c.settle(now, c.sibling)
	}
}

// gather lists who speaks of the instance: the reporters with enough samples, in
// the order of their rank, and the pools of the others.
func (c *callers) gather(row *callersRow, q callersQuestion, r *callersReading) []voice {
	least, pooled := leastSamples(q)/c.scale, pooledSamples/c.scale
	var all tally
	var pools [poolCount]voice
	vs := c.voices[:0]
	newest, recent := row.newest, c.now-int64(refusedWithin)
	note := func(x *cell) {
		all.add(x.tally)
		newest = max(newest, x.newest)
		if x.refused > 0 && x.refused >= recent {
			r.refusedBy++
		}
	}
	for _, ref := range row.refs {
		x := ref.cell()
		note(x)
		switch {
		case x.samples >= least:
			vs = append(vs, voice{stored: x.tally, from: ref.from, kinds: x.kinds, newest: x.newest})
		case x.samples >= pooled:
			pools[ref.from.pool()].join(x)
		}
	}
	if row.rest != nil {
		for k := range row.rest {
			note(&row.rest[k])
			if row.rest[k].samples >= pooled {
				pools[k].join(&row.rest[k])
			}
		}
	}
	for k := range pools {
		if pools[k].stored.samples >= least {
			pools[k].pool = k + 1
			vs = append(vs, pools[k])
		}
	}
	for k := range vs {
		vs[k].score = vs[k].stored.score()
		vs[k].tally = vs[k].stored.times(c.scale)
	}
	c.voices = vs
	r.samples, r.failures = all.samples*c.scale, all.failures*c.scale
	r.newest = c.clock.time(newest)
	return vs
}

func leastSamples(q callersQuestion) float64 {
	if q.trial {
		return reporterSamplesTrial
	}
	return reporterSamples
}

func (v *voice) join(x *cell) {
	v.stored.add(x.tally)
	v.kinds |= x.kinds
	v.newest = max(v.newest, x.newest)
}

// weigh finds the siblings' medians. Those of pools cost most: they are worked out
// where they can matter, which is where the pool is near the out-line, or the
// score is above the in-line, or it is not plain that the pool counts.
func (c *callers) weigh(row *callersRow, vs []voice, q callersQuestion, r *callersReading) {
	failures := leastFailures(q)
	for k := range vs {
		v := &vs[k]
		if v.pool == 0 {
			c.compare(row, v, c.columnFor(v.from))
			continue
		}
		v.owed = true
		if v.failures < failures || v.score < q.out {
			v.counts = c.plainlyCounts(row, v.pool-1, q)
		}
		if !v.counts {
			c.compare(row, v, c.poolColumn(row, v.pool-1, q))
		}
	}
	r.score = c.median(vs, func(v *voice) float64 { return v.score })
	if r.score > q.in {
		c.settleOwed(row, vs, q)
	}
}

func (c *callers) settleOwed(row *callersRow, vs []voice, q callersQuestion) {
	for k := range vs {
		if v := &vs[k]; v.owed {
			c.compare(row, v, c.poolColumn(row, v.pool-1, q))
		}
	}
}

func (c *callers) compare(row *callersRow, v *voice, siblings *column) {
	v.median, v.hasSibling = siblings.without(v.score, row.sibling >= 0 && v.stored.samples >= reporterSamples/c.scale)
	v.counts = v.hasSibling && v.median <= maxSiblingBad
	v.owed = false
}

func leastFailures(q callersQuestion) float64 {
	if q.trial {
		return minFailuresTrial
	}
	return minFailures
}

// count decides what the voices say together.
func (c *callers) count(vs []voice, q callersQuestion, r *callersReading) {
	least := leastFailures(q)
	var together tally
	grpcOnly, others := true, 0
	for k := range vs {
		v := &vs[k]
		if !v.counts {
			continue
		}
		r.counting++
		v.against = v.failures >= least && v.score >= q.out && v.score-v.median >= neededExcess(v)
		switch {
		case v.against:
			r.against++
			together.add(v.tally)
			grpcOnly = grpcOnly && v.kinds == onlyGRPC
		case v.kinds&onlyGRPC == 0:
			others++
		}
	}
	r.excess = c.median(vs, func(v *voice) float64 { return v.score - v.median })
	r.siblings = c.median(vs, func(v *voice) float64 { return v.median })
	r.good = r.counting > 0 && r.excess <= q.in
	r.application = r.against > 0 && grpcOnly && others >= minCounting
	needed := float64(primarySamples)
	if q.trial || q.ramping {
		needed = primarySamplesRamping
	}
	r.enough = r.samples >= needed && r.counting >= minCounting
	r.few = r.samples < primarySamplesKept || r.counting < minCounting
	failures, samples := float64(allFailures), 0.0
	if q.trial {
		failures, samples = allFailuresTrial, allSamplesTrial
	}
	r.over = r.against >= minAgainst && 2*r.against > r.counting && together.failures >= failures &&
		together.samples >= samples && together.score() >= q.out
}

// neededExcess is by how much a score must exceed its siblings' median: chance
// alone, of its samples there, must not.
func neededExcess(v *voice) float64 {
	m := min(max(v.median, minNoiseMedian), maxNoiseMedian)
	return max(minExcess, noiseFactor*math.Sqrt(m*(1-m)/(2*v.samples)))
}

// median is the lower median of a number over the voices that count.
func (c *callers) median(vs []voice, of func(*voice) float64) float64 {
	values := c.values[:0]
	for k := range vs {
		if vs[k].counts {
			values = append(values, of(&vs[k]))
		}
	}
	c.values = values
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// scores lists the reporters' words on an instance, those against it first, then
// those with the most samples: at most maxTrackedReporters and the pools. Settle
// comes before it, as before read.
func (c *callers) scores(i *instance, now time.Time, q callersQuestion) []ReporterScore {
	row := i.callers
	if row == nil || row.cleared {
		return nil
	}
	c.reopen(now)
	q = c.lines(q)
	var r callersReading
	vs := c.gather(row, q, &r)
	c.weigh(row, vs, q, &r)
	c.settleOwed(row, vs, q)
	c.count(vs, q, &r)
	slices.SortStableFunc(vs, func(a, b voice) int {
		if a.against != b.against {
			if a.against {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.samples, a.samples)
	})
	list := make([]ReporterScore, len(vs))
	for k := range vs {
		list[k] = vs[k].shown(&c.clock)
	}
	return list
}

func (v *voice) shown(clock *decayClock) ReporterScore {
	s := ReporterScore{
		Pool: v.pool, Kind: v.kinds.kind(), Samples: v.samples, Failures: v.failures, Score: v.score,
		Siblings: v.median, Newest: clock.time(v.newest), Counts: v.counts, Against: v.against,
	}
	if v.from != nil {
		s.Reporter = v.from.who
	}
	return s
}
