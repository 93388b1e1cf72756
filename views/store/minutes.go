package store

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/sightlinedev/sightline/registry"
)

// trimMinutesEvery is how often minutes that are too old are looked for: they
// are sorted by service, so that each service's have to be found.
const trimMinutesEvery = time.Hour

// minuteKey sorts a service's minutes by their start.
func minuteKey(n registry.Name, start time.Time) []byte {
	return binary.BigEndian.AppendUint64(nameKey(prefixMinute, n), uint64(max(start.Unix(), 0)))
}

// SaveMinute writes what a service's evidence of one minute was behind, without
// sync. The bytes are the evaluator's own (health.Minute). It never waits. The
// caller must not change record afterwards.
func (s *Store) SaveMinute(n registry.Name, start time.Time, record []byte) {
	s.queue(Minutes, int64(64+len(record)), func(_ pebble.Reader, b *pebble.Batch) error {
		key := minuteKey(n, start)
		return b.Set(key, seal(key, record), nil)
	})
}

// Minutes calls visit for the service's minutes that began at from or later and
// before until, oldest first, until it returns false. A record is valid during
// the call only. Damaged ones are left out and counted: minutes decide nothing.
func (s *Store) Minutes(ctx context.Context, n registry.Name, from, until time.Time, visit func(start time.Time, record []byte) bool) (damaged int, err error) {
	opts := &pebble.IterOptions{LowerBound: minuteKey(n, from), UpperBound: minuteKey(n, until)}
	err = s.scan(ctx, opts, false, func(key, value []byte) bool {
		record, sealErr := unseal(key, value)
		if sealErr != nil {
			damaged++
			return true
		}
		return visit(time.Unix(int64(binary.BigEndian.Uint64(key[len(key)-8:])), 0), record)
	})
	return damaged, err
}

// trimMinutes drops minutes older than MinuteAge, service by service.
func (r *retention) trimMinutes(now time.Time) (err error) {
	if now.Sub(r.minutesAt) < trimMinutesEvery && !now.Before(r.minutesAt) {
		return nil
	}
	r.minutesAt = now
	it, err := r.o.db.NewIter(prefixRange(prefixMinute))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	horizon := now.Add(-r.s.cfg.MinuteAge)
	for ok := it.First(); ok; {
		key := it.Key()
		n, start, named := cutName(key[1:])
		if !named || len(start) != 8 { // nobody's
			if err := r.o.db.Delete(key, pebble.NoSync); err != nil {
				return err
			}
			ok = it.Next()
			continue
		}
		if binary.BigEndian.Uint64(start) < uint64(max(horizon.Unix(), 0)) {
			if err := r.o.db.DeleteRange(nameKey(prefixMinute, n), minuteKey(n, horizon), pebble.NoSync); err != nil {
				return err
			}
		}
		ok = it.SeekGE(binary.BigEndian.AppendUint64(nameKey(prefixMinute, n), math.MaxUint64))
	}
	return it.Error()
}
