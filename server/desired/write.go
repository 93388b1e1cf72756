package desired

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// Request is one batch of changes, all or nothing.
type Request struct {
	Mutations    []registry.Mutation
	ValidateOnly bool    // plan and answer, change nothing
	Audit        *Record // of a privileged attempt; written with it, also when it is refused
}

// Result is what a write did. Outcomes are in the order of the mutations.
type Result struct {
	Outcomes []registry.Outcome
	Revision uint64 // the highest among them
}

func resultOf(outcomes []registry.Outcome) Result {
	r := Result{Outcomes: outcomes}
	for _, o := range outcomes {
		r.Revision = max(r.Revision, o.Revision)
	}
	return r
}

// pendingWrite is a Request on its way through a group. Its result and errors are
// written by Run before done is sent.
type pendingWrite struct {
	mutations []registry.Mutation
	audit     *Record
	each      bool // what can be planned is, instead of all or nothing
	abandoned atomic.Bool

	result  Result
	refused error
	errs    []error    // of an each write, by position
	done    chan error // size 1
}

// Write plans the changes, makes them durable, applies and tells them. The
// error is a *registry.ItemError for what is refused, an *Unavailable, or that
// of ctx. Removals alone (of instances, of services) are applied and told
// before the disk is asked; they too are answered without an error only once
// they are durable.
func (w *Writer) Write(ctx context.Context, r Request) (Result, error) {
	if r.ValidateOnly {
		return w.validate(r)
	}
	if removalsOnly(r.Mutations) {
		return w.remove(ctx, r)
	}
	if err := w.refusal(false); err != nil {
		return Result{}, err
	}
	q := &pendingWrite{mutations: r.Mutations, audit: r.Audit, done: make(chan error, 1)}
	if err := w.enqueue(q); err != nil {
		return Result{}, err
	}
	if err := w.await(ctx, q.done, false); err != nil {
		q.abandoned.Store(true)
		return Result{}, err
	}
	return q.result, nil
}

func (w *Writer) validate(r Request) (Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	outcomes, err := w.index.Begin().PlanAll(r.Mutations)
	if err != nil {
		return Result{}, err
	}
	return resultOf(outcomes), nil
}

func (w *Writer) enqueue(q *pendingWrite) error {
	w.mu.Lock()
	if len(w.queue) >= w.cfg.QueueLength {
		w.mu.Unlock()
		return w.unacknowledged(&Unavailable{Kind: Overloaded})
	}
	w.queue = append(w.queue, q)
	w.mu.Unlock()
	w.signal()
	return nil
}

// await waits for an answer, as long as a caller may wait for the disk.
func (w *Writer) await(ctx context.Context, done <-chan error, removal bool) error {
	timer := time.NewTimer(w.cfg.WriteTimeout)
	defer timer.Stop()
	select {
	case err := <-done:
		var u *Unavailable
		if errors.As(err, &u) {
			return w.unacknowledged(u)
		}
		return err
	case <-timer.C:
		if err := w.refusal(removal); err != nil {
			return err
		}
		return w.unacknowledged(&Unavailable{Kind: Hung, Removed: removal, After: w.cfg.WriteTimeout})
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refusal is the error for a write to a store that takes none, or nil.
func (w *Writer) refusal(removal bool) error {
	err := w.cfg.Refusal()
	if err == nil {
		return nil
	}
	return w.unacknowledged(&Unavailable{Kind: w.cfg.KindOf(err), Removed: removal, Err: err})
}

func (w *Writer) unacknowledged(u *Unavailable) error {
	if tell := w.cfg.Events.Unacknowledged; tell != nil {
		tell(u.Kind)
	}
	return u
}
