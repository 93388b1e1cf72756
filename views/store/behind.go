package store

import (
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// behindQueue holds what is written behind the publication. It is bounded in
// records and bytes; what does not fit is dropped and counted, because its
// senders are on the path of a withdrawal and must never wait for a disk.
type behindQueue struct {
	ready chan struct{} // size 1

	mu        sync.Mutex
	items     []behindItem
	bytes     int64
	maxItems  int
	maxBytes  int64
	viewsLost bool // a view was dropped since the last batch: the ring has a hole
	closed    bool
}

type behindItem struct {
	queue Queue
	cost  int64
	add   func(db pebble.Reader, b *pebble.Batch) error
}

func (q *behindQueue) init(items int, bytes int64) {
	q.ready, q.maxItems, q.maxBytes = make(chan struct{}, 1), items, bytes
}

func (q *behindQueue) put(it behindItem) bool {
	q.mu.Lock()
	fits := !q.closed && len(q.items) < q.maxItems && q.bytes+it.cost <= q.maxBytes
	if fits {
		q.items = append(q.items, it)
		q.bytes += it.cost
	} else if it.queue == Views {
		q.viewsLost = true
	}
	q.mu.Unlock()
	if fits {
		select {
		case q.ready <- struct{}{}:
		default:
		}
	}
	return fits
}

// take removes up to maxBytes of records, at least one if there is any.
func (q *behindQueue) take(maxBytes int64) (items []behindItem, viewsLost bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, bytes := 0, int64(0)
	for n < len(q.items) && (n == 0 || bytes+q.items[n].cost <= maxBytes) {
		bytes += q.items[n].cost
		n++
	}
	items, q.items = q.items[:n:n], q.items[n:]
	if len(q.items) == 0 {
		q.items = nil // lets go of what was sent
	}
	q.bytes -= bytes
	viewsLost, q.viewsLost = q.viewsLost, false
	return items, viewsLost
}

func (q *behindQueue) lost(n int) {
	if n > 0 {
		q.mu.Lock()
		q.viewsLost = true
		q.mu.Unlock()
	}
}

func (q *behindQueue) dropAll(dropped func(Queue)) {
	q.mu.Lock()
	items := q.items
	q.items, q.bytes, q.closed = nil, 0, true
	q.mu.Unlock()
	for _, it := range items {
		if dropped != nil {
			dropped(it.queue)
		}
	}
}

// queue hands one record to the write-behind goroutine.
func (s *Store) queue(q Queue, cost int64, add func(db pebble.Reader, b *pebble.Batch) error) {
	if !s.behind.put(behindItem{queue: q, cost: cost, add: add}) {
		s.dropped(q)
	}
}

func (s *Store) dropped(q Queue) {
	if tell := s.cfg.Events.Dropped; tell != nil {
		tell(q)
	}
}

// behindBatch is about how many bytes one write-behind batch holds.
const behindBatch = 1 << 20

// sweepEvery is how often what is too old is dropped from the store.
const sweepEvery = time.Minute

// writeBehind is the goroutine that writes what nobody waits for. It ends with its
// opening, after writing what is queued; when that freezes under it, it stays
// parked, and the next opening's goroutine goes on with the queue.
func (s *Store) writeBehind(o *opening) {
	defer o.wg.Done()
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	r := s.openRetention(o)
	for {
		select {
		case <-o.fs.frozen:
			return
		case <-o.stop:
			for s.writeQueued(o, r) {
			}
			return
		case <-s.behind.ready:
			for !o.isFrozen() && s.writeQueued(o, r) {
			}
		case now := <-ticker.C:
			r.sweep(now)
		}
	}
}

// writeQueued writes one batch and reports whether there was anything to write.
func (s *Store) writeQueued(o *opening, r *retention) bool {
	items, viewsLost := s.behind.take(behindBatch)
	if len(items) == 0 {
		return false
	}
	b := o.db.NewBatch()
	if viewsLost {
		r.cutRing(b)
	}
	for _, it := range items {
		if err := it.add(o.db, b); err != nil {
			s.dropped(it.queue)
			s.backgroundError(err)
			if it.queue == Views {
				s.behind.lost(1)
			}
		}
	}
	// Views are synced, since Pebble keeps what is not in the process's own
	// memory: a killed process would come back with a view that callers have
	// left behind. Nobody waits for it; it is one sync for all that was queued.
	sync := pebble.NoSync
	if slices.ContainsFunc(items, func(it behindItem) bool { return it.queue == Views }) {
		sync = pebble.Sync
	}
	if err := b.Commit(sync); err != nil {
		for _, it := range items {
			s.dropped(it.queue)
		}
		s.behind.lost(len(items))
		s.backgroundError(err)
	}
	r.note(items)
	return true
}
