package health

import (
	"time"
)

// callersTerms are what the contract says about callers' outcomes.
type callersTerms struct {
	halfLife  time.Duration
	out, in   float64
	ignoreLRS bool // errors that stock gRPC clients report over LRS do not count
}

// defaultCallersTerms hold until configure is called (HEALTH.md §2).
var defaultCallersTerms = callersTerms{halfLife: 4 * time.Second, out: 0.20, in: 0.05}

// callers is the table of one service's outcomes: decaying scores by instance
// and reporter, pools of small reporters, sibling medians (HEALTH.md §2).
//
// Its use is in turns: hear as often as there is something to hear, then settle,
// then read. A reading depends on what was heard before the settle, not on the
// order in which different reporters' reports came, nor on the order of reading.
//
// Memory: an instance has at most maxTrackedReporters cells of 80 bytes, which
// are its reporters' own, the same number of references to them (16 bytes) and of
// what they say while pools are compared (24 bytes), the 4 pools of all other
// reporters, and a row of about 100 bytes: 8 KB. A service holds at most
// maxReporters reporters, of about 350 bytes beside their cells. What was not
// heard of for a minute and weighs nothing any more is forgotten (sweep).
type callers struct {
	terms callersTerms
	clock decayClock

	reporters map[Reporter]*reporter
	rows      []*callersRow
	gapAt     int64  // own gap: reports before it have no successor
	stirs     uint32 // counts what ended the quiet of the service's instances

	// The turn of reading: what settle fixed, and what readings worked out since.
	settledAt time.Time
	dirty     bool // something was heard after the settle
	sibling   func(*instance) bool
	siblings  []*callersRow
	turn      uint32 // counts the settles; a column is good within its turn
	now       int64
	scale     float64 // from stored counts to counts decayed until now
	sweptAt   int64
	cleared   []*callersRow // to be cleared when the turn is over

	pools   [poolCount]poolMemo
	voices  []voice
	values  []float64
	members []*reporter
	mark    uint64 // counts the lists of members
	sums    []tally
}

// callersQuestion says under which bar an instance is read.
type callersQuestion struct {
	// trial: after a withdrawal on callers' word, until the ramp of its return
	// ends (HEALTH.md §3); ramping: a member within a ramp.
	trial, ramping bool
	// out and in are the lines; 0: those of the table's terms. A changed contract
	// is in effect in some zones before others.
	out, in float64
}

// callersReading is what callers say of one instance at one moment.
type callersReading struct {
	newest   time.Time // end of the newest interval in which a call ended; zero: never heard
	samples  float64   // decayed, over all reporters
	failures float64   // decayed
	score    float64   // median over the reporters that count
	// excess is the median of their scores above their siblings' medians. Where
	// the score is at or under the in-line and nobody is near the out-line, the
	// medians of pools are not worked out, and taken as 0.
	excess   float64
	siblings float64 // median of those medians, shown
	counting int     // reporters that count, a pool as one
	against  int     // of those, the ones against
	enough   bool    // ≥20 decayed samples from ≥2 reporters that count (5 while it ramps)
	few      bool    // below 10 decayed samples, or fewer than 2 that count
	over     bool    // over the line
	good     bool    // at or under the in-line, as excess; false where none counts
	// application: every reporter against is a stock gRPC client, while at least
	// two others count and none is against.
	application bool
	// refusedBy is how many reporters of our own library saw refused connections
	// within the last 10 s.
	refusedBy int
}

func newCallers() *callers {
	return &callers{terms: defaultCallersTerms, reporters: make(map[Reporter]*reporter)}
}

// configure takes the contract's terms. Another half-life holds from the last
// moment that was heard of: what decayed until then stays decayed.
func (c *callers) configure(t callersTerms) {
	if t.halfLife <= 0 {
		t.halfLife = defaultCallersTerms.halfLife
	}
	if t.halfLife != c.terms.halfLife {
		c.rebase(c.clock.latest)
	}
	c.terms = t
	c.dirty = true
}

// settle opens the readings of one judgement: it fixes at now who may serve as a
// sibling (the service's members, those that have once reached full weight if
// there are any; that an instance is no sibling of itself is seen to here), so
// that no reading depends on what the judgement did to others before it. Nil:
// every instance. It forgets what has gone stale.
func (c *callers) settle(now time.Time, sibling func(*instance) bool) {
	c.finishClears()
	c.now = c.advance(now)
	if c.now-c.sweptAt >= int64(sweepEvery) {
		c.sweep()
	}
	c.settledAt, c.sibling, c.dirty = now, sibling, false
	c.scale = 1 / c.weight(c.now)
	c.turn++
	c.siblings = c.siblings[:0]
	for _, row := range c.rows {
		row.sibling = -1
		if sibling == nil || sibling(row.of) {
			row.sibling = len(c.siblings)
			c.siblings = append(c.siblings, row)
		}
	}
}

// clear forgets the scores and accruals on an instance: a trial begins. As a
// sibling it stays what it was until the next settle.
func (c *callers) clear(i *instance) {
	if row := i.callers; row != nil && !row.cleared {
		row.cleared = true
		c.cleared = append(c.cleared, row)
	}
}

func (c *callers) finishClears() {
	for _, row := range c.cleared {
		row.cleared = false
		row.rest = nil
		for _, ref := range row.refs {
			cell := ref.cell()
			cell.tally, cell.accrued, cell.refused, cell.kinds = tally{}, 0, 0, 0
		}
	}
	if len(c.cleared) > 0 {
		clear(c.cleared)
		c.cleared = c.cleared[:0]
		c.dirty = true
	}
}

// moved clears the accruals on an instance whose place in the set changed.
func (c *callers) moved(i *instance) {
	if row := i.callers; row != nil {
		for _, ref := range row.refs {
			ref.cell().accrued, ref.cell().accruedIn = 0, 0
		}
	}
}

// gap says that nothing was heard until now: no report after it follows on one
// before it.
func (c *callers) gap(now time.Time) { c.gapAt = c.advance(now) }
