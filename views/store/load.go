package store

import (
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/sightlinedev/sightline/registry"
)

// Loaded is what a start finds on the disk.
type Loaded struct {
	// Rows and Damaged are for registry.Load. A damaged row whose previous good
	// value could be read is in both: that value governs until the row is
	// written anew, and the damage is worth its one alarm. A contract's previous
	// value is a row of its own.
	Rows    []registry.Row
	Damaged []registry.Damaged
	// Alarms are damages that belong to no row: counters, foreign keys.
	Alarms []error
	// Base is for registry.Load: at least every id and revision ever written,
	// and Unix seconds × 2^20.
	Base uint64
	// Epoch of this start (DESIGN.md §8). Version numbers from Next on are this
	// start's; those below Reserved are reserved on the disk.
	Epoch, Next, Reserved uint64
	// Status is that of the store after the start: it may be full or frozen.
	Status Status

	auditSeq uint64
}

// raw is one stored row before and after it is decoded.
type raw struct {
	key, value []byte
	id         registry.RowKey
	row        registry.Row
	err        error
}

// load reads everything desired, and the counters with what this start makes of them.
func (o *opening) load(now time.Time) (Loaded, numbers, error) {
	var l Loaded
	n, ok, numbersErr := readNumbers(o.db)
	rows, err := readRows(o.db)
	if err != nil {
		return l, n, err
	}
	decodeAll(rows)
	for i := range rows {
		l.take(&rows[i], o.db)
	}
	if !ok {
		// Both copies are damaged: what was published bounds them.
		if n.Epoch, n.Seq, err = highestVersion(o.db); err != nil {
			return l, n, err
		}
	}
	if numbersErr != nil {
		l.Alarms = append(l.Alarms, numbersErr)
	}
	seconds := uint64(max(now.Unix(), 0))
	n.Epoch, n.Base = max(n.Epoch+1, seconds), max(n.Base, l.Base)
	l.Epoch, l.Base, l.Next = n.Epoch, max(n.Base, seconds*idsPerSecond), max(n.Seq, 1)
	l.auditSeq, err = lastAudit(o.db)
	return l, n, err
}

func readRows(r pebble.Reader) (rows []raw, err error) {
	it, err := r.NewIter(prefixRange(prefixDesired))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for valid := it.First(); valid; valid = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		both := append(append(make([]byte, 0, len(it.Key())+len(value)), it.Key()...), value...)
		rows = append(rows, raw{key: both[:len(it.Key()):len(it.Key())], value: both[len(it.Key()):]})
	}
	return rows, it.Error()
}

// decodeAll decodes on every processor: JSON is most of the time of a start.
func decodeAll(rows []raw) {
	workers := runtime.GOMAXPROCS(0)
	part := (len(rows) + workers - 1) / workers
	var wg sync.WaitGroup
	for len(rows) > 0 {
		n := min(part, len(rows))
		mine := rows[:n]
		rows = rows[n:]
		wg.Go(func() {
			for i := range mine {
				r := &mine[i]
				if r.id, r.err = parseRowKey(r.key); r.err == nil {
					r.row, r.err = decodeRow(r.id, r.key, r.value)
				}
			}
		})
	}
	wg.Wait()
}

// take adds one row, or its previous good value and what is wrong with it.
func (l *Loaded) take(r *raw, db pebble.Reader) {
	l.Base = max(l.Base, uint64(r.id.UID))
	if r.err == nil {
		l.Base = max(l.Base, highestID(r.row))
		l.Rows = append(l.Rows, r.row)
		return
	}
	if r.id.Kind == 0 {
		l.Alarms = append(l.Alarms, r.err)
		return
	}
	d := registry.Damaged{Key: r.id, Detail: "the stored row cannot be read: " + r.err.Error() + "; write it again"}
	if keepsPrevious(r.id.Kind) {
		old, err := getCopy(db, append([]byte{prefixPrevious}, r.key[1:]...))
		if row, oldErr := decodeRow(r.id, r.key, old); err == nil && oldErr == nil {
			l.Rows = append(l.Rows, row)
			d.Detail += "; its previous good value is used meanwhile"
		}
	}
	l.Damaged = append(l.Damaged, d)
}

// highestID is the highest id or revision that a row holds.
func highestID(r registry.Row) uint64 {
	switch {
	case r.Service != nil:
		return r.Service.Revision
	case r.Instance != nil:
		return max(uint64(r.Instance.UID), r.Instance.Revision)
	case r.Contract != nil:
		return r.Contract.Revision
	case r.Profile != nil:
		return r.Profile.Revision
	case r.Counters != nil:
		return max(uint64(r.Counters.LastUID), r.Counters.LastRevision)
	}
	return 0
}

// prefixRange bounds an iterator to the keys of one prefix.
func prefixRange(prefix byte) *pebble.IterOptions {
	return &pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}}
}
