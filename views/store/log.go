package store

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// Record is one entry of the audit log, which is only ever appended to. The
// records of privileged acts, refused ones too, ride in the commit of the act.
type Record struct {
	// Seq is the entry's number; the store assigns it. Numbers rise and may have gaps.
	Seq uint64 `json:",omitempty"`
	// Previous is the hash of the entry before, for a chain; no entry has it yet.
	Previous []byte `json:",omitempty"`

	At       time.Time
	Actor    string // SPIFFE ID, or a source of rows
	Address  string `json:",omitempty"` // where the actor spoke from
	Action   string // the RPC, or what a source did
	Target   string // what it was about, as people write it
	Allowed  bool
	Reason   string            `json:",omitempty"` // the rule that refused it, or the justification given
	Revision uint64            `json:",omitempty"` // registry revision of its effect
	Details  map[string]string `json:",omitempty"`
}

// Transition is one change of a verdict.
type Transition struct {
	At      time.Time
	Name    registry.Name
	UID     registry.UID
	From    health.State
	To      health.State
	Member  bool
	Rule    health.Rule
	Detail  string
	Removal registry.Removal `json:",omitempty"` // set when the instance is gone
	Version views.Version    // in which it was published; zero when it was not
}

func auditKey(seq uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefixAudit}, seq)
}

func (s *Store) addAudit(b *pebble.Batch, r Record) error {
	r.Seq = s.auditSeq.Add(1)
	key := auditKey(r.Seq)
	value, err := sealJSON(key, r)
	if err != nil {
		return err
	}
	return b.Set(key, value, nil)
}

// AppendAudit writes a record behind: for acts without privilege. It never
// waits; a record that does not fit the queue is dropped and counted.
func (s *Store) AppendAudit(r Record) {
	s.queue(AuditRecords, 256, func(_ pebble.Reader, b *pebble.Batch) error { return s.addAudit(b, r) })
}

// AppendTransition writes a transition behind, like AppendAudit.
func (s *Store) AppendTransition(t Transition) {
	s.queue(Transitions, 256, func(_ pebble.Reader, b *pebble.Batch) error {
		key := binary.BigEndian.AppendUint64([]byte{prefixTransition}, uint64(t.At.UnixNano()))
		key = binary.BigEndian.AppendUint64(key, s.transitionSeq.Add(1))
		value, err := sealJSON(key, t)
		if err != nil {
			return err
		}
		return b.Set(key, value, nil)
	})
}

// Audit returns up to limit records with numbers from seq on, oldest first.
// Records that do not decode are left out and counted.
func (s *Store) Audit(ctx context.Context, seq uint64, limit int) (records []Record, damaged int, err error) {
	opts := prefixRange(prefixAudit)
	opts.LowerBound = auditKey(seq)
	err = s.scan(ctx, opts, false, func(key, value []byte) bool {
		var r Record
		if unsealJSON(key, value, &r) != nil {
			damaged++
			return true
		}
		records = append(records, r)
		return len(records) < limit
	})
	return records, damaged, err
}

// TransitionFilter chooses transitions; zero fields choose all.
type TransitionFilter struct {
	Name  registry.Name
	UID   registry.UID
	Since time.Time // at or after
	Until time.Time // before
	Limit int       // 0: 1000
}

// Transitions returns the newest transitions that the filter chooses, newest
// first. Records that do not decode are left out and counted.
func (s *Store) Transitions(ctx context.Context, f TransitionFilter) (found []Transition, damaged int, err error) {
	opts := prefixRange(prefixTransition)
	if !f.Since.IsZero() {
		opts.LowerBound = binary.BigEndian.AppendUint64([]byte{prefixTransition}, uint64(f.Since.UnixNano()))
	}
	if !f.Until.IsZero() {
		opts.UpperBound = binary.BigEndian.AppendUint64([]byte{prefixTransition}, uint64(f.Until.UnixNano()))
	}
	if f.Limit == 0 {
		f.Limit = 1000
	}
	err = s.scan(ctx, opts, true, func(key, value []byte) bool {
		var t Transition
		switch {
		case unsealJSON(key, value, &t) != nil:
			damaged++
			return true
		case !f.Name.IsZero() && t.Name != f.Name, f.UID != 0 && t.UID != f.UID:
			return true
		}
		found = append(found, t)
		return len(found) < f.Limit
	})
	return found, damaged, err
}

// scan calls visit for the pairs in range until it returns false. Key and
// value are valid during the call only.
func (s *Store) scan(ctx context.Context, opts *pebble.IterOptions, backwards bool, visit func(key, value []byte) bool) (err error) {
	db, release, err := s.reader()
	if err != nil {
		return err
	}
	defer release()
	it, err := db.NewIterWithContext(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	valid := it.First
	next := it.Next
	if backwards {
		valid, next = it.Last, it.Prev
	}
	for ok := valid(); ok; ok = next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if !visit(it.Key(), value) {
			break
		}
	}
	return it.Error()
}

func lastAudit(r pebble.Reader) (seq uint64, err error) {
	it, err := r.NewIter(prefixRange(prefixAudit))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	if it.Last() && len(it.Key()) == 9 {
		seq = binary.BigEndian.Uint64(it.Key()[1:])
	}
	return seq, it.Error()
}
