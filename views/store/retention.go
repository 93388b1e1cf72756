package store

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// retention drops what is too old or too much. It belongs to the write-behind
// goroutine of one opening.
type retention struct {
	s     *Store
	o     *opening
	bytes int64 // of superseded views, as of the last sweep's count
	ring  int   // entries, at most
	// minutesAt is when minutes were last looked at; zero: not in this opening.
	minutesAt time.Time
}

func (s *Store) openRetention(o *opening) *retention { return &retention{s: s, o: o, ring: -1} }

// note counts what was written, so that the ring is cut before the next sweep
// when changes come fast.
func (r *retention) note(items []behindItem) {
	if r.ring < 0 {
		return
	}
	for _, it := range items {
		if it.queue == Views {
			r.ring++
		}
	}
	if r.ring > 2*r.s.cfg.RingLength {
		r.report(r.trimRing())
	}
}

func (r *retention) report(err error) {
	if err != nil {
		r.s.backgroundError(err)
	}
}

// cutRing empties the ring, whose entries up to now have a hole after them, and
// marks the epoch: no view stored in it can be taken for the newest of its
// service any more.
func (r *retention) cutRing(b *pebble.Batch) {
	r.report(errors.Join(
		b.DeleteRange([]byte{prefixChange}, []byte{prefixChange + 1}, nil),
		setJSON(b, []byte{prefixGap}, r.s.epoch),
	))
}

func (r *retention) sweep(now time.Time) {
	if r.o.isFrozen() {
		return
	}
	r.report(errors.Join(r.trimRing(), r.trimViews(now), r.trimTransitions(now), r.trimMinutes(now)))
}

// trimRing keeps the newest RingLength changes.
func (r *retention) trimRing() (err error) {
	it, err := r.o.db.NewIter(prefixRange(prefixChange))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	r.ring = 0
	for ok := it.Last(); ok; ok = it.Prev() {
		if r.ring == r.s.cfg.RingLength {
			end := append(append([]byte{}, it.Key()...), 0)
			return r.o.db.DeleteRange([]byte{prefixChange}, end, pebble.NoSync)
		}
		r.ring++
	}
	return it.Error()
}

// trimViews drops superseded views and tombstones older than ViewAge, and the
// oldest while they take more than ViewBytes.
func (r *retention) trimViews(now time.Time) error {
	if err := r.count(); err != nil {
		return err
	}
	horizon := uint64(now.Add(-r.s.cfg.ViewAge).UnixNano())
	for {
		b := r.o.db.NewBatch()
		n, err := r.collect(b, horizon)
		if err != nil || n == 0 {
			return errors.Join(err, b.Close())
		}
		if err := b.Commit(pebble.NoSync); err != nil {
			return err
		}
		if n < sweepStep {
			return nil
		}
	}
}

// sweepStep bounds one batch of deletions.
const sweepStep = 512

// count sums the superseded views' bytes.
func (r *retention) count() (err error) {
	it, err := r.o.db.NewIter(prefixRange(prefixExpiry))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	r.bytes = 0
	for ok := it.First(); ok; ok = it.Next() {
		size, err := r.size(it.Key())
		if err != nil {
			return err
		}
		r.bytes += size
	}
	return it.Error()
}

func (r *retention) size(expiry []byte) (int64, error) {
	if len(expiry) < 9 {
		return 0, nil
	}
	value, closer, err := r.o.db.Get(expiry[9:])
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return int64(len(value)), closer.Close()
}

func (r *retention) collect(b *pebble.Batch, horizon uint64) (n int, err error) {
	it, err := r.o.db.NewIter(prefixRange(prefixExpiry))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok && n < sweepStep; ok = it.Next() {
		key := it.Key()
		old := len(key) < 9 || binary.BigEndian.Uint64(key[1:9]) <= horizon
		if !old && r.bytes <= r.s.cfg.ViewBytes {
			break
		}
		if err := r.drop(b, key); err != nil {
			return n, err
		}
		n++
	}
	return n, it.Error()
}

// drop deletes one superseded view, and with a tombstone its service's newest entry.
func (r *retention) drop(b *pebble.Batch, expiry []byte) error {
	if err := b.Delete(expiry, nil); err != nil || len(expiry) < 9 {
		return err
	}
	size, err := r.size(expiry)
	if err != nil {
		return err
	}
	r.bytes -= size
	key := expiry[9:]
	n, rest, ok := cutName(key[1:])
	version, ok2 := cutVersion(rest)
	if ok && ok2 {
		latestKey := nameKey(prefixLatest, n)
		value, err := getCopy(r.o.db, latestKey)
		if err != nil {
			return err
		}
		var l latest
		if value != nil && unsealJSON(latestKey, value, &l) == nil && l.Version == version {
			if !l.Deleted {
				return nil // published again under its old version: still the newest
			}
			if err := b.Delete(latestKey, nil); err != nil {
				return err
			}
		}
	}
	return b.Delete(key, nil)
}

func (r *retention) trimTransitions(now time.Time) error {
	end := binary.BigEndian.AppendUint64([]byte{prefixTransition}, uint64(now.Add(-r.s.cfg.TransitAge).UnixNano()))
	return r.o.db.DeleteRange([]byte{prefixTransition}, end, pebble.NoSync)
}
