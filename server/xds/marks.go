package xds

import (
	"slices"
	"sync"

	"github.com/sightlinedev/sightline/views"
)

// mark says that a name is dirty: the flags of a record.
type mark struct {
	id    nameID
	flags flag
}

// serviceMark tells a stream with a wildcard, or with routes, that a service
// came, went or was configured anew; lane is withdrawal or addition.
type serviceMark struct {
	name views.Name
	lane flag
}

// doorbell is where publishers reach a stream: what is dirty, and whether the
// stream waits for a worker. Its lock is held for a few instructions only, so
// that a stream that is being built or sent never delays a publisher.
type doorbell struct {
	mu       sync.Mutex
	marks    []mark
	services []serviceMark
	limit    int  // marks beyond which duplicates are merged
	rescope  bool // look at every name and service: the policy changed, or many services did

	waiting [2]bool // in the pool's queue, by priority
	busy    bool    // a worker, or a goroutine of its own, serves the stream
	again   bool    // rung while busy
}

// add records a mark. Memory is bounded by names: duplicates merge.
func (d *doorbell) add(m mark) {
	if len(d.marks) >= max(d.limit, 32) {
		d.marks = mergeMarks(d.marks)
		d.limit = 2 * len(d.marks)
	}
	d.marks = append(d.marks, m)
}

// manyServices is how many service marks are kept apart before the stream looks
// at every service instead.
const manyServices = 64

func (d *doorbell) addService(m serviceMark) {
	if d.rescope {
		return
	}
	if len(d.services) == manyServices {
		d.services, d.rescope = nil, true
		return
	}
	d.services = append(d.services, m)
}

func mergeMarks(marks []mark) []mark {
	slices.SortFunc(marks, func(a, b mark) int { return int(int64(a.id) - int64(b.id)) })
	out := marks[:0]
	for _, m := range marks {
		if n := len(out); n > 0 && out[n-1].id == m.id {
			out[n-1].flags |= m.flags
			continue
		}
		out = append(out, m)
	}
	return out
}

// take empties the doorbell.
func (d *doorbell) take() (marks []mark, services []serviceMark, rescope bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	marks, services, rescope = d.marks, d.services, d.rescope
	d.marks, d.services, d.rescope, d.limit = nil, nil, false, 0
	return marks, services, rescope
}

// ring asks for the stream to be served and reports whether it must be put into
// the pool's queue of that priority. The caller holds mu.
func (d *doorbell) ring(p priority) bool {
	if d.busy {
		d.again = true
		return false
	}
	if d.waiting[p] {
		return false
	}
	d.waiting[p] = true
	return true
}

// begin takes the stream out of a queue and reports whether it is the caller's
// to serve.
func (d *doorbell) begin(p priority) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting[p] = false
	if d.busy {
		d.again = true
		return false
	}
	d.busy, d.again = true, false
	return true
}

// done reports whether the stream may be left alone; if it was rung meanwhile,
// it is still the caller's.
func (d *doorbell) done() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.again {
		d.again = false
		return false
	}
	d.busy = false
	return true
}
