package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// callersTerms are what the contract says about callers' outcomes.
type callersTerms struct {
	halfLife  time.Duration
	out, in   float64
	ignoreLRS bool // errors that stock gRPC clients report over LRS do not count
}

// callers is the table of one service's outcomes: decaying scores by instance
// and reporter, pools of small reporters, sibling medians (HEALTH.md §2).
type callers struct {
	terms callersTerms
}

// callersQuestion says under which bar an instance is read.
type callersQuestion struct {
	// trial: after a withdrawal on callers' word, until the ramp of its return
	// ends (HEALTH.md §3); ramping: a member within a ramp.
	trial, ramping bool
}

// callersReading is what callers say of one instance at one moment.
type callersReading struct {
	newest   time.Time // end of the newest interval with a call; zero: never heard
	samples  float64   // decayed, over all reporters
	failures float64   // decayed
	score    float64   // median over the reporters that count
	excess   float64   // median of their scores above their siblings' medians
	siblings float64   // median of those medians, shown
	counting int       // reporters that count, a pool as one
	against  int       // of those, the ones against
	enough   bool      // ≥20 decayed samples from ≥2 reporters that count (5 while it ramps)
	few      bool      // below 10 decayed samples, or fewer than 2 that count
	over     bool      // over the line
	good     bool      // at or under the in-line, as excess; false where none counts
	// application: every reporter against is a stock gRPC client, while at least
	// two others count and none is against.
	application bool
	// refusedBy is how many reporters of our own library saw refused connections
	// within the last 10 s.
	refusedBy int
}

func newCallers() *callers { return &callers{} }

// configure takes the contract's terms.
func (c *callers) configure(t callersTerms) { c.terms = t }

// hear records a report, touching the instances it speaks of, and returns how
// many entries were refused.
func (c *callers) hear(now time.Time, o *Outcomes, find func(registry.UID) *instance, touch func(*instance)) (refused int) {
	return len(o.Entries)
}

// settle opens the readings of one judgement: it fixes at now who may serve as a
// sibling (the service's members, those that have once reached full weight if
// there are any; that an instance is no sibling of itself is seen to here), so
// that no reading depends on what the judgement did to others before it. Nil:
// every instance. It forgets what has gone stale.
func (c *callers) settle(now time.Time, sibling func(*instance) bool) {}

// read says what callers think of an instance, as of the last settle; it is to be
// called with the same now.
func (c *callers) read(i *instance, now time.Time, q callersQuestion) callersReading {
	return callersReading{}
}

// clear forgets the scores and accruals on an instance: a trial begins.
func (c *callers) clear(i *instance) {}

// moved clears the accruals on an instance whose place in the set changed.
func (c *callers) moved(i *instance) {}

// drop forgets an instance that is gone.
func (c *callers) drop(i *instance) {}

// gap says that nothing was heard until now.
func (c *callers) gap(now time.Time) {}

// scores lists the reporters' words on an instance, those against it first, at
// most maxTrackedReporters and the pools. Settle comes before it, as before read.
func (c *callers) scores(i *instance, now time.Time, q callersQuestion) []ReporterScore { return nil }

// callersRow is what callers said of one instance.
type callersRow struct{}
