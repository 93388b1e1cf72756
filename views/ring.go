package views

import "sort"

// RingSize is how many of the region's newest changes are remembered at least
// (STORE.md §2); up to twice as many may be.
const RingSize = 16384

// ring is the region's newest changes, in ascending order of version. It is a
// value that readers may keep: adding to it writes beyond what they see, and
// moves to other memory when that is full.
type ring struct {
	changes []Change
	floor   Version // everything above it is in changes
	newest  Version // every change at or below it is in the Snapshot
	// restored is the newest version that the store remembered at the start:
	// what a former process published after it is not known here.
	restored Version
	epoch    uint64
}

// newRing starts from what the store remembers; newest is the last version that
// can have been handed out before the start.
func newRing(newest Version, recent []Change) *ring {
	r := &ring{epoch: newest.Epoch, floor: Version{Epoch: newest.Epoch}, newest: newest}
	if len(recent) > 0 {
		// The list may begin anywhere: only what lies after its first entry is
		// known to be whole.
		r.floor, r.restored = recent[0].Version, recent[len(recent)-1].Version
		r.changes = append(r.changes, recent[1:]...)
	}
	return r
}

// add returns the ring with one more change. Only the newest ring may be added to.
func (r *ring) add(c Change) *ring {
	next := *r
	if len(r.changes) >= 2*RingSize {
		dropped := len(r.changes) - RingSize
		next.floor = r.changes[dropped-1].Version
		next.changes = append(make([]Change, 0, 2*RingSize), r.changes[dropped:]...)
	}
	next.changes = append(next.changes, c)
	next.newest = c.Version
	return &next
}

// since returns the changes above v, oldest first, in memory that is shared. It
// is not ok when the ring does not reach back to v, or v is not a point of this
// region's history.
func (r *ring) since(v Version) (changes []Change, ok bool) {
	foreign := v.Epoch != r.epoch && r.restored.Less(v)
	if v.Less(r.floor) || r.newest.Less(v) || foreign {
		return nil, false
	}
	first := sort.Search(len(r.changes), func(i int) bool { return v.Less(r.changes[i].Version) })
	return r.changes[first:len(r.changes):len(r.changes)], true
}
