package health

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// memoryFormat is the version of a checkpoint's form. A reader that does not
// know it takes the checkpoint for lost, which admits (HEALTH.md §5).
const memoryFormat = 1

// Memory is what a checkpoint remembers of one service: who is not admitted,
// what took whom out, and the states that are not simply eligible. Whoever is
// not in it is an eligible member. The zero value remembers nothing.
type Memory struct {
	instances map[registry.UID]remembered
}

// stored is the form on disk. Times are ages at the moment of the checkpoint:
// the wall clock may be another one after a start.
type stored struct {
	Format    int                         `json:"v"`
	Instances map[registry.UID]remembered `json:"i"`
}

type remembered struct {
	Unadmitted bool           `json:"new,omitempty"`
	State      State          `json:"state"`
	Rule       Rule           `json:"rule"`
	Detail     string         `json:"detail,omitempty"`
	Age        time.Duration  `json:"age"`
	Outs       []storedMark   `json:"outs,omitempty"`
	Draining   bool           `json:"draining,omitempty"` // by its own word
	Lapsed     *time.Duration `json:"lapsed,omitempty"`   // age of the lapse
}

type storedMark struct {
	Rule Rule          `json:"rule"`
	Age  time.Duration `json:"age"`
}

// Checkpoint returns what must outlive the process, or nil when every instance
// is an eligible member.
func (e *Evaluator) Checkpoint(now time.Time) []byte {
	s := stored{Format: memoryFormat}
	for uid, i := range e.instances {
		if r, notable := i.remember(now); notable {
			if s.Instances == nil {
				s.Instances = make(map[registry.UID]remembered)
			}
			s.Instances[uid] = r
		}
	}
	if s.Instances == nil {
		return nil
	}
	b, err := json.Marshal(s)
	if err != nil {
		// Only numbers, strings and booleans: cannot fail.
		panic(fmt.Sprintf("health: checkpoint of %s does not encode: %v", e.name, err))
	}
	return b
}

func (i *instance) remember(now time.Time) (r remembered, notable bool) {
	v := &i.verdict
	r = remembered{
		Unadmitted: !i.member, State: v.State, Rule: v.Rule, Detail: v.Detail,
		Age: now.Sub(v.Since), Draining: i.self.draining(),
	}
	for _, m := range i.outs {
		r.Outs = append(r.Outs, storedMark{m.rule, now.Sub(m.at)})
	}
	if !i.lease.lapsedAt.IsZero() {
		age := now.Sub(i.lease.lapsedAt)
		r.Lapsed = &age
	}
	return r, r.Unadmitted || r.State != Eligible || r.Outs != nil || r.Draining || r.Lapsed != nil
}

// ReadMemory decodes a checkpoint. Empty bytes are the memory of a service of
// eligible members. An error means that the memory is lost, which lowers
// confidence and takes nobody out.
func ReadMemory(b []byte) (Memory, error) {
	if len(b) == 0 {
		return Memory{}, nil
	}
	var s stored
	if err := json.Unmarshal(b, &s); err != nil {
		return Memory{}, fmt.Errorf("health checkpoint: %w", err)
	}
	if s.Format != memoryFormat {
		return Memory{}, fmt.Errorf("health checkpoint: format %d, this build reads %d", s.Format, memoryFormat)
	}
	for uid, r := range s.Instances {
		if err := r.check(); err != nil {
			return Memory{}, fmt.Errorf("health checkpoint: instance %s: %w", uid, err)
		}
	}
	return Memory{instances: s.Instances}, nil
}

func (r *remembered) check() error {
	if r.State > Ineligible || r.Rule > Admission {
		return fmt.Errorf("state %d by rule %d is not one of ours", r.State, r.Rule)
	}
	for _, m := range r.Outs {
		if m.Rule != R1 && m.Rule != R2 && m.Rule != R6 {
			return fmt.Errorf("out by rule %d is not one that takes out", m.Rule)
		}
	}
	return nil
}

// restore gives an instance loaded at start what was remembered of it.
func (m Memory) restore(i *instance, start time.Time) {
	r, ok := m.instances[i.row.UID]
	if !ok {
		i.member = i.proved()
		if i.member {
			i.verdict.State, i.verdict.Member, i.verdict.Rule = Eligible, true, R7
		}
		return
	}
	i.member = !r.Unadmitted && i.proved()
	i.verdict.State, i.verdict.Rule, i.verdict.Detail = r.State, r.Rule, r.Detail
	i.verdict.Member = i.member
	i.verdict.Since = start.Add(-max(0, r.Age))
	i.stands = i.member && r.State.Serving()
	for _, o := range r.Outs {
		if o.Rule == R1 && i.row.Lease == 0 {
			continue // nothing could ever bring it back
		}
		i.outs = append(i.outs, mark{o.Rule, start.Add(-max(0, o.Age))})
	}
	if r.Draining {
		i.self.lastDraining = start
		i.verdict.Draining = true
	}
	if r.Lapsed != nil && i.row.Lease > 0 {
		i.lease.lapsedAt = start.Add(-max(0, *r.Lapsed))
		i.lease.granted = i.lease.lapsedAt.Add(-i.row.Lease)
		i.lease.ended = true
	}
}
