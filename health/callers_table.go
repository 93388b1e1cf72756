package health

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	// maxTrackedReporters is how many reporters an instance keeps apart. They are
	// those of the lowest rank, a hash of who they are: whoever came first does
	// not matter, and two instances keep the same ones. The others are summed into
	// the pools.
	maxTrackedReporters = 64
	// maxReporters is how many reporters a service keeps apart; outcomes of more
	// go to the pools.
	maxReporters = 4096
	// poolCount is into how many pools small reporters are summed (HEALTH.md §2).
	poolCount = 4

	sweepEvery = 10 * time.Second
	// staleAfter and weightless are when a cell is forgotten: it was not heard of
	// for so long, and holds less than so many decayed samples.
	staleAfter = time.Minute
	weightless = 1e-3

	// maxExponent is after how many half-lives the stored counts are scaled down
	// to a new base, far from the end of float64's range.
	maxExponent = 64
)

// tally is a sum of samples, and of those that failed. Stored tallies are
// decayed forward: what was heard at t is stored times 2^((t−base)/half-life), so
// that a report costs one exponential whatever it holds, nothing is touched in
// order to decay, and reports add up in any order.
type tally struct{ samples, failures float64 }

func (t *tally) add(o tally) { t.samples += o.samples; t.failures += o.failures }

func (t tally) times(by float64) tally { return tally{t.samples * by, t.failures * by} }

// score is failures over samples; it does not change by decay.
func (t tally) score() float64 {
	if t.samples <= 0 {
		return 0
	}
	return t.failures / t.samples
}

// cell is what one reporter says of one instance, or what many say in a pool.
// Times are offsets of decayClock.
type cell struct {
	uid registry.UID // of the instance, here so that no other memory is touched
	tally
	minute   minuteTally // undecayed, of the minute that runs
	row      *callersRow // nil: the cell is free
	newest   int64       // end of the newest interval in which a call ended; 0: never
	refused  int64       // of the newest in which our library saw a refusal; 0: never
	accrued  float32     // calls that it should have been given since it was last picked
	progress uint32      // calls in progress, as Envoy last said
	credit   uint32      // growth of those that nothing explained
	// accruedIn and progressIn are the number of the report, of its stream, in
	// which each was last said.
	accruedIn, progressIn uint32
	kinds                 kindSet
	// quietUntil: a report that is not bad by itself needs nobody to look at the
	// instance before then, unless the service stirred since quietIn.
	quietUntil int64
	quietIn    uint32
}

// kindSet says which kinds of reports a tally was made of.
type kindSet uint8

const onlyGRPC = kindSet(1) << FromGRPC

func (s kindSet) with(k ReporterKind) kindSet { return s | 1<<k }

// kind is what the set is called for a person: our library's where it is mixed.
func (s kindSet) kind() ReporterKind {
	switch s {
	case onlyGRPC:
		return FromGRPC
	case 1 << FromEnvoy:
		return FromEnvoy
	default:
		return FromLibrary
	}
}

// callersRow is what callers said of one instance.
type callersRow struct {
	of      *instance
	slot    int              // in the table's rows
	sibling int              // its position among the siblings of the turn; -1: it is none
	cleared bool             // to be cleared at the end of the turn
	newest  int64            // of the cells that were forgotten
	refs    []ref            // by rank
	rest    *[poolCount]cell // reporters that are not kept apart; nil: none
}

// ref says where a reporter's cell on an instance is.
type ref struct {
	from  *reporter
	index int
}

func (r ref) cell() *cell { return &r.from.cells[r.index] }

// reporter is one caller of the service. Its cells are in the order in which its
// reports name instances, so that a report is applied front to back.
type reporter struct {
	who     Reporter
	rank    uint64
	heard   int64
	cells   []cell
	free    int // cells without a row
	streams [FromGRPC + 1]stream

	column   column
	columnIn uint32 // the turn in which column was worked out
	packed   []packed
	packedIn uint32
	mark     uint64 // the last list of pool members that it was on
	group    uint8  // in which a minute sums it, as of the last one
}

// stream is the run of a reporter's reports of one kind.
type stream struct {
	number uint32 // of the last report; one that does not follow on another skips one
	last   int64  // its time
}

func (r *reporter) pool() int { return int(r.rank % poolCount) }

// at is the reporter's position among the row's, and whether it is there.
func (row *callersRow) at(r *reporter) (int, bool) {
	return slices.BinarySearchFunc(row.refs, r.rank, func(x ref, rank uint64) int { return cmp.Compare(x.from.rank, rank) })
}

// rankOf is a hash that every server computes alike (FNV-1a, then mixed so that
// every bit depends on all).
func rankOf(who *Reporter) uint64 {
	const prime = 1099511628211
	h := uint64(14695981039346656037)
	addr := who.Addr.As16()
	for _, part := range [...]string{who.Identity.TrustDomain(), who.Identity.Path()} {
		for k := 0; k < len(part); k++ {
			h = (h ^ uint64(part[k])) * prime
		}
		h = (h ^ 0xff) * prime
	}
	for _, b := range addr {
		h = (h ^ uint64(b)) * prime
	}
	h = (h ^ uint64(who.Instance)) * prime
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// known returns the reporter, and takes it in if there is room; nil: there is
// none.
func (c *callers) known(who Reporter) *reporter {
	if r := c.reporters[who]; r != nil {
		return r
	}
	if len(c.reporters) >= maxReporters {
		return nil
	}
	r := &reporter{who: who, rank: rankOf(&who)}
	c.reporters[who] = r
	return r
}

// row is the instance's row, made if there is none.
func (c *callers) row(i *instance) *callersRow {
	if i.callers != nil {
		return i.callers
	}
	row := &callersRow{of: i, slot: len(c.rows), sibling: -1}
	c.rows = append(c.rows, row)
	i.callers = row
	return row
}

// track gives the reporter a cell in the row, before the position at; -1: those
// that are kept apart all come before it.
func (row *callersRow) track(at int, r *reporter) int {
	if len(row.refs) == maxTrackedReporters {
		if at == maxTrackedReporters {
			return -1
		}
		last := row.refs[maxTrackedReporters-1]
		row.pool(last.from.pool()).take(last.cell())
		row.remove(maxTrackedReporters - 1)
	}
	index := len(r.cells)
	fresh := cell{uid: row.of.row.UID, row: row}
	if r.free > 0 {
		index = slices.IndexFunc(r.cells, func(x cell) bool { return x.row == nil })
		r.cells[index] = fresh
		r.free--
	} else {
		r.cells = append(r.cells, fresh)
	}
	row.refs = slices.Insert(row.refs, at, ref{from: r, index: index})
	return index
}

func (row *callersRow) pool(k int) *cell {
	if row.rest == nil {
		row.rest = new([poolCount]cell)
	}
	return &row.rest[k]
}

// take adds another cell's counts; what needs one reporter's memory is lost.
func (x *cell) take(o *cell) {
	x.add(o.tally)
	x.minute.add(float64(o.minute.samples), float64(o.minute.failures))
	x.newest, x.refused = max(x.newest, o.newest), max(x.refused, o.refused)
	x.kinds |= o.kinds
}

func (row *callersRow) remove(at int) {
	x := row.refs[at].cell()
	row.newest = max(row.newest, x.newest)
	*x = cell{}
	row.refs[at].from.free++
	row.refs = slices.Delete(row.refs, at, at+1)
}

// drop forgets an instance that is gone.
func (c *callers) drop(i *instance) {
	row := i.callers
	if row == nil {
		return
	}
	for k := len(row.refs) - 1; k >= 0; k-- {
		row.remove(k)
	}
	row.rest = nil
	last := len(c.rows) - 1
	c.rows[row.slot] = c.rows[last]
	c.rows[row.slot].slot = row.slot
	c.rows[last] = nil
	c.rows = c.rows[:last]
	i.callers = nil
	c.dirty = true
}

// sweep forgets cells and reporters that have gone stale.
func (c *callers) sweep() {
	c.sweptAt = c.now
	least := weightless * c.weight(c.now)
	stale := c.now - int64(staleAfter)
	for _, row := range c.rows {
		for k := len(row.refs) - 1; k >= 0; k-- {
			if x := row.refs[k].cell(); x.samples < least && x.heard(row.refs[k].from) < stale {
				row.remove(k)
			}
		}
		row.sweepRest(least, stale)
	}
	for who, r := range c.reporters {
		switch {
		case r.free < len(r.cells):
			if r.free > len(r.cells)/2 {
				r.compact()
			}
		case r.heard < stale:
			delete(c.reporters, who)
		}
		r.packed, r.packedIn = nil, 0
	}
}

// compact gives the reporter's free cells back.
func (r *reporter) compact() {
	cells := make([]cell, 0, len(r.cells)-r.free)
	for k := range r.cells {
		if x := &r.cells[k]; x.row != nil {
			at, _ := x.row.at(r)
			x.row.refs[at].index = len(cells)
			cells = append(cells, *x)
		}
	}
	r.cells, r.free = cells, 0
}

func (row *callersRow) sweepRest(least float64, stale int64) {
	if row.rest == nil {
		return
	}
	empty := true
	for k := range row.rest {
		x := &row.rest[k]
		if x.samples < least && x.newest < stale {
			row.newest = max(row.newest, x.newest)
			*x = cell{}
		}
		empty = empty && x.newest == 0
	}
	if empty {
		row.rest = nil
	}
}

// heard is when something was last heard that the cell remembers.
func (x *cell) heard(from *reporter) int64 {
	at := x.newest
	if s := &from.streams[FromGRPC]; s.number > 0 && x.accruedIn == s.number {
		at = max(at, s.last)
	}
	if s := &from.streams[FromEnvoy]; s.number > 0 && x.progressIn == s.number {
		at = max(at, s.last)
	}
	return at
}

// decayClock counts nanoseconds from an hour before the first moment it was told
// of, so that 0 can stand for never.
type decayClock struct {
	origin time.Time
	base   int64 // where stored counts are worth themselves
	latest int64
}

// advance tells the table what time it is, and returns it as an offset.
func (c *callers) advance(now time.Time) int64 {
	k := &c.clock
	if k.origin.IsZero() {
		k.origin = now.Add(-time.Hour)
		k.base = int64(time.Hour)
	}
	at := k.offset(now)
	k.latest = max(k.latest, at)
	if at-k.base > maxExponent*int64(c.terms.halfLife) {
		c.rebase(at)
	}
	return at
}

func (k *decayClock) offset(t time.Time) int64 { return int64(t.Sub(k.origin)) }

// time is the moment of an offset; the zero time for 0.
func (k *decayClock) time(at int64) time.Time {
	if at == 0 {
		return time.Time{}
	}
	return k.origin.Add(time.Duration(at))
}

// weight is what a count of that moment is stored times.
func (c *callers) weight(at int64) float64 {
	return math.Exp2(float64(at-c.clock.base) / float64(c.terms.halfLife))
}

// rebase scales all stored counts to a new base.
func (c *callers) rebase(to int64) {
	down := 1 / c.weight(to)
	for _, r := range c.reporters {
		for k := range r.cells {
			r.cells[k].decay(down)
		}
	}
	for _, row := range c.rows {
		if row.rest != nil {
			for k := range row.rest {
				row.rest[k].decay(down)
			}
		}
	}
	c.clock.base = to
	c.dirty = true
}

func (t *tally) decay(by float64) { *t = t.times(by) }
