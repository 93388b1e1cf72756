package health

import "time"

// probeTerms are what the contract says about probes.
type probeTerms struct {
	halfLife          time.Duration
	out, in           float64
	interval, timeout time.Duration
}

// probes is the probe class of one instance: one score for each prober.
type probes struct{}

// probeReading is what probes say of one instance at one moment.
type probeReading struct {
	newest  time.Time // newest sample that counts (not of a blind prober); zero: never heard
	live    int       // probers that speak
	over    bool      // over the line: every live prober is, or most of three and more
	good    bool      // fresh, and at or under the in-line
	anyBad  bool      // the newest result of some live prober is a failure
	score   float64   // highest of the live probers', shown
	samples float64   // decayed, over the live probers
	// disagree is since when the live probers have disagreed; zero: they agree.
	disagree time.Time
	// refusedBy is how many live probers' newest result is a refused connection.
	refusedBy int
	goodSince time.Time // since when the class has been at or under its in-line; zero: it is not
	// silentAt is from when the class is silent if nothing more is heard; zero:
	// nobody speaks. Silence of what was never heard is the evaluator's to count.
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

// hear records one result. It reports whether the prober's newest result turned
// between good, failing and other, or is its first.
func (p *probes) hear(s *Sample, t *probeTerms) (turned bool) { return false }

// read says what probes think of the instance. Silence is as at the cadence
// that holds: confirming is that of 10 s. It is to be called once a tick, after
// the tick's samples: runs of good results are kept between readings.
func (p *probes) read(now time.Time, t *probeTerms, stance *Stance, confirming bool) probeReading {
	return probeReading{}
}

// scores lists the probers by name, as of the last reading.
func (p *probes) scores(now time.Time, t *probeTerms, stance *Stance) []ProberScore { return nil }

// clear forgets all results.
func (p *probes) clear() {}

// gap says that nothing was heard until now.
func (p *probes) gap(now time.Time) {}
