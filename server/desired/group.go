package desired

import (
	"context"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// groupWrites bounds the writes that share a batch.
const groupWrites = 512

// group is one batch on its way to the disk.
type group struct {
	overlay  *registry.Overlay // of the writes
	writes   []*pendingWrite
	removals []*removal
	queued   []queued
	rows     []registry.Row
	records  []Record
}

// commitGroup forms one group, has it written and settles it. It reports
// whether there may be more to do.
func (w *Writer) commitGroup(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	refusal := w.cfg.Refusal()
	g := w.form(refusal)
	if g == nil {
		return false
	}
	began := time.Now()
	if len(g.rows)+len(g.records) == 0 {
		w.settle(g)
		return true
	}
	if err := w.cfg.Commit(ctx, g.rows, g.records); err != nil {
		w.fail(g, err)
		return false // Run tries what stays pending again, at its own pace
	}
	w.settle(g)
	if tell := w.cfg.Events.Committed; tell != nil {
		tell(len(g.rows), time.Since(began))
	}
	return true
}

// form plans what waits. While the store refuses, what waits is answered so,
// and removals stay pending.
func (w *Writer) form(refusal error) *group {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := &group{overlay: w.index.Begin(), removals: w.pending, queued: w.records}
	n := min(len(w.queue), groupWrites)
	g.writes, w.queue, w.records = w.queue[:n:n], w.queue[n:], nil
	if len(g.writes)+len(g.removals)+len(g.queued) == 0 {
		return nil
	}
	if refusal != nil {
		w.answer(g, &Unavailable{Kind: w.cfg.KindOf(refusal), Err: refusal})
		return nil
	}
	// Removals come first: a write that was planned after one may create the
	// row anew. What was planned before one is in an earlier batch.
	for _, r := range g.removals {
		g.rows = append(g.rows, r.rows...)
		g.records = append(g.records, r.records...)
	}
	for _, q := range g.writes {
		g.plan(q)
	}
	g.rows = append(g.rows, g.overlay.Rows()...)
	for _, q := range g.queued {
		g.records = append(g.records, q.record)
	}
	return g
}

// plan adds one write to the overlay. A refused one is answered with the
// group, because its audit record has to be durable first.
func (g *group) plan(q *pendingWrite) {
	if q.abandoned.Load() {
		q.refused = context.Canceled // nobody listens, and nobody was promised it
		return
	}
	var err error
	if q.each {
		q.result.Outcomes, q.errs = g.overlay.PlanEach(q.mutations)
	} else {
		outcomes, itemErr := g.overlay.PlanAll(q.mutations)
		if itemErr != nil {
			err = itemErr
		}
		q.result.Outcomes = outcomes
	}
	q.result = resultOf(q.result.Outcomes)
	if q.audit != nil {
		g.records = append(g.records, outcomeRecord(*q.audit, q.result, err))
	}
	q.refused = err
}

func outcomeRecord(r Record, result Result, refused error) Record {
	r.Allowed = refused == nil
	if refused != nil {
		r.Reason = refused.Error()
		return r
	}
	r.Revision = result.Revision
	return r
}

// settle applies a durable group and answers everybody in it.
func (w *Writer) settle(g *group) {
	w.mu.Lock()
	a := w.apply(g.overlay)
	w.pending = w.pending[len(g.removals):] // they are its oldest
	if len(a.Undo) > 0 {
		// A removal overtook rows of this batch: they are on the disk, and must go.
		w.pending = append(w.pending, newRemoval(a.Undo, nil))
		w.signal()
	}
	for _, r := range g.removals {
		close(r.durable)
	}
	pending := len(w.pending)
	w.answer(g, nil)
	w.mu.Unlock()
	if tell := w.cfg.Events.Pending; tell != nil && len(g.removals) > 0 {
		tell(pending)
	}
}

// fail answers the writes of a group that the store refused. Its removals stay
// pending.
func (w *Writer) fail(g *group, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer(g, &Unavailable{Kind: w.cfg.KindOf(err), Err: err})
}

func (w *Writer) answer(g *group, unavailable *Unavailable) {
	for _, q := range g.writes {
		switch {
		case unavailable != nil:
			q.done <- unavailable
		default:
			q.done <- q.refused
		}
	}
	for _, q := range g.queued {
		if unavailable != nil {
			q.done <- unavailable
			continue
		}
		q.done <- nil
	}
}
