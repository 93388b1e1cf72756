package health

import "slices"

// column sums up one reporter's scores on the siblings that have enough samples:
// how many there are, and the two next to their middle, of which one is the lower
// median of all, and one that of the others when one is left out. Worst is the
// highest score on any sibling, however few its samples.
type column struct {
	n         int
	low, high float64
	worst     float64
}

// without is the lower median of the column; the score is left out if it is in it.
func (k *column) without(score float64, in bool) (median float64, some bool) {
	switch {
	case k.n == 0 || in && k.n == 1:
		return 0, false
	case in && score <= k.low, !in && k.n%2 == 1:
		return k.high, true
	default:
		return k.low, true
	}
}

// columnOf sums up scores, and reorders them.
func columnOf(scores []float64, worst float64) column {
	k := column{n: len(scores), worst: worst}
	switch {
	case k.n == 0 || worst == 0:
	case k.n == 1:
		k.low, k.high = scores[0], scores[0]
	default:
		at := (k.n - 2) / 2
		k.low = selectNth(scores, at)
		k.high = slices.Min(scores[at+1:])
	}
	return k
}

// selectNth is the n-th lowest value, from 0; it reorders the values so that those
// after it are not lower.
func selectNth(values []float64, n int) float64 {
	lo, hi := 0, len(values)-1
	for lo < hi {
		pivot := values[lo+(hi-lo)/2]
		a, b := lo, hi
		for a <= b {
			for values[a] < pivot {
				a++
			}
			for values[b] > pivot {
				b--
			}
			if a <= b {
				values[a], values[b] = values[b], values[a]
				a++
				b--
			}
		}
		switch {
		case n <= b:
			hi = b
		case n >= a:
			lo = a
		default:
			return values[n]
		}
	}
	return values[n]
}

// columnFor is the reporter's column, worked out once in a turn.
func (c *callers) columnFor(r *reporter) *column {
	if r.columnIn == c.turn {
		return &r.column
	}
	least := reporterSamples / c.scale
	scores, worst := c.values[:0], 0.0
	for k := range r.cells {
		x := &r.cells[k]
		if x.samples <= 0 || x.row.sibling < 0 {
			continue
		}
		score := x.score()
		worst = max(worst, score)
		if x.samples >= least {
			scores = append(scores, score)
		}
	}
	c.values = scores
	r.column, r.columnIn = columnOf(scores, worst), c.turn
	return &r.column
}

// poolMemo is the last column that was worked out for a pool: mostly the next
// instance has the same small reporters.
type poolMemo struct {
	turn    uint32
	members []*reporter
	rest    bool // those that are not kept apart belong to it
	column  column
}

// plainlyCounts reports whether a pool has a sibling with enough samples, and no
// member scores any sibling above what a median may be: then neither does the
// median of their sums.
func (c *callers) plainlyCounts(row *callersRow, k int, q callersQuestion) bool {
	members, rest := c.poolMembers(row, k, q)
	for _, r := range members {
		if c.columnFor(r).worst > maxSiblingBad {
			return false
		}
	}
	enough, least := false, reporterSamples/c.scale
	for _, s := range c.siblings {
		if enough && !rest {
			break
		}
		var sum tally
		if rest && s.rest != nil {
			sum = s.rest[k].tally
			if sum.score() > maxSiblingBad {
				return false
			}
		}
		if enough || s == row {
			continue
		}
		for _, ref := range s.refs {
			if ref.from.mark == c.mark {
				sum.add(ref.cell().tally)
			}
		}
		enough = sum.samples >= least
	}
	return enough
}

// poolMembers lists the small reporters of a pool, and whether those that are not
// kept apart belong to it.
func (c *callers) poolMembers(row *callersRow, k int, q callersQuestion) (members []*reporter, rest bool) {
	least, pooled := leastSamples(q)/c.scale, pooledSamples/c.scale
	members = c.members[:0]
	c.mark++
	for _, ref := range row.refs {
		if x := ref.cell(); ref.from.pool() == k && x.samples >= pooled && x.samples < least {
			members = append(members, ref.from)
			ref.from.mark = c.mark
		}
	}
	c.members = members
	return members, row.rest != nil && row.rest[k].samples >= pooled
}

// packed is what a reporter says of one sibling.
type packed struct {
	tally
	sibling int
}

// packedFor lists what the reporter says of the siblings, once in a turn: a pool's
// members are walked for every instance that has others, and these lie close.
func (c *callers) packedFor(r *reporter) []packed {
	if r.packedIn == c.turn {
		return r.packed
	}
	r.packed, r.packedIn = r.packed[:0], c.turn
	for k := range r.cells {
		if x := &r.cells[k]; x.samples > 0 && x.row.sibling >= 0 {
			r.packed = append(r.packed, packed{x.tally, x.row.sibling})
		}
	}
	return r.packed
}

// poolColumn is the column of the pool's members taken together: what they all
// say of each sibling, whether they are small there too or not.
func (c *callers) poolColumn(row *callersRow, k int, q callersQuestion) *column {
	members, rest := c.poolMembers(row, k, q)
	memo := &c.pools[k]
	if memo.turn == c.turn && memo.rest == rest && slices.Equal(memo.members, members) {
		return &memo.column
	}
	memo.turn, memo.rest = c.turn, rest
	memo.members = append(memo.members[:0], members...)
	sums := append(c.sums[:0], make([]tally, len(c.siblings))...)
	for _, r := range members {
		for _, x := range c.packedFor(r) {
			sums[x.sibling].add(x.tally)
		}
	}
	least, worst := reporterSamples/c.scale, 0.0
	scores := c.values[:0]
	for n, s := range c.siblings {
		if rest && s.rest != nil {
			sums[n].add(s.rest[k].tally)
		}
		if sums[n].samples >= least {
			scores = append(scores, sums[n].score())
			worst = max(worst, sums[n].score())
		}
	}
	c.values, c.sums = scores, sums
	memo.column = columnOf(scores, worst)
	return &memo.column
}
