package health

import (
	"math"
	"slices"
	"strings"
	"time"
)

const (
	// maxProbers bounds the probers kept of one instance: two or three are
	// assigned (HEALTH.md §2), and one may be leaving.
	maxProbers = 4
	// probeFails and probeWindow: over the line takes three failed samples within
	// 40 s, or four intervals where those are longer.
	probeFails  = 3
	probeWindow = 40 * time.Second
	// proberKept is how long a prober that says nothing more is remembered: longer
	// than the longest window (four intervals of a minute).
	proberKept = 5 * time.Minute
	// scoreSlack is what the order of additions may do to a score: a line is met
	// whatever order the samples came in.
	scoreSlack = 1e-9
)

// probeTerms are what the contract says about probes.
type probeTerms struct {
	halfLife          time.Duration
	out, in           float64
	interval, timeout time.Duration
}

// limit is how long a prober may say nothing before it is silent: three
// intervals and a timeout, at the confirmation cadence or at full cadence.
func (t *probeTerms) limit(slow bool) moment {
	every := t.interval
	if slow {
		every = max(every, confirmCadence)
	}
	return moment(3*every + t.timeout)
}

// window is how far back failed samples voices.
func (t *probeTerms) window() moment { return moment(max(probeWindow, 4*t.interval)) }

// moment is a time as the distance from a probes' base, in a third of the space
// of a time.Time; 0 is never. A region holds ten of them for each instance.
type moment time.Duration

// probes is the probe class of one instance: one score for each prober. hear
// only adds up, so that the order of a tick's samples does not matter; what
// depends on earlier moments is kept by read.
type probes struct {
	base      time.Time // an hour before the first word; zero: nothing was heard
	slots     []proberSlot
	quietFrom moment // end of the last own gap: silence is counted anew from there
	slow      bool   // silence was last counted as at the confirmation cadence
	// disagree and goodSince are those of the last reading, seen its newest sample.
	disagree, goodSince, seen moment
	row                       int32 // place in the evaluator's tally, from 1; 0: none
}

// proberSlot is one prober's word on the instance.
type proberSlot struct {
	prober Prober
	newest moment      // newest sample
	result ProbeResult // and how it ended
	first  moment      // oldest sample in the sums
	// failed and total are decayed sums as of newest.
	failed, total float64
	fails         [probeFails]moment // newest failed samples, the newest first
	silentOf      moment             // newest, when the prober was found silent
}

// probeReading is what probes say of one instance at one moment.
type probeReading struct {
	newest  time.Time // newest sample that counts (not of a blind prober); zero: never heard
	live    int       // probers that speak
	over    bool      // over the line: both are; of three and more, most are
	alone   bool      // one prober is over the line, and another that speaks is blind
	good    bool      // at or under the in-line: all are; of three and more, most are
	anyBad  bool      // the newest result of some live prober is a failure
	score   float64   // highest of the live probers', shown
	samples float64   // decayed, over the live probers
	// disagree is since when the live probers have disagreed; zero: they agree.
	disagree time.Time
	// refusedBy is how many live probers' newest result is a refused connection.
	refusedBy int
	goodSince time.Time // since when the class has been at or under its in-line; zero: it is not
	// silentAt is from when the class is silent if nothing more is heard; zero:
	// nobody speaks. Silence of what was never heard is the evaluator's to voices.
	silentAt time.Time
	// next is when the reading changes without a further sample; zero: never.
	next time.Time
}

// ProberScore is one prober's score on an instance, for whoever asks why.
type ProberScore struct {
	Prober Prober
	Score  float64
	Newest time.Time
	Result ProbeResult // the newest
	Over   bool
	Blind  bool // its samples are silence (HEALTH.md §6)
	Live   bool // it speaks: not silent, not blind
}

func (p *probes) moment(t time.Time) moment {
	if p.base.IsZero() {
		p.base = t.Add(-time.Hour)
	}
	return moment(t.Sub(p.base))
}

// time is the moment as a time; zero for never.
func (p *probes) time(m moment) time.Time {
	if m == 0 {
		return time.Time{}
	}
	return p.base.Add(time.Duration(m))
}

// hear records one result. It reports whether the prober's newest result turned
// between good, failing and other, or is its first.
func (p *probes) hear(s *Sample, t *probeTerms) (turned bool) {
	at := p.moment(s.At)
	k := p.slot(s.Prober, at)
	if k < 0 {
		return false
	}
	r := &p.slots[k]
	r.add(at, s.Result != ProbeOK, t.halfLife)
	if at < r.newest || at == r.newest && s.Result <= r.result {
		return false
	}
	turned = sightOf(r.result) != sightOf(s.Result)
	r.newest, r.result, r.prober = at, s.Result, s.Prober
	return turned
}

// slot finds the prober's place, or makes one. Of more than maxProbers those
// that were heard last are kept; -1: the sample is of an older one.
func (p *probes) slot(who Prober, at moment) int {
	k, found := slices.BinarySearchFunc(p.slots, who.Name, func(r proberSlot, name string) int {
		return strings.Compare(r.prober.Name, name)
	})
	if found {
		return k
	}
	if len(p.slots) == maxProbers {
		oldest := 0
		for n := range p.slots {
			if p.slots[n].newest < p.slots[oldest].newest {
				oldest = n
			}
		}
		if at <= p.slots[oldest].newest {
			return -1
		}
		p.slots = slices.Delete(p.slots, oldest, oldest+1)
		if oldest < k {
			k--
		}
	}
	p.slots = slices.Insert(p.slots, k, proberSlot{prober: who})
	return k
}

// add puts one sample into the sums. It is to be called before newest moves.
func (r *proberSlot) add(at moment, bad bool, halfLife time.Duration) {
	weight := 1.0
	if at >= r.newest {
		kept := fade(at-r.newest, halfLife)
		r.failed, r.total = r.failed*kept, r.total*kept
	} else {
		weight = fade(r.newest-at, halfLife)
	}
	r.total += weight
	if r.first == 0 || at < r.first {
		r.first = at
	}
	if !bad {
		return
	}
	r.failed += weight
	for n := range r.fails {
		if at > r.fails[n] {
			r.fails[n], at = at, r.fails[n]
		}
	}
}

// fade is what is left of a sample's weight after a while.
func fade(after moment, halfLife time.Duration) float64 {
	return math.Exp2(-float64(after) / float64(halfLife))
}

func (r *proberSlot) score() float64 {
	if r.total <= 0 {
		return 0
	}
	return r.failed / r.total
}

// over reports whether the prober is over the line.
func (r *proberSlot) over(now moment, t *probeTerms) bool {
	third := r.fails[probeFails-1]
	return third > 0 && third >= now-t.window() && r.score() >= t.out-scoreSlack
}

// silentAt is from when the prober is silent if it says nothing more: its limit
// after its newest sample, or after the end of an own gap.
func (p *probes) silentAt(r *proberSlot, t *probeTerms) moment {
	return max(r.newest, p.quietFrom) + t.limit(p.slow)
}

// speaks reports whether the prober is not silent. One that fell silent stays
// so until it is heard again, also where a slower cadence would allow for more.
func (p *probes) speaks(r *proberSlot, now moment, t *probeTerms) bool {
	return r.newest != r.silentOf && now < p.silentAt(r, t)
}

// read says what probes think of the instance. Silence is counted as at the
// confirmation cadence where slow, and as at full cadence otherwise: the caller
// turns from slow when full cadence has held for its own limit. It is to be
// called once a tick, after the tick's samples: runs of good results are kept
// between readings.
func (p *probes) read(now time.Time, t *probeTerms, stance *Stance, slow bool) probeReading {
	p.slow = slow
	if p.base.IsZero() {
		return probeReading{}
	}
	m := p.moment(now)
	p.forget(m, stance)
	var c voices
	var o probeReading
	for k := range p.slots {
		r := &p.slots[k]
		speaks := p.speaks(r, m, t)
		if !speaks {
			r.silentOf = r.newest
		}
		if stance.blind(r.prober) {
			if speaks {
				c.blinded++
			}
			continue
		}
		c.newest = max(c.newest, r.newest)
		if speaks {
			c.take(p, r, m, t, &o)
		}
	}
	p.settle(m, t, &c)
	return p.fill(o, &c)
}

// voices gather the live probers of a reading.
type voices struct {
	newest, silentAt, next moment
	live, over, good       int
	blinded                int // they speak, and what they say is silence
}

func (c *voices) take(p *probes, r *proberSlot, now moment, t *probeTerms, o *probeReading) {
	c.live++
	silent := p.silentAt(r, t)
	c.silentAt = max(c.silentAt, silent)
	c.sooner(silent)
	score := r.score()
	switch {
	case r.over(now, t):
		c.over++
		c.sooner(r.fails[probeFails-1] + t.window() + 1)
	case score <= t.in+scoreSlack:
		c.good++
	}
	o.score = max(o.score, score)
	o.samples += r.total * fade(max(0, now-r.newest), t.halfLife)
	o.anyBad = o.anyBad || r.result != ProbeOK
	if r.result == ProbeRefused {
		o.refusedBy++
	}
}

func (c *voices) sooner(m moment) {
	if c.next == 0 || m < c.next {
		c.next = m
	}
}

// isOver takes no single word for the instance's failure where another prober of
// it is blind: what blinded one may have cut off the other, which has too few
// targets to be found out.
func (c *voices) isOver() bool {
	return c.over > 0 && (c.over == c.live && !c.alone() || c.live > 2 && 2*c.over > c.live)
}

// alone reports whether one prober is left, and another is blind.
func (c *voices) alone() bool { return c.live == 1 && c.blinded > 0 }

// isGood is isOver's mirror image: of three and more most decide, or the broken
// path of one prober would keep the instance out for good.
func (c *voices) isGood() bool {
	return c.live > 0 && (c.good == c.live || c.live > 2 && 2*c.good > c.live)
}

// settle moves what is kept from one reading to the next.
func (p *probes) settle(now moment, t *probeTerms, c *voices) {
	switch {
	case !c.isGood(), c.newest < p.quietFrom:
		p.goodSince = 0 // also after an own gap, until something is heard
	case p.goodSince == 0, c.newest-p.seen > t.limit(p.slow):
		p.goodSince = c.newest
	}
	p.seen = c.newest
	switch {
	case c.over == 0 || c.over == c.live:
		p.disagree = 0
	case p.disagree == 0:
		p.disagree = now
	}
}

func (p *probes) fill(o probeReading, c *voices) probeReading {
	o.newest, o.live = p.time(c.newest), c.live
	o.over, o.good = c.isOver(), c.isGood()
	o.alone = c.over > 0 && c.alone()
	o.disagree, o.goodSince = p.time(p.disagree), p.time(p.goodSince)
	o.silentAt, o.next = p.time(c.silentAt), p.time(c.next)
	return o
}

// forget drops probers that were not heard for long, and what a prober said
// while it was blind.
func (p *probes) forget(now moment, stance *Stance) {
	gone := func(r proberSlot) bool { return r.newest == 0 || now-r.newest > moment(proberKept) }
	for k := range p.slots {
		r := &p.slots[k]
		if until := stance.silenced(r.prober); !until.IsZero() {
			r.forgetUntil(p.moment(until))
		}
	}
	if slices.ContainsFunc(p.slots, gone) {
		p.slots = slices.DeleteFunc(p.slots, gone)
	}
}

// forgetUntil drops the samples up to a moment. Sums cannot be taken apart:
// where they hold such a sample, only the newest one is kept.
func (r *proberSlot) forgetUntil(m moment) {
	if r.first > m {
		return
	}
	if r.newest <= m {
		r.newest = 0
		return
	}
	for n := range r.fails {
		if r.fails[n] <= m {
			r.fails[n] = 0
		}
	}
	r.first, r.failed, r.total = r.newest, 0, 1
	if r.result != ProbeOK {
		r.failed = 1
	}
}

// scores lists the probers by name, silent and blind ones too.
func (p *probes) scores(now time.Time, t *probeTerms, stance *Stance) []ProberScore {
	var all []ProberScore
	for k := range p.slots {
		r := &p.slots[k]
		m := moment(now.Sub(p.base))
		blind := stance.blind(r.prober)
		all = append(all, ProberScore{
			Prober: r.prober, Score: r.score(), Newest: p.time(r.newest), Result: r.result,
			Over: r.over(m, t), Blind: blind, Live: !blind && p.speaks(r, m, t),
		})
	}
	return all
}

// clear forgets all results.
func (p *probes) clear() {
	*p = probes{slow: p.slow, row: p.row}
}

// gap says that nothing was heard until now.
func (p *probes) gap(now time.Time) {
	if p.base.IsZero() {
		return
	}
	p.quietFrom = p.moment(now)
	p.goodSince, p.disagree = 0, 0
}
