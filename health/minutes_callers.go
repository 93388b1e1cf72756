package health

import (
	"cmp"
	"slices"
	"time"
)

// minuteTally is what one reporter counted on an instance in the minute that
// runs. It lies in the cell that the entry is recorded in.
type minuteTally struct{ samples, failures float32 }

func (t *minuteTally) add(samples, failures float64) {
	t.samples += float32(samples)
	t.failures += float32(failures)
}

// minuteReporters puts those that reported after from into groups, by rank, so
// that a few reporters are told apart, and many are summed evenly.
func (c *callers) minuteReporters(from time.Time) []ReporterGroup {
	since := c.clock.offset(from)
	var heard []*reporter
	for _, r := range c.reporters {
		if r.heard > since {
			heard = append(heard, r)
		}
	}
	slices.SortFunc(heard, func(a, b *reporter) int { return cmp.Compare(a.rank, b.rank) })
	groups := make([]ReporterGroup, min(len(heard), minuteGroups))
	var kinds [minuteGroups][FromGRPC + 1]int
	for k, r := range heard {
		r.group = uint8(k % minuteGroups)
		for kind := range r.streams {
			if s := &r.streams[kind]; s.last > since {
				kinds[r.group][kind]++
			}
		}
		groups[r.group].Count++
	}
	for g := range groups {
		for kind, n := range kinds[g] {
			if n > kinds[g][groups[g].Kind] {
				groups[g].Kind = ReporterKind(kind)
			}
		}
	}
	return groups
}

// minuteOf takes what the reporters of each group counted on an instance, and
// how many of our own library saw refused connections. What came from more
// reporters than are kept apart is the first group's.
func (c *callers) minuteOf(i *instance, groups int, from time.Time) (out []CallerMinute, refusedBy int) {
	row := i.callers
	if row == nil || groups == 0 {
		return nil, 0
	}
	since := c.clock.offset(from)
	var sums [minuteGroups]minuteTally
	take := func(x *cell, group int) {
		sums[group].samples += x.minute.samples
		sums[group].failures += x.minute.failures
		x.minute = minuteTally{}
	}
	for _, r := range row.refs {
		x := r.cell()
		take(x, int(r.from.group)%groups)
		if x.refused > since {
			refusedBy++
		}
	}
	if row.rest != nil {
		for k := range row.rest {
			take(&row.rest[k], k%groups)
		}
	}
	for g, t := range sums[:groups] {
		if t.samples > 0 {
			failures := rounded(t.failures)
			out = append(out, CallerMinute{Group: g, Samples: max(rounded(t.samples), failures), Failures: failures})
		}
	}
	return out, refusedBy
}

// rounded counts a part of a call as a whole one.
func rounded(n float32) uint32 {
	if n <= 0 {
		return 0
	}
	return max(1, uint32(n+0.5))
}
