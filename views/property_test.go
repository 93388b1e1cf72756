package views

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// estate is a few services driven at random, with every publication recorded.
type estate struct {
	t      *rapid.T
	now    time.Time
	p      *Publisher
	worlds []*world
	pubs   []Publication
	newest Version
}

func newEstate(t *rapid.T) *estate {
	e := &estate{t: t, now: scenarioStart, p: NewPublisher(PublisherConfig{Epoch: 7})}
	for n := range 3 {
		w := &world{name: Name{Namespace: "shop", Service: fmt.Sprintf("s%d", n)}, p: e.p}
		w.fresh(Memory{})
		w.service.Name = w.name
		w.edit()
		e.worlds = append(e.worlds, w)
	}
	return e
}

// step lets something happen to one service and checks what it is given.
func (e *estate) step() {
	t := e.t
	e.now = e.now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
	w := rapid.SampledFrom(e.worlds).Draw(t, "service")
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	case 0, 1:
		e.add(w)
	case 2:
		e.remove(w)
	case 3:
		if rapid.IntRange(0, 9).Draw(t, "delete") == 0 {
			w.fresh(w.a.Memory())
			w.a, w.service = NewAssembler(w.name, Memory{}), nil
			w.a.Published(e.held(w.name))
			w.edit()
		} else {
			w.contract.GuardPercent = rapid.SampledFrom([]uint32{0, 1, 50, 80, 100}).Draw(t, "floor")
			w.edit()
		}
	default:
		e.judge(w)
	}
	if w.service == nil && rapid.Bool().Draw(t, "recreate") {
		w.fresh(Memory{})
		w.service.Name = w.name
		w.a.Published(e.held(w.name))
		w.edit()
	}
	e.offer(w)
}

func (e *estate) held(n Name) Version {
	if s := e.p.services[n]; s != nil {
		return s.held
	}
	return Version{}
}

func (e *estate) add(w *world) {
	if w.service == nil {
		return
	}
	uid := UID(len(e.pubs)*10 + len(w.rows) + 1)
	for w.rows[uid] != nil {
		uid++
	}
	row := &registry.Instance{UID: uid, Service: w.name, Weight: 100, Zone: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(e.t, "zone"),
		Proof: registry.ProofKind(rapid.IntRange(0, 1).Draw(e.t, "proof"))}
	w.rows[uid] = row
	w.verdicts[uid] = e.verdict(uid)
	w.touched[uid] = true
	w.edit().Instances = append(w.edit().Instances, registry.InstanceChange{UID: uid, Row: row})
}

func (e *estate) remove(w *world) {
	for uid := range w.rows {
		if rapid.Bool().Draw(e.t, "goes") {
			r := registry.Removal(rapid.IntRange(0, 5).Draw(e.t, "reason"))
			delete(w.rows, uid)
			delete(w.verdicts, uid)
			delete(w.touched, uid)
			w.edit().Instances = append(w.edit().Instances, registry.InstanceChange{UID: uid, Removal: r})
		}
	}
}

func (e *estate) judge(w *world) {
	for uid := range w.rows {
		if rapid.IntRange(0, 2).Draw(e.t, "touch") == 0 {
			w.verdicts[uid] = e.verdict(uid)
			w.touched[uid] = true
		}
	}
}

func (e *estate) verdict(uid UID) health.Verdict {
	bits := rapid.IntRange(0, 1<<24-1).Draw(e.t, "verdict")
	one := func(n, of int) bool { r := bits % of; bits /= of; return r < n }
	return health.Verdict{
		UID: uid, State: State(bits % 4), Member: one(7, 8), Overridden: one(1, 8), Draining: one(1, 8),
		Quarantined: one(1, 4), Flaps: bits % 7, Confirmed: one(1, 2), Ramping: one(2, 3), RampHeld: one(1, 4),
		DeadZone: one(1, 4), Full: uint32(bits%3) * 50, Weight: uint32(1 + bits*13%100),
	}
}

func (e *estate) offer(w *world) {
	in := Input{Change: w.change}
	for uid := range w.touched {
		in.Verdicts = append(in.Verdicts, w.verdicts[uid])
	}
	before := w.a.Candidate().View
	w.change, w.touched = nil, map[UID]bool{}
	c, _ := w.a.Apply(e.now, in)
	if c.View != nil {
		e.checkHashes(c.View)
		e.checkFloor(w, c.View)
		e.checkGuard(w, c.View)
		e.checkEmpty(w, before, c)
		e.checkRamps(w, c.View)
	}
	r := e.p.Publish(e.now, c)
	w.a.Published(r.Held)
	switch r.Outcome {
	case Stale:
		e.t.Fatalf("the owner's own candidate is stale: %s", r.Reason)
	case Published:
		if !e.newest.Less(r.Publication.Version) {
			e.t.Fatalf("version %v published after %v", r.Publication.Version, e.newest)
		}
		e.newest = r.Publication.Version
		e.pubs = append(e.pubs, r.Publication)
	case Deferred:
		if !r.Until.After(e.now) || r.Until.Sub(e.now) > maxWindow {
			e.t.Fatalf("deferred for %v", r.Until.Sub(e.now))
		}
		if d := diff(e.p.Snapshot().Get(w.name), c.View); d.lane == Withdrawals && r.Until.Sub(e.now) > withdrawalGap {
			e.t.Fatalf("a withdrawal waits %v", r.Until.Sub(e.now))
		}
	}
}

func (e *estate) checkHashes(v *View) {
	if v.EndpointHash != HashEndpoint(v) || v.ConfigHash != HashConfig(v) {
		e.t.Fatalf("cached hashes differ from those taken anew")
	}
}

// checkFloor: no zone is published below its floor, whatever the verdicts.
func (e *estate) checkFloor(w *world, v *View) {
	zones, listed := map[string]int{}, map[string]int{}
	var all, allListed int
	for _, m := range v.Members {
		d := w.verdicts[m.UID]
		if w.rows[m.UID] == nil || !d.Member || d.Draining || d.Overridden {
			continue
		}
		zones[m.Zone]++
		all++
		if m.Listed {
			listed[m.Zone]++
			allListed++
		}
	}
	floor := int(v.Guard.Floor)
	for z, n := range zones {
		if n >= smallZone && 100*listed[z] < floor*n {
			e.t.Fatalf("zone %s: %d of %d listed, floor %d%%, guard %q", z, listed[z], n, floor, v.Guard.Zones)
		}
		if n < smallZone && listed[z] < n && 100*allListed < floor*all {
			e.t.Fatalf("small zone %s: %d of %d listed while the region lists %d of %d, floor %d%%", z, listed[z], n, allListed, all, floor)
		}
	}
}

// checkGuard: in a tripped zone everybody who counts is published, at full weight
// or the ramp's, or at weight 1 while the region is at its floor and more than
// one witness found it, or its zone is dead.
func (e *estate) checkGuard(w *world, v *View) {
	below := 100*v.Guard.Serving < int(v.Guard.Floor)*v.Guard.Members
	for _, m := range v.Members {
		d := w.verdicts[m.UID]
		if w.rows[m.UID] == nil || !d.Member || d.Draining || d.Overridden || !slices.Contains(v.Guard.Zones, m.Zone) {
			continue
		}
		found := !below && (d.DeadZone || d.Confirmed && d.State == Ineligible)
		switch {
		case !m.Listed, m.State != d.State, v.Confidence != ConfidenceDegraded:
			e.t.Fatalf("zone %s is under the guard, and %v is not published as it is:\n%s", m.Zone, m.UID, describeView(v))
		case found != m.LastResort, found && m.Weight != 1:
			e.t.Fatalf("%v is confirmed %t, its zone dead %t, the region below %t:\n%s", m.UID, d.Confirmed, d.DeadZone, below, describeView(v))
		case !found && !d.Ramping && m.Weight != m.BaseWeight:
			e.t.Fatalf("%v is not at full weight under the guard:\n%s", m.UID, describeView(v))
		}
	}
}

// checkEmpty: a set that was not empty becomes so for a legal reason only, and
// says so.
func (e *estate) checkEmpty(w *world, before *View, c Candidate) {
	if c.View.ListedCount > 0 || before == nil || before.ListedCount == 0 {
		return
	}
	told := false
	for _, i := range c.Incidents {
		told = told || i.Kind == Emptied
	}
	if !told {
		e.t.Fatalf("empty without an incident")
	}
	for _, m := range c.View.Members {
		if !w.verdicts[m.UID].Overridden {
			e.t.Fatalf("empty although %v could be listed", m.UID)
		}
	}
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEstate(t)
		e.p.Complete()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			e.step()
		}
		if diffs := Verify(e.p.Snapshot(), Replay(NewSnapshot(true), e.pubs)); len(diffs) > 0 {
			t.Fatalf("who followed the publications holds something else: %+v", diffs)
		}
		changes, through, ok := e.p.Since(Version{7, 0})
		if !ok || len(changes) != len(e.pubs) || through != e.p.Snapshot().Version() {
			t.Fatalf("ring: %d changes of %d, through %v", len(changes), len(e.pubs), through)
		}
	})
}

// TestOrderOfInputs: the same rows and verdicts give the same view, in whatever
// order they come and however they are split.
func TestOrderOfInputs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEstate(t)
		w := e.worlds[0]
		for range rapid.IntRange(1, 30).Draw(t, "instances") {
			e.add(w)
		}
		change := w.edit()
		var verdicts []health.Verdict
		for _, v := range w.verdicts {
			verdicts = append(verdicts, v)
		}
		first, _ := NewAssembler(w.name, Memory{}).Apply(e.now, Input{Change: change, Verdicts: verdicts})
		r := rand.New(rand.NewPCG(uint64(rapid.Int().Draw(t, "seed")), 1))
		other := *change
		other.Instances = append([]registry.InstanceChange(nil), change.Instances...)
		r.Shuffle(len(other.Instances), func(i, j int) {
			other.Instances[i], other.Instances[j] = other.Instances[j], other.Instances[i]
		})
		r.Shuffle(len(verdicts), func(i, j int) { verdicts[i], verdicts[j] = verdicts[j], verdicts[i] })
		a := NewAssembler(w.name, Memory{})
		a.Apply(e.now, Input{Change: &registry.Change{Name: w.name, Service: w.service, Contract: w.contract}})
		second, _ := a.Apply(e.now, Input{Change: &other, Verdicts: verdicts})
		if first.View.EndpointHash != second.View.EndpointHash || first.View.ConfigHash != second.View.ConfigHash {
			t.Fatalf("another order, another view")
		}
	})
}

// TestDeltaApplies: a delta between any two views of a service gives the second.
func TestDeltaApplies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEstate(t)
		var before *View
		for range 10 {
			e.step()
			after := e.p.Snapshot().Get(e.worlds[0].name)
			if before != nil && after != nil {
				got, ok := MakeDelta(before, after).Apply(before)
				if !ok || HashEndpoint(got) != after.EndpointHash {
					t.Fatalf("delta does not lead from %v to %v", before.Endpoint, after.Endpoint)
				}
			}
			before = after
		}
	})
}

// TestRestart: whatever happened before, a new process that has the rows, the
// verdicts and the memory of the old one publishes the very same views.
func TestRestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEstate(t)
		e.p.Complete()
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			e.step()
		}
		for range 3 { // what waits is published, what is due is released
			e.now = e.now.Add(time.Hour)
			for _, w := range e.worlds {
				e.offer(w)
			}
		}
		stored := map[Name]Stored{}
		for v := range e.p.Snapshot().All() {
			stored[v.Name] = Stored{v.Endpoint, v.Config, v.EndpointHash, v.ConfigHash}
		}
		next := NewPublisher(PublisherConfig{Epoch: 8, Next: 1 << 16, Stored: stored})
		for _, w := range e.worlds {
			before := e.p.Snapshot().Get(w.name)
			if before == nil || before.ListedCount == 0 || !onlyRows(w, before) {
				continue // nothing there, or only what no row speaks of
			}
			in := Input{Change: &registry.Change{Name: w.name, Service: w.service, Contract: w.contract}}
			for uid, row := range w.rows {
				in.Change.Instances = append(in.Change.Instances, registry.InstanceChange{UID: uid, Row: row})
				in.Verdicts = append(in.Verdicts, w.verdicts[uid])
			}
			c, _ := NewAssembler(w.name, throughCheckpoint(t, w.a.Memory())).Apply(e.now, in)
			if r := next.Publish(e.now, c); !r.Kept || r.Held != before.Version() {
				t.Fatalf("%v was %v and is %v after a restart:\n%s%s", w.name, before.Version(), r.Held, describeView(before), describeView(c.View))
			}
		}
	})
}

// throughCheckpoint is what the store gives back of a memory.
func throughCheckpoint(t *rapid.T, m Memory) (out Memory) {
	b, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func onlyRows(w *world, v *View) bool {
	for _, m := range v.Members {
		if w.rows[m.UID] == nil || !w.verdicts[m.UID].Member && v.Guard.Tripped {
			return false
		}
	}
	return true
}
