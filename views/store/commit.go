package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/sightlinedev/sightline/registry"
)

// request is one Commit on its way to the writer.
type request struct {
	rows  []encoded
	audit []Record
	base  uint64     // highest id or revision in it
	done  chan error // size 1
}

// encoded is a row in its bytes; value is nil for a deletion.
type encoded struct {
	key, value    []byte
	keepsPrevious bool
}

// group is the requests that are synced together.
type group struct {
	number   uint64
	refill   bool // reserve another block of versions
	requests []*request
	once     sync.Once
}

func (g *group) settle(err error) {
	g.once.Do(func() {
		for _, r := range g.requests {
			r.done <- err
		}
	})
}

// Commit writes rows and audit records in one batch, all or nothing, and
// returns nil once they are on the disk. Requests that arrive together share a
// sync.
//
// It returns an *Unavailable at once while the store is not writable. When the
// disk fills up while a commit is under way, Commit goes on waiting until the
// store has reopened and knows what became of it; when the disk fails it
// returns an *Unavailable with InDoubt. When ctx ends first, its error is
// returned and the commit may still happen.
func (s *Store) Commit(ctx context.Context, rows []registry.Row, audit []Record) error {
	r := &request{audit: audit, done: make(chan error, 1), rows: make([]encoded, 0, len(rows))}
	for _, row := range rows {
		if err := r.add(row); err != nil {
			return err
		}
	}
	if st := s.Status(); st.State != Writable {
		return &Unavailable{Status: st}
	}
	s.mu.Lock()
	fs := s.opening.fs
	s.mu.Unlock()
	select {
	case s.requests <- r:
	case <-fs.frozen:
		return &Unavailable{Status: fs.status}
	case <-s.ctx.Done():
		return &Unavailable{Status: Status{State: Closed}}
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *request) add(row registry.Row) error {
	e := encoded{key: rowKey(prefixDesired, row.Key), keepsPrevious: keepsPrevious(row.Key.Kind)}
	r.base = max(r.base, uint64(row.Key.UID), highestID(row))
	if !row.Delete {
		var err error
		if e.value, err = encodeRow(e.key, row); err != nil {
			return err
		}
	}
	r.rows = append(r.rows, e)
	return nil
}

// write is the goroutine that syncs. It ends with its opening; when that
// freezes under it, it stays parked in the file system for ever.
func (s *Store) write(o *opening) {
	defer o.wg.Done()
	for {
		select {
		case <-o.stop:
			return
		case <-o.fs.frozen:
			return
		case <-s.refill:
			s.writeGroup(o, &group{refill: true})
		case r := <-s.requests:
			s.writeGroup(o, s.gather(r))
		}
	}
}

// gather takes the requests that are waiting already.
func (s *Store) gather(first *request) *group {
	g := &group{requests: []*request{first}}
	for len(g.requests) < s.cfg.CommitGroup {
		select {
		case r := <-s.requests:
			g.requests = append(g.requests, r)
		default:
			return g
		}
	}
	return g
}

func (s *Store) writeGroup(o *opening, g *group) {
	began := time.Now()
	n := o.numbers
	n.Commit++
	g.number = n.Commit
	// From here until it is settled the group is in doubt: should the store
	// freeze, this goroutine may not come back, and the supervisor settles it.
	s.mu.Lock()
	s.doubt = g
	s.mu.Unlock()
	if o.isFrozen() {
		g.settle(&Unavailable{Status: o.fs.status})
		return
	}
	err := s.commitGroup(o, g, &n)
	if err != nil && o.isFrozen() {
		err = &Unavailable{Status: o.fs.status} // not in doubt: nothing was handed to the disk
	}
	s.mu.Lock()
	if s.doubt == g {
		s.doubt = nil
	}
	s.mu.Unlock()
	if err == nil {
		o.numbers = n
		if g.refill {
			s.tellReserved(n.Seq)
		}
	}
	g.settle(err)
	if tell := s.cfg.Events.Committed; tell != nil && err == nil {
		tell(len(g.requests), time.Since(began))
	}
}

func (s *Store) commitGroup(o *opening, g *group, n *numbers) error {
	b := o.db.NewBatch()
	newest := make(map[string][]byte) // rows of this group by key
	for _, r := range g.requests {
		n.Base = max(n.Base, r.base)
		for _, e := range r.rows {
			if err := addRow(b, o, newest, e); err != nil {
				return err
			}
		}
		for _, rec := range r.audit {
			if err := s.addAudit(b, rec); err != nil {
				return err
			}
		}
	}
	if g.refill {
		n.Seq += seqBlock
	}
	if err := n.addTo(b); err != nil {
		return err
	}
	return b.Commit(pebble.Sync)
}

// addRow adds one row and keeps, beside it, the good value that it replaces.
// The first value of a row is its own previous one, so that every row can be
// restored when it does not decode.
func addRow(b *pebble.Batch, o *opening, newest map[string][]byte, e encoded) error {
	previousKey := append([]byte{prefixPrevious}, e.key[1:]...)
	if e.value == nil {
		newest[string(e.key)] = nil
		return errors.Join(b.Delete(e.key, nil), b.Delete(previousKey, nil))
	}
	if !e.keepsPrevious {
		return b.Set(e.key, e.value, nil)
	}
	old, known := newest[string(e.key)]
	if !known {
		var err error
		if old, err = getCopy(o.db, e.key); err != nil && o.isFrozen() {
			return err
		} // a damaged block is no reason to refuse the row that replaces it
	}
	if _, err := unseal(e.key, old); err != nil {
		old = e.value
	}
	newest[string(e.key)] = e.value
	return errors.Join(b.Set(e.key, e.value, nil), b.Set(previousKey, old, nil))
}

// getCopy returns the value under key, nil when there is none.
func getCopy(r pebble.Reader, key []byte) ([]byte, error) {
	value, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c := append([]byte{}, value...)
	return c, closer.Close()
}
