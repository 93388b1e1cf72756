package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// Shadow returns an evaluator of the same instances under another contract. It
// starts from what a checkpoint remembers of this one, and hears nothing by
// itself: whoever owns both tells both.
func (e *Evaluator) Shadow(now time.Time, c registry.Contract) *Evaluator {
	memory, err := ReadMemory(e.Checkpoint(now))
	if err != nil {
		memory = Memory{} // our own bytes: cannot fail; if it did, all would be members
	}
	s := New(e.name, now, memory)
	s.Load(registry.Change{Name: e.name, Contract: c, Instances: e.Rows()})
	s.stance = e.stance
	return s
}

// Rows returns what the evaluator knows of its instances, by UID.
func (e *Evaluator) Rows() []registry.InstanceChange {
	all := e.sorted()
	rows := make([]registry.InstanceChange, len(all))
	for k, i := range all {
		rows[k] = registry.InstanceChange{UID: i.row.UID, Row: i.row, Profile: i.profile}
	}
	return rows
}
