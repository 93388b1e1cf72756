package health

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// memoryFormat is the version of a checkpoint's form, and oldestMemory the
// oldest that is read: what it does not hold is as in a new service's member. A
// reader that does not know a format takes the checkpoint for lost, which admits
// (HEALTH.md §5).
const (
	memoryFormat = 2
	oldestMemory = 1
)

// Memory is what a checkpoint remembers of one service: who is not admitted,
// what took whom out, quarantines, ramps, and the states that are not simply
// eligible. Whoever is not in it is an eligible member at full weight. The zero
// value remembers nothing.
type Memory struct {
	instances map[registry.UID]remembered
	all       bool // the callers of every member decide
	callers   map[registry.UID]bool
}

// stored is the form on disk. Times are ages at the moment of the checkpoint:
// the wall clock may be another one after a start.
type stored struct {
	Format    int                         `json:"v"`
	Instances map[registry.UID]remembered `json:"i,omitempty"`
	// All: the callers of every member decide. Callers: of these they do. The
	// usual service has all or none, and nothing else to remember.
	All     bool           `json:"all,omitempty"`
	Callers []registry.UID `json:"callers,omitempty"`
}

type remembered struct {
	Unadmitted bool              `json:"new,omitempty"`
	State      State             `json:"state"`
	Rule       Rule              `json:"rule"`
	Detail     string            `json:"detail,omitempty"`
	Age        time.Duration     `json:"age"`
	Outs       []storedMark      `json:"outs,omitempty"`
	Draining   bool              `json:"draining,omitempty"` // by its own word
	Lapsed     *time.Duration    `json:"lapsed,omitempty"`   // age of the lapse
	Kept       uint32            `json:"kept,omitempty"`     // percent of the weight; 0: all
	Trial      bool              `json:"trial,omitempty"`
	OnWord     bool              `json:"word,omitempty"` // callers took it out
	Ramp       *storedRamp       `json:"ramp,omitempty"`
	Partial    bool              `json:"partial,omitempty"` // a member, and never at full weight
	Retry      *storedRetry      `json:"retry,omitempty"`
	Quarantine *storedQuarantine `json:"quarantine,omitempty"`
}

type storedMark struct {
	Rule   Rule          `json:"rule"`
	Age    time.Duration `json:"age"`
	Second bool          `json:"second,omitempty"`
	Why    string        `json:"why,omitempty"`
}

type storedRamp struct {
	Step  int           `json:"step"`
	Since time.Duration `json:"since"` // age of the ramp
	Age   time.Duration `json:"age"`   // of the step; below 0: it has yet to begin
}

type storedRetry struct {
	Rule  Rule          `json:"rule"`
	Age   time.Duration `json:"age"`
	Times int           `json:"times"`
	Why   string        `json:"why,omitempty"`
}

type storedQuarantine struct {
	Flaps []storedFlap  `json:"flaps,omitempty"`
	Since time.Duration `json:"since,omitempty"` // age
	Left  time.Duration `json:"left,omitempty"`  // 0: none runs
	Count int           `json:"count,omitempty"`
	Hold  time.Duration `json:"hold"` // that the next would have, clean hours aside
	Last  time.Duration `json:"last"` // age of the last change
	// Lifted: the guard gives it traffic all the same.
	Lifted bool `json:"lifted,omitempty"`
}

type storedFlap struct {
	Age  time.Duration `json:"age"`
	Back bool          `json:"back,omitempty"`
	Rule Rule          `json:"rule"`
}

// Checkpoint returns what must outlive the process, or nil when every instance
// is an eligible member at full weight.
func (e *Evaluator) Checkpoint(now time.Time) []byte {
	s := stored{Format: memoryFormat}
	for uid, i := range e.instances {
		if r, notable := i.remember(now); notable {
			if s.Instances == nil {
				s.Instances = make(map[registry.UID]remembered)
			}
			s.Instances[uid] = r
		}
		if i.member && i.primacy.callers {
			s.Callers = append(s.Callers, uid)
		}
	}
	if len(s.Callers) > 0 && len(s.Callers) == e.members {
		s.All, s.Callers = true, nil
	}
	if s.Instances == nil && s.Callers == nil && !s.All {
		return nil
	}
	slices.Sort(s.Callers)
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
		Trial: i.trial.runs, OnWord: i.trial.onCallersWord,
		Partial: i.member && !i.onceFull, Quarantine: i.quarantine.remember(now, i.terms),
	}
	if v.Kept < 100 {
		r.Kept = v.Kept
	}
	for _, m := range i.outs {
		r.Outs = append(r.Outs, storedMark{m.rule, now.Sub(m.at), m.second, m.why})
	}
	if !i.lease.lapsedAt.IsZero() {
		age := now.Sub(i.lease.lapsedAt)
		r.Lapsed = &age
	}
	if i.ramp.runs() {
		r.Ramp = &storedRamp{i.ramp.step, now.Sub(i.ramp.since), now.Sub(i.ramp.at)}
	}
	if i.retry.rule != NoRule {
		r.Retry = &storedRetry{i.retry.rule, now.Sub(i.retry.at), i.retry.times, i.retry.why}
	}
	return r, r.Unadmitted || r.State != Eligible || r.Outs != nil || r.Draining || r.Lapsed != nil ||
		r.Trial || r.OnWord || r.Ramp != nil || r.Partial || r.Retry != nil || r.Quarantine != nil
}

func (q *quarantine) remember(now time.Time, t *terms) *storedQuarantine {
	flaps := q.within(now, t.quarantine.Window)
	if len(flaps) == 0 && !q.runs() && q.nextHold(now, &t.quarantine) <= t.quarantine.Hold {
		return nil
	}
	s := &storedQuarantine{Count: q.count, Hold: q.hold, Last: now.Sub(q.last), Lifted: q.lifted}
	if q.runs() {
		s.Since, s.Left = now.Sub(q.since), max(1, q.until.Sub(now))
	}
	for _, f := range flaps {
		s.Flaps = append(s.Flaps, storedFlap{now.Sub(f.At), f.Serving, f.Rule})
	}
	return s
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
	if s.Format < oldestMemory || s.Format > memoryFormat {
		return Memory{}, fmt.Errorf("health checkpoint: format %d, this build reads %d to %d", s.Format, oldestMemory, memoryFormat)
	}
	for uid, r := range s.Instances {
		if err := r.check(); err != nil {
			return Memory{}, fmt.Errorf("health checkpoint: instance %s: %w", uid, err)
		}
	}
	m := Memory{instances: s.Instances, all: s.All}
	for _, uid := range s.Callers {
		if m.callers == nil {
			m.callers = make(map[registry.UID]bool, len(s.Callers))
		}
		m.callers[uid] = true
	}
	return m, nil
}

func (r *remembered) check() error {
	if r.State > Ineligible || r.Rule > Admission || r.Kept > 100 {
		return fmt.Errorf("state %d by rule %d at %d %% is not one of ours", r.State, r.Rule, r.Kept)
	}
	for _, m := range r.Outs {
		if m.Rule < R1 || m.Rule > R6 {
			return fmt.Errorf("out by rule %d is not one that takes out", m.Rule)
		}
	}
	if r.Ramp != nil && (r.Ramp.Step < 0 || r.Ramp.Step >= lastRampStep) {
		return fmt.Errorf("step %d is not one of a ramp's", r.Ramp.Step)
	}
	if r.Retry != nil && (r.Retry.Rule < R3 || r.Retry.Rule > R5 || r.Retry.Times < 1) {
		return fmt.Errorf("put back %d times by rule %d is not one of ours", r.Retry.Times, r.Retry.Rule)
	}
	if q := r.Quarantine; q != nil {
		if q.Left < 0 || q.Left > maxQuarantine || q.Hold < 0 || q.Hold > maxQuarantine || len(q.Flaps) > keptFlaps || q.Count < 0 {
			return fmt.Errorf("quarantine of %s more, then %s, after %d changes is out of range", q.Left, q.Hold, len(q.Flaps))
		}
		for _, f := range q.Flaps {
			if f.Rule > R7 {
				return fmt.Errorf("a change by rule %d is not one of ours", f.Rule)
			}
		}
	}
	return nil
}

// restore gives an instance loaded at start what was remembered of it.
func (m Memory) restore(i *instance, start time.Time) {
	r, ok := m.instances[i.row.UID]
	i.member, i.onceFull = i.proved(), i.proved()
	i.primacy.callers = m.all || m.callers[i.row.UID]
	if !ok {
		if i.member {
			i.verdict.State, i.verdict.Member, i.verdict.Rule = Eligible, true, R7
		}
		return
	}
	i.member = i.member && !r.Unadmitted
	i.primacy.callers = i.primacy.callers && i.member
	i.onceFull = i.member && !r.Partial
	i.verdict.State, i.verdict.Rule, i.verdict.Detail = r.State, r.Rule, r.Detail
	i.verdict.Member, i.verdict.Kept = i.member, r.Kept
	i.verdict.Since = ago(start, r.Age)
	i.stands = i.member && r.State.Serving()
	for _, o := range r.Outs {
		if o.Rule == R1 && (i.row.Lease == 0 || r.Lapsed == nil) {
			continue // nothing could ever bring it back
		}
		i.outs.set(mark{rule: o.Rule, at: ago(start, o.Age), second: o.Second, why: o.Why})
	}
	if r.Draining {
		i.self.lastDraining = start
		i.verdict.Draining = true
	}
	if r.Lapsed != nil && i.row.Lease > 0 {
		i.lease.lapsedAt = ago(start, *r.Lapsed)
		i.lease.granted = i.lease.lapsedAt.Add(-i.row.Lease)
		i.lease.ended = true
	}
	r.resume(i, start)
}

// resume goes on with what was under way.
func (r *remembered) resume(i *instance, start time.Time) {
	if i.member {
		i.trial = trial{runs: r.Trial, onCallersWord: r.OnWord}
	}
	if p := r.Ramp; p != nil && i.member && len(i.outs) == 0 {
		// A step that has yet to begin waits for the quarantine, see below.
		i.ramp = ramp{since: ago(start, p.Since), at: ago(start, p.Age), step: p.Step}
	}
	// Neither out nor on its way up: nothing would ever call it full.
	i.onceFull = i.onceFull || i.member && !i.ramp.runs() && len(i.outs) == 0
	if p := r.Retry; p != nil {
		i.retry = retry{rule: p.Rule, at: ago(start, p.Age), times: p.Times, why: p.Why}
	}
	p := r.Quarantine
	if p == nil {
		return
	}
	q := &i.quarantine
	q.hold, q.last, q.count = p.Hold, ago(start, p.Last), p.Count
	if p.Left > 0 {
		q.since, q.until = ago(start, p.Since), start.Add(p.Left)
		if q.lifted = p.Lifted; !q.lifted {
			i.ramp.holdUntil(q.until)
		}
	}
	for _, f := range p.Flaps {
		q.flaps = append(q.flaps, Flap{At: ago(start, f.Age), Serving: f.Back, Rule: f.Rule})
	}
}

// ago is so long before the start, and never after it.
func ago(start time.Time, age time.Duration) time.Time { return start.Add(-max(0, age)) }
