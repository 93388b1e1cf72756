package xds

import (
	"cmp"
	"math"
	"slices"

	"github.com/sightlinedev/sightline/views"
)

// tally adds up a caller's counts by instance. Counts of one instance come in
// several parts when it was reported under two addresses, priorities or ports.
type tally struct {
	// slots has, for each member that is known by its place in a list, one more
	// than the place of its entry; 0: none.
	slots []int32
	list  []LoadEntry
	loose bool // some entries have no slot, and may repeat a uid
}

// tally starts a sum over a list of members that long.
func (l *loadStream) tally(members, rows int) tally {
	if cap(l.slots) < members {
		l.slots = make([]int32, members, members+members/4)
	}
	l.slots = l.slots[:members]
	clear(l.slots)
	return tally{slots: l.slots, list: make([]LoadEntry, 0, max(rows, members))}
}

// add counts a row for the k-th member; k under 0: it is in no list.
func (t *tally) add(k int, uid views.UID, weight uint32, r *loadRow) {
	e := LoadEntry{UID: uid, Issued: r.issued, OK: r.ok, Failed: r.failed, InProgress: r.current, Weight: weight}
	switch {
	case k < 0:
		t.loose = true
	case t.slots[k] > 0:
		t.list[t.slots[k]-1].add(&e)
		return
	default:
		t.slots[k] = int32(len(t.list)) + 1
	}
	t.list = append(t.list, e)
}

// entries is the sum, each uid once.
func (t *tally) entries() []LoadEntry {
	if t.loose {
		return mergeEntries(t.list)
	}
	return t.list
}

// add adds the counts of another entry on the same instance.
func (e *LoadEntry) add(o *LoadEntry) {
	e.Issued = sum(e.Issued, o.Issued)
	e.OK = sum(e.OK, o.OK)
	e.Failed = sum(e.Failed, o.Failed)
	e.InProgress = sum(e.InProgress, o.InProgress)
	e.Weight = max(e.Weight, o.Weight)
}

func sum(a, b uint32) uint32 { return uint32(min(uint64(a)+uint64(b), math.MaxUint32)) }

// mergeEntries makes one of the entries on an instance. It sorts them by uid.
func mergeEntries(list []LoadEntry) []LoadEntry {
	slices.SortFunc(list, func(a, b LoadEntry) int { return cmp.Compare(a.UID, b.UID) })
	merged := list[:0]
	for i := range list {
		if n := len(merged); n > 0 && merged[n-1].UID == list[i].UID {
			merged[n-1].add(&list[i])
			continue
		}
		merged = append(merged, list[i])
	}
	return merged
}

// mergePorts makes one of the parts about a service whose ports were reported
// apart.
func mergePorts(parts []taken) []taken {
	slices.SortStableFunc(parts, func(a, b taken) int { return a.service.Compare(b.service) })
	merged := parts[:0]
	for _, p := range parts {
		if n := len(merged); n > 0 && merged[n-1].service == p.service {
			m := &merged[n-1]
			m.interval = max(m.interval, p.interval)
			m.entries = mergeEntries(append(m.entries, p.entries...))
			continue
		}
		merged = append(merged, p)
	}
	return merged
}
