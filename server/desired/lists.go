package desired

import (
	"context"
	"errors"
	"time"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/reconcile"
)

// Reconcile makes a source's list true as far as the brake lets it: removals
// at once, everything else in a synced batch. Changes that cannot be planned
// are left out and reported; the others stand. The error is an *Unavailable or
// that of ctx: the caller hands the list over again.
//
// It must be called by one goroutine per source.
func (w *Writer) Reconcile(ctx context.Context, now time.Time, source string, list *reconcile.List) (reconcile.Decision, error) {
	w.mu.Lock()
	s := w.sources[source]
	if s == nil {
		s = reconcile.NewSource(source, w.cfg.Brake)
		w.sources[source] = s
	}
	d := s.Pass(now, list, w.index.Owned(source), w.index.InstanceCount)
	refused := make(map[int]error)
	waits, puts, at := w.removeListed(d.Apply, refused)
	w.mu.Unlock()
	w.signal()

	err := w.putListed(ctx, puts, at, refused)
	if len(waits) > 0 {
		err = errors.Join(err, w.awaitDurable(ctx, waits))
	}
	if tell := w.cfg.Events.Reconciled; tell != nil {
		tell(d, refused)
	}
	return d, err
}

// removeListed applies the removals among a pass's changes; mu is held. It
// returns the others with their positions.
func (w *Writer) removeListed(ms []registry.Mutation, refused map[int]error) (waits []*removal, puts []registry.Mutation, at []int) {
	for i, m := range ms {
		if !removalsOnly([]registry.Mutation{m}) {
			puts, at = append(puts, m), append(at, i)
			continue
		}
		_, more, err := w.removeNow(Request{Mutations: []registry.Mutation{m}})
		if err != nil {
			refused[i] = errors.Unwrap(err)
			continue
		}
		waits = append(waits, more...)
	}
	return waits, puts, at
}

func (w *Writer) putListed(ctx context.Context, puts []registry.Mutation, at []int, refused map[int]error) error {
	if len(puts) == 0 {
		return nil
	}
	if err := w.refusal(false); err != nil {
		return err
	}
	q := &pendingWrite{mutations: puts, each: true, done: make(chan error, 1)}
	if err := w.enqueue(q); err != nil {
		return err
	}
	if err := w.await(ctx, q.done, false); err != nil {
		q.abandoned.Store(true)
		return err
	}
	for i, err := range q.errs {
		if err != nil {
			refused[at[i]] = err
		}
	}
	return nil
}

// Confirm lets what the brake holds of a source go at its next complete list
// that still lacks it; it returns how many rows that are.
func (w *Writer) Confirm(source string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.sources[source]; s != nil {
		return s.Confirm()
	}
	return 0
}
