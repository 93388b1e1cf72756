package views

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

func candidate(p *Publisher, n Name, weight uint32) Candidate {
	v := sampleView()
	v.Name = n
	m := *v.Members[0]
	m.Weight = weight
	v.Members = []*Member{&m}
	v.EndpointHash, v.ConfigHash = HashEndpoint(v), HashConfig(v)
	c := Candidate{Name: n, View: v}
	if held := p.Snapshot().Get(n); held != nil {
		c.Base = held.Version()
	}
	return c
}

// TestCompareAtApply: what was computed from something older is refused.
func TestCompareAtApply(t *testing.T) {
	p := NewPublisher(PublisherConfig{Epoch: 1})
	n := Name{Namespace: "shop", Service: "checkout"}
	weight := uint32(100)
	publish := func(change func(*Candidate)) Result {
		weight++
		c := candidate(p, n, weight)
		change(&c)
		return p.Publish(scenarioStart, c)
	}
	if r := publish(func(c *Candidate) { c.Revision = 5 }); r.Outcome != Published {
		t.Fatalf("first: %+v", r)
	}
	for what, change := range map[string]func(*Candidate){
		"an older base":     func(c *Candidate) { c.Base = Version{1, 99}; c.Revision = 5 },
		"no base":           func(c *Candidate) { c.Base = Version{}; c.Revision = 5 },
		"an older revision": func(c *Candidate) { c.Revision = 4 },
		"another term":      func(c *Candidate) { c.Revision = 5; c.Term = 1 },
	} {
		if r := publish(change); r.Outcome != Stale || r.Reason == "" || r.Held != p.Snapshot().Get(n).Version() {
			t.Errorf("computed from %s: %+v", what, r)
		}
	}
	p.Lead(1)
	if r := publish(func(c *Candidate) { c.Revision = 6; c.Term = 1 }); r.Outcome != Published {
		t.Errorf("the leader's own: %+v", r)
	}
}

// TestHungDisk: versions go on, and grow, when no further block is reserved.
func TestHungDisk(t *testing.T) {
	var asked, beyond int
	p := NewPublisher(PublisherConfig{Epoch: 1, Next: 10, Reserved: 20, Refill: func() { asked++ },
		Events: PublisherEvents{BeyondReserved: func(uint64) { beyond++ }}})
	var newest Version
	publish := func(n int) {
		for range n {
			r := p.Publish(time.Time{}, candidate(p, Name{Namespace: "shop", Service: "checkout"}, uint32(newest.Seq)+100))
			if !newest.Less(r.Publication.Version) {
				t.Fatalf("%v after %v", r.Publication.Version, newest)
			}
			newest = r.Publication.Version
		}
	}
	publish(4)
	if asked != 0 {
		t.Errorf("asked for a block after 4 of 10")
	}
	publish(20)
	if asked != 1 || beyond != 1 {
		t.Errorf("asked %d times, reported %d times; want one each", asked, beyond)
	}
	if _, end := p.Reserved(); end <= newest.Seq {
		t.Errorf("Reserved says %d while %v was handed out", end, newest)
	}
	p.Reserve(100)
	publish(40)
	if asked != 2 || beyond != 1 {
		t.Errorf("after another block: asked %d times, reported %d times", asked, beyond)
	}
}

// TestDeletedWhileDown: who resumes learns of a service that went while the
// process was down.
func TestDeletedWhileDown(t *testing.T) {
	gone, kept := Name{Namespace: "shop", Service: "gone"}, Name{Namespace: "shop", Service: "kept"}
	k := candidate(NewPublisher(PublisherConfig{}), kept, 100)
	p := NewPublisher(PublisherConfig{
		Epoch: 2, Next: 50,
		Stored: map[Name]Stored{gone: {Endpoint: Version{1, 3}}, kept: {Version{1, 4}, Version{1, 2}, k.View.EndpointHash, k.View.ConfigHash}},
		Recent: []Change{{Version: Version{1, 3}, Name: gone}, {Version: Version{1, 4}, Name: kept}},
	})
	if r := p.Publish(time.Time{}, k); !r.Kept || r.Held != (Version{1, 4}) {
		t.Errorf("the same contents: %+v", r)
	}
	if told := p.Complete(); len(told) != 1 || told[0].Name != gone || told[0].New != nil || told[0].Version != (Version{2, 50}) {
		t.Errorf("told to the store: %+v", told)
	}
	changes, through, ok := p.Since(Version{1, 4})
	if !ok || len(changes) != 1 || changes[0].Name != gone || !changes[0].Deleted || through != (Version{2, 50}) {
		t.Errorf("since the last version before: %v %v %v", changes, through, ok)
	}
	for what, v := range map[string]Version{
		"a version that was never stored": {1, 5}, "one that the ring does not reach": {1, 2}, "one of the future": {3, 1},
	} {
		if _, _, ok := p.Since(v); ok {
			t.Errorf("%s can be resumed from", what)
		}
	}
}

// TestRingWraps: the newest RingSize changes can be resumed over, and a version
// that fell out of the ring cannot be resumed from.
func TestRingWraps(t *testing.T) {
	r := newRing(Version{1, 0}, nil)
	early := r
	for seq := range uint64(5 * RingSize) {
		r = r.add(Change{Version: Version{1, seq + 1}})
		back := Version{1, seq + 1 - min(seq+1, RingSize)}
		if seq%1000 != 0 && seq%RingSize > 2 {
			continue
		}
		got, ok := r.since(back)
		if !ok || uint64(len(got)) != min(seq+1, RingSize) || got[0].Version.Seq != back.Seq+1 || got[len(got)-1].Version != r.newest {
			t.Fatalf("at %d: %d changes, ok %v", seq+1, len(got), ok)
		}
	}
	if _, ok := r.since(Version{1, RingSize}); ok {
		t.Error("resumed from what is not there any more")
	}
	if got, ok := early.since(Version{1, 0}); !ok || len(got) != 0 {
		t.Errorf("a ring that was kept changed: %d changes", len(got))
	}
	if got, ok := r.since(r.newest); !ok || len(got) != 0 {
		t.Errorf("since the newest: %d changes, ok %v", len(got), ok)
	}
}

// TestReaders: whoever reads while shards publish sees whole snapshots whose
// versions only grow, and no change that the snapshot lacks.
func TestReaders(t *testing.T) {
	p := NewPublisher(PublisherConfig{Epoch: 1})
	p.Complete()
	stop := make(chan struct{})
	var readers, shards sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			var last, resumed Version
			for {
				select {
				case <-stop:
					return
				default:
				}
				changes, through, ok := p.Since(resumed)
				s := p.Snapshot()
				if s.Version().Less(last) || s.Version().Less(through) {
					t.Errorf("snapshot %v after %v, changes through %v", s.Version(), last, through)
				}
				last = s.Version()
				for v := range s.All() {
					if last.Less(v.Version()) || v.Name != s.Get(v.Name).Name {
						t.Errorf("view %v in snapshot %v", v.Version(), last)
					}
				}
				for _, c := range changes {
					if v := s.Get(c.Name); v == nil || v.Version().Less(c.Version) {
						t.Errorf("change %v is not in the snapshot", c.Version)
					}
				}
				if ok {
					resumed = through
				} else {
					resumed = Version{1, 0}
				}
			}
		})
	}
	for shard := range 4 {
		shards.Go(func() {
			now := time.Time{}
			for n := range 200 {
				now = now.Add(2 * time.Second)
				c := candidate(p, Name{Namespace: "shop", Service: fmt.Sprintf("s%d-%d", shard, n%8)}, uint32(1000-n))
				for p.Publish(now, c).Outcome == Deferred {
					now = now.Add(time.Second)
				}
			}
		})
	}
	shards.Wait()
	close(stop)
	readers.Wait()
}

// TestVerify finds every way in which a client can be wrong.
func TestVerify(t *testing.T) {
	p := NewPublisher(PublisherConfig{Epoch: 1})
	n, other := Name{Namespace: "shop", Service: "checkout"}, Name{Namespace: "shop", Service: "other"}
	p.Publish(time.Time{}, candidate(p, n, 100))
	s := p.Snapshot()
	right := s.Get(n)
	tampered := *right
	m := *right.Members[0]
	m.Weight = 7
	tampered.Members = []*Member{&m}
	old := *right
	old.Endpoint = Version{1, 0}
	for what, held := range map[string]map[Name]*View{
		"missing": {}, "extra": {n: right, other: right}, "tampered": {n: &tampered}, "old": {n: &old},
	} {
		if d := Verify(s, held); len(d) != 1 || d[0].Reason == "" {
			t.Errorf("%s: %+v", what, d)
		}
	}
	if d := Verify(s, map[Name]*View{n: right}); len(d) != 0 {
		t.Errorf("right: %+v", d)
	}
}

// TestSnapshotsAreApart: a publication changes no snapshot that is held.
func TestSnapshotsAreApart(t *testing.T) {
	var all []*View
	for n := range 600 { // more than one per bucket
		v := sampleView()
		v.Name, v.Endpoint = Name{Namespace: "shop", Service: fmt.Sprintf("s%d", n)}, Version{1, uint64(n + 1)}
		all = append(all, v)
	}
	one := NewSnapshot(true, all...)
	two := one.Without(all[0].Name, Version{1, 700})
	three := two.With(all[0])
	if one.Len() != 600 || two.Len() != 599 || three.Len() != 600 || one.Get(all[0].Name) != all[0] || two.Get(all[0].Name) != nil {
		t.Errorf("lengths %d %d %d", one.Len(), two.Len(), three.Len())
	}
	if two.Version() != (Version{1, 700}) || three.Version() != (Version{1, 700}) || one.Version() != (Version{1, 600}) {
		t.Errorf("versions %v %v %v", one.Version(), two.Version(), three.Version())
	}
	seen := 0
	for v := range one.All() {
		if one.Get(v.Name) != v {
			t.Errorf("%v is not where it is looked for", v.Name)
		}
		seen++
	}
	if seen != 600 || one.Get(Name{Namespace: "no", Service: "such"}) != nil {
		t.Errorf("%d views", seen)
	}
}

// TestDeletionsAreForgotten: a deletion is remembered for a day, so that a late
// candidate is stale, and no longer; composites learn of it at once.
func TestDeletionsAreForgotten(t *testing.T) {
	p := NewPublisher(PublisherConfig{Epoch: 1})
	p.Complete()
	now := time.Unix(1000, 0)
	remove := func(n Name) {
		c := candidate(p, n, 100)
		p.Publish(now, c)
		now = now.Add(time.Second)
		p.Publish(now, c)
		routes := p.Snapshot().Generations().Routes
		now = now.Add(time.Second)
		if r := p.Publish(now, Candidate{Name: n, Base: p.Snapshot().Get(n).Version()}); r.Outcome != Published {
			t.Fatalf("deletion: %+v", r)
		}
		if got := p.Snapshot().Generations().Routes; got != routes+1 {
			t.Errorf("generation of routes %d after %d and a deletion", got, routes)
		}
	}
	again, gone := Name{Namespace: "shop", Service: "again"}, Name{Namespace: "shop", Service: "gone"}
	remove(again)
	remove(gone)
	now = now.Add(23 * time.Hour)
	remove(again) // deleted once more: its first deletion is not the one to forget it by
	now = now.Add(2 * time.Hour)
	remove(Name{Namespace: "shop", Service: "other"})
	if p.services[again] == nil || p.services[gone] != nil || len(p.deleted) != 2 {
		t.Errorf("again is known: %v, gone is known: %v, %d deletions are remembered", p.services[again] != nil, p.services[gone] != nil, len(p.deleted))
	}
}

// TestAClockSetBackReleasesAGuard: times that lie ahead count as now.
func TestAClockSetBackReleasesAGuard(t *testing.T) {
	now := time.Unix(1000, 0)
	n := Name{Namespace: "shop", Service: "checkout"}
	a := NewAssembler(n, Memory{Trips: []Trip{{Zone: "a", Since: now.Add(time.Hour), SteadySince: now.Add(time.Hour)}}})
	in := Input{Change: &registry.Change{Name: n, Service: &registry.Service{Name: n}}}
	for uid := range UID(4) {
		in.Change.Instances = append(in.Change.Instances, registry.InstanceChange{UID: uid + 1, Row: &registry.Instance{UID: uid + 1, Service: n, Zone: "a", Weight: 100}})
		in.Verdicts = append(in.Verdicts, health.Verdict{UID: uid + 1, State: Eligible, Member: true, Weight: 100})
	}
	if c, next := a.Apply(now, in); !c.View.Guard.Tripped || !next.Equal(now.Add(30*time.Second)) {
		t.Fatalf("guard %+v, next %s", c.View.Guard, next)
	}
	if c, _ := a.Apply(now.Add(30*time.Second), Input{}); c.View.Guard.Tripped {
		t.Error("still held")
	}
}
