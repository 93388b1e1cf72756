package store

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/sightlinedev/sightline/registry"
)

// Loaded is what a start finds on the disk.
type Loaded struct {
	Services  []*registry.Service
	Instances []*registry.Instance
	Contracts []*registry.Contract
	Profiles  []*registry.Profile
	// Alarms are the rows that did not decode; each is told once, at the start.
	Alarms []Alarm
	// Epoch of this start; Seq: version numbers above it are this start's.
	Epoch, Seq uint64
	// NextUID is the first instance id to assign: above every id ever written,
	// unreadable rows included, and at least Unix seconds × 2^20.
	NextUID registry.UID
	// Revision is the highest registry revision ever written.
	Revision uint64
	// Status is that of the store after the start: it may be full or frozen.
	Status Status

	auditSeq uint64
}

// Alarm is a stored row that does not decode. When Restored is set its
// previous good value was loaded in its place; otherwise the row is missing
// from Loaded, and its service must not be published without it.
type Alarm struct {
	Row      Row // Value is nil
	Key      string
	Err      error
	Restored bool
}

// Error says which row is damaged and what was done about it.
func (a Alarm) Error() string {
	done := "it is left out; write it again"
	if a.Restored {
		done = "its previous good value is used; write it again"
	}
	name := fmt.Sprintf("row %q", a.Key)
	if a.Row.Kind != 0 {
		name = a.Row.String()
	}
	return fmt.Sprintf("stored %s cannot be read: %v: %s", name, a.Err, done)
}

// raw is one stored row before it is decoded.
type raw struct {
	key, value []byte
	row        Row
	err        error
}

// load reads everything desired, and the counters with what this start makes of them.
func (o *opening) load(now time.Time) (Loaded, numbers, error) {
	n, ok, numbersErr := readNumbers(o.db)
	var l Loaded
	rows, err := readRows(o.db)
	if err != nil {
		return l, n, err
	}
	decodeAll(rows)
	for i := range rows {
		l.take(&rows[i], o.db)
	}
	if !ok {
		// Both copies are damaged: what is published and logged bounds them.
		if n.Epoch, n.Seq, err = highestVersion(o.db); err != nil {
			return l, n, err
		}
	}
	if numbersErr != nil {
		l.Alarms = append(l.Alarms, Alarm{Key: "counters", Err: numbersErr, Restored: ok})
	}
	seconds := uint64(max(now.Unix(), 0))
	l.Epoch = max(n.Epoch+1, seconds)
	n.UID = max(n.UID, uint64(l.NextUID), seconds*uidsPerSecond)
	l.NextUID = registry.UID(n.UID + 1)
	n.Revision = max(n.Revision, l.Revision)
	l.Revision = n.Revision
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
				if r.row, r.err = parseRowKey(r.key); r.err == nil {
					r.err = r.row.decode(r.key, r.value)
				}
			}
		})
	}
	wg.Wait()
}

// take adds one row, its previous good value when it does not decode, or an alarm.
func (l *Loaded) take(r *raw, db pebble.Reader) {
	if r.err != nil {
		a := Alarm{Row: Row{Kind: r.row.Kind, Name: r.row.Name, UID: r.row.UID}, Key: string(r.key), Err: r.err}
		old, err := getCopy(db, append([]byte{prefixPrevious}, r.key[1:]...))
		a.Restored = err == nil && old != nil && r.row.Kind != 0 && r.row.decode(r.key, old) == nil
		l.Alarms = append(l.Alarms, a)
		l.NextUID = max(l.NextUID, a.Row.UID)
		if !a.Restored {
			return
		}
	}
	l.NextUID, l.Revision = max(l.NextUID, r.row.UID), max(l.Revision, r.row.revision())
	switch v := r.row.Value.(type) {
	case *registry.Service:
		l.Services = append(l.Services, v)
	case *registry.Instance:
		l.Instances = append(l.Instances, v)
	case *registry.Contract:
		l.Contracts = append(l.Contracts, v)
	case *registry.Profile:
		l.Profiles = append(l.Profiles, v)
	}
}

func (r Row) revision() uint64 {
	switch v := r.Value.(type) {
	case *registry.Service:
		return v.Revision
	case *registry.Instance:
		return v.Revision
	case *registry.Contract:
		return v.Revision
	case *registry.Profile:
		return v.Revision
	}
	return 0
}

// prefixRange bounds an iterator to the keys of one prefix.
func prefixRange(prefix byte) *pebble.IterOptions {
	return &pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}}
}
