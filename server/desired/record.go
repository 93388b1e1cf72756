package desired

import (
	"context"
	"time"
)

// Record is one entry of the audit log: a privileged attempt. The Writer fills
// in Allowed, Revision and, for a refusal, Reason.
type Record struct {
	At       time.Time
	Actor    string // SPIFFE ID, or the source of a list
	Address  string // where the actor spoke from
	Action   string // the RPC, or what a source did
	Target   string // what it was about, as people write it
	Allowed  bool
	Reason   string // the rule that refused it, or the justification given
	Revision uint64
	Details  map[string]string
}

// queued is a record that waits to be written, and who waits for it.
type queued struct {
	record Record
	done   chan error // size 1
}

// Record makes a record durable that belongs to no change: a refused attempt.
// It waits for the disk like Write; the record is written later if it can be.
func (w *Writer) Record(ctx context.Context, r Record) error {
	if err := w.refusal(false); err != nil {
		return err
	}
	q := queued{record: r, done: make(chan error, 1)}
	w.mu.Lock()
	if len(w.records) >= w.cfg.QueueLength {
		w.mu.Unlock()
		return w.unacknowledged(&Unavailable{Kind: Overloaded})
	}
	w.records = append(w.records, q)
	w.mu.Unlock()
	w.signal()
	return w.await(ctx, q.done, false)
}
