package views

import "sort"

// RingSize is how many of the region's newest changes are remembered (STORE.md §2).
const RingSize = 16384

// ring holds the newest changes, in ascending order of version.
type ring struct {
	changes []Change // grows to RingSize, then wraps
	start   int      // index of the oldest
	floor   Version  // everything above it is in the ring
	// restored is the newest version that the store remembered at the start:
	// what a former process published after it is not known here.
	restored Version
	epoch    uint64
}

func newRing(epoch uint64, recent []Change) ring {
	r := ring{epoch: epoch, floor: Version{Epoch: epoch}}
	if len(recent) > 0 {
		// The store's list may begin anywhere: only what lies after its first
		// entry is known to be whole.
		r.floor = recent[0].Version
		r.restored = recent[len(recent)-1].Version
		for _, c := range recent {
			r.add(c)
		}
	}
	return r
}

func (r *ring) add(c Change) {
	if len(r.changes) < RingSize {
		r.changes = append(r.changes, c)
		return
	}
	r.floor = r.changes[r.start].Version
	r.changes[r.start] = c
	r.start = (r.start + 1) % RingSize
}

// since returns the changes above v, oldest first. It is not ok when the ring
// does not reach back to v, or v is not a point of this region's history.
func (r *ring) since(v, newest Version) (changes []Change, ok bool) {
	foreign := v.Epoch != r.epoch && r.restored.Less(v)
	if v.Less(r.floor) || newest.Less(v) || foreign {
		return nil, false
	}
	n := len(r.changes)
	at := func(i int) Change { return r.changes[(r.start+i)%n] }
	first := sort.Search(n, func(i int) bool { return v.Less(at(i).Version) })
	changes = make([]Change, 0, n-first)
	for i := first; i < n; i++ {
		changes = append(changes, at(i))
	}
	return changes, true
}
