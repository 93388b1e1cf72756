package desired

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// removal is a group of rows that are gone from the index and the views, and
// not yet known to be gone from the disk: a pending tombstone. Whatever batch
// was in flight when it was made, it is written after it.
type removal struct {
	rows      []registry.Row
	records   []Record
	instances map[registry.UID]*registry.Instance // as they were
	services  map[registry.Name]bool
	durable   chan struct{} // closed when it is
}

// newRemoval keeps the rows of an applied overlay; was are the instances that it removed.
func newRemoval(rows []registry.Row, was []*registry.Instance) *removal {
	r := &removal{
		rows: rows, durable: make(chan struct{}),
		instances: make(map[registry.UID]*registry.Instance), services: make(map[registry.Name]bool),
	}
	for _, i := range was {
		r.instances[i.UID] = i
	}
	for _, row := range rows {
		if row.Delete && row.Key.Kind == registry.ServiceRow {
			r.services[row.Key.Name] = true
		}
	}
	return r
}

func removalsOnly(ms []registry.Mutation) bool {
	for _, m := range ms {
		switch m.(type) {
		case registry.RemoveInstance, registry.DeleteService:
		default:
			return false
		}
	}
	return len(ms) > 0
}

// remove applies and tells removals at once, and waits until they are durable.
// What is gone already, and only waits for the disk, is waited for again.
func (w *Writer) remove(ctx context.Context, r Request) (Result, error) {
	w.mu.Lock()
	result, waits, err := w.removeNow(r)
	w.mu.Unlock()
	w.signal()
	if err != nil {
		return Result{}, w.refuseRemoval(ctx, r, err)
	}
	return result, w.awaitDurable(ctx, waits)
}

// awaitDurable waits for removals, as long as a caller may.
func (w *Writer) awaitDurable(ctx context.Context, waits []*removal) error {
	if err := w.refusal(true); err != nil {
		return err
	}
	done := make(chan error, 1)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for _, p := range waits {
			select {
			case <-p.durable:
			case <-stop:
				return
			}
		}
		done <- nil
	}()
	return w.await(ctx, done, true)
}

// refuseRemoval makes a privileged attempt's record durable before its refusal
// is answered.
func (w *Writer) refuseRemoval(ctx context.Context, r Request, refused error) error {
	if r.Audit == nil {
		return refused
	}
	if err := w.Record(ctx, outcomeRecord(*r.Audit, Result{}, refused)); err != nil {
		return err
	}
	return refused
}

// removeNow plans and applies; mu is held. It returns what has to become
// durable before the answer.
func (w *Writer) removeNow(r Request) (Result, []*removal, error) {
	outcomes := make([]registry.Outcome, len(r.Mutations))
	var waits []*removal
	var fresh []registry.Mutation
	var at []int
	for i, m := range r.Mutations {
		p, uid := w.pendingFor(m)
		if p == nil {
			fresh, at = append(fresh, m), append(at, i)
			continue
		}
		waits = append(waits, p)
		outcomes[i] = registry.Outcome{Changed: true, UID: uid}
	}
	if len(fresh) == 0 {
		return resultOf(outcomes), waits, nil
	}
	o := w.index.Begin()
	was := w.leaving(fresh)
	planned, err := o.PlanAll(fresh)
	if err != nil {
		return Result{}, nil, &registry.ItemError{Index: at[err.Index], Err: err.Err}
	}
	for i, outcome := range planned {
		outcomes[at[i]] = outcome
	}
	result := resultOf(outcomes)
	p := newRemoval(o.Rows(), was)
	p.rows = append(p.rows, w.apply(o).Undo...)
	if r.Audit != nil {
		p.records = []Record{outcomeRecord(*r.Audit, result, nil)}
	}
	w.pending = append(w.pending, p)
	return result, append(waits, p), nil
}

// pendingFor finds the pending removal that a mutation repeats: only what the
// index no longer has.
func (w *Writer) pendingFor(m registry.Mutation) (*removal, registry.UID) {
	switch m := m.(type) {
	case registry.DeleteService:
		if _, live := w.index.Service(m.Name); live {
			return nil, 0
		}
		for _, p := range w.pending {
			if p.services[m.Name] {
				return p, 0
			}
		}
	case registry.RemoveInstance:
		if _, live := w.index.Instance(m.UID); live {
			return nil, 0
		}
		if m.UID == 0 {
			if _, live := w.index.InstanceByLabel(m.Service, m.Label); live {
				return nil, 0
			}
		}
		for _, p := range w.pending {
			for uid, i := range p.instances {
				if uid == m.UID || m.UID == 0 && i.Service == m.Service && i.Label == m.Label {
					return p, uid
				}
			}
		}
	}
	return nil, 0
}

// leaving lists the live instances that mutations would remove.
func (w *Writer) leaving(ms []registry.Mutation) []*registry.Instance {
	var out []*registry.Instance
	for _, m := range ms {
		switch m := m.(type) {
		case registry.DeleteService:
			out = append(out, w.index.Instances(m.Name)...)
		case registry.RemoveInstance:
			i, ok := w.index.Instance(m.UID)
			if m.UID == 0 {
				i, ok = w.index.InstanceByLabel(m.Service, m.Label)
			}
			if ok {
				out = append(out, i)
			}
		}
	}
	return out
}

// Leaving finds an instance whose removal is not durable yet, as it was: a
// caller that retries its removal is judged by it.
func (w *Writer) Leaving(uid registry.UID) (*registry.Instance, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.pending {
		if i, ok := p.instances[uid]; ok {
			return i, true
		}
	}
	return nil, false
}

// LeavingService reports whether a service's deletion is not durable yet.
func (w *Writer) LeavingService(n registry.Name) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.pending {
		if p.services[n] {
			return true
		}
	}
	return false
}

// LeavingLabel is Leaving for an instance that is known by its label.
func (w *Writer) LeavingLabel(n registry.Name, label string) (*registry.Instance, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.pending {
		for _, i := range p.instances {
			if label != "" && i.Service == n && i.Label == label {
				return i, true
			}
		}
	}
	return nil, false
}

// Lapsed removes an instance whose lease lapsed and whose membership ran out.
// It never waits: the row's deletion is written behind the views, like every
// removal. An instance that is gone already is no error.
func (w *Writer) Lapsed(at time.Time, uid registry.UID) error {
	row, live := w.Lookup(uid)
	if !live {
		return nil
	}
	w.mu.Lock()
	_, _, err := w.removeNow(Request{
		Mutations: []registry.Mutation{registry.RemoveInstance{
			UID: uid, Service: row.Service, Label: row.Label, By: row.Source, Removal: registry.LapsedOut,
		}},
		Audit: &Record{At: at, Actor: row.Source, Action: "Lapse", Target: row.Service.String() + "/" + row.DisplayName(), Reason: "its lease lapsed"},
	})
	w.mu.Unlock()
	w.signal()
	var refusal *registry.Refusal
	if errors.As(err, &refusal) && refusal.Reason == registry.NotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("instance %s lapsed and cannot be removed: %w", uid, err)
	}
	return nil
}
