package registry

import (
	"fmt"
	"slices"
)

// effect is one row set or deleted, in the order of planning.
type effect struct {
	key     RowKey
	row     Row     // with Delete set for a deletion
	created bool    // the row was not there before this effect
	removal Removal // of an instance or a service
	taker   UID     // who proved a removed instance's address
	before  *Contract
}

// Overlay is a group of planned changes over an Index: later plans see the
// earlier ones, the Index sees none until it applies the overlay. Dropping an
// overlay is all there is to discarding it; its uids and revisions are not
// given out again.
//
// One overlay with puts may be open at a time, from Begin to Apply. Overlays
// that hold removals alone may be begun and applied meanwhile: what they remove
// stays removed (STORE.md §1).
type Overlay struct {
	*state
	counters *Counters
	puts     uint64 // Index.puts at Begin
	effects  []effect
}

// ItemError says which mutation of a batch was refused.
type ItemError struct {
	Index int // in the caller's order
	Err   error
}

// Error gives the position and the cause.
func (e *ItemError) Error() string { return fmt.Sprintf("change %d: %v", e.Index, e.Err) }

// Unwrap returns the cause: Violations or a *Refusal.
func (e *ItemError) Unwrap() error { return e.Err }

// Plan adds one mutation. The error is Violations or a *Refusal, and then the
// overlay is as before.
func (o *Overlay) Plan(m Mutation) (Outcome, error) {
	out, err := o.PlanAll([]Mutation{m})
	if err != nil {
		return Outcome{}, err.Err
	}
	return out[0], nil
}

// PlanAll adds a batch, all or nothing, in dependency order whatever the order
// given; rules that span objects are judged at its end. Outcomes are in the
// caller's order; the error names the first mutation refused.
func (o *Overlay) PlanAll(ms []Mutation) ([]Outcome, *ItemError) {
	b := o.batch(ms, nil, true)
	if b.first != nil {
		return nil, b.first
	}
	o.fold(b)
	return b.outcomes, nil
}

// PlanEach adds what can be added of a batch, in dependency order, and returns
// for each mutation its outcome or the reason why it was left out.
func (o *Overlay) PlanEach(ms []Mutation) ([]Outcome, []error) {
	errs := make([]error, len(ms))
	for {
		b := o.batch(ms, errs, false)
		if !b.crossed {
			o.fold(b)
			return b.outcomes, errs
		}
	}
}

// Rows are the rows to write and delete in one store batch, the last state of
// each row once, counters included; none when nothing changes.
func (o *Overlay) Rows() []Row {
	if len(o.effects) == 0 {
		return nil
	}
	at := make(map[RowKey]int)
	var rows []Row
	put := func(r Row) {
		if i, ok := at[r.Key]; ok {
			rows[i] = r
			return
		}
		at[r.Key] = len(rows)
		rows = append(rows, r)
	}
	for _, e := range o.effects {
		put(e.row)
		if e.key.Kind == ContractRow {
			prev := RowKey{Kind: PreviousContractRow, Name: e.key.Name}
			if e.row.Delete {
				put(Row{Key: prev, Delete: true})
			} else if e.before != nil {
				put(Row{Key: prev, Contract: e.before})
			}
		}
	}
	counters := *o.counters
	put(Row{Key: RowKey{Kind: CountersRow}, Counters: &counters})
	return rows
}

// Empty reports whether the overlay changes nothing.
func (o *Overlay) Empty() bool { return len(o.effects) == 0 }

func (o *Overlay) fold(b *batch) {
	b.state.fold()
	o.effects = append(o.effects, b.effects...)
}

func (o *Overlay) nextRevision() uint64 {
	o.counters.LastRevision++
	return o.counters.LastRevision
}

// batch is one attempt at planning a list of mutations on a state of its own.
type batch struct {
	*Overlay // over the one that PlanAll was called on
	outcomes []Outcome
	first    *ItemError
	crossed  bool        // a rule that spans objects was broken, and is now in errs
	pending  []crossItem // to be judged at the end
}

// crossItem is a service whose contract, profile and instances have to be
// judged together because of a mutation.
type crossItem struct {
	service Name
	index   int
}

// batch plans every mutation whose errs entry is nil. It stops at the first
// refusal if asked to, otherwise it records it in errs.
func (o *Overlay) batch(ms []Mutation, errs []error, stop bool) *batch {
	b := &batch{
		Overlay:  &Overlay{state: newState(o.state), counters: o.counters},
		outcomes: make([]Outcome, len(ms)),
	}
	for _, i := range planOrder(ms) {
		if errs != nil && errs[i] != nil {
			continue
		}
		out, err := b.plan(ms[i], i)
		switch {
		case err == nil:
			b.outcomes[i] = out
		case stop:
			b.first = &ItemError{i, err}
			return b
		default:
			errs[i] = err
		}
	}
	b.judge(errs, stop)
	return b
}

// judge checks the rules that span objects.
func (b *batch) judge(errs []error, stop bool) {
	seen := make(map[Name]bool)
	for _, c := range slices.Backward(b.pending) {
		if seen[c.service] {
			continue // the newest mutation that touched the service is the one to blame
		}
		seen[c.service] = true
		err := b.checkTogether(c.service)
		if err == nil {
			continue
		}
		b.crossed = true
		if stop {
			b.first = &ItemError{c.index, err}
			return
		}
		errs[c.index] = err
	}
}

func planOrder(ms []Mutation) []int {
	order := make([]int, len(ms))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return ms[a].rank() - ms[b].rank() })
	return order
}

func (b *batch) plan(m Mutation, index int) (Outcome, error) {
	switch m := m.(type) {
	case PutService:
		return b.putService(m, index)
	case PutInstance:
		return b.putInstance(m)
	case PutContract:
		return b.putContract(m, index)
	case PutProfile:
		return b.putProfile(m, index)
	case RemoveInstance:
		return b.removeInstance(m)
	case DeleteService:
		return b.deleteService(m)
	case DeleteContract:
		return b.deleteContract(m)
	case DeleteProfile:
		return b.deleteProfile(m)
	}
	return Outcome{}, Violations{{Field: "", Rule: "kind", Detail: fmt.Sprintf("%T is not a mutation of the registry", m)}}
}
