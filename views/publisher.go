package views

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// PublisherConfig is what a Publisher starts from.
type PublisherConfig struct {
	Epoch uint64 // this start's epoch (DESIGN.md §8)
	// Next is the first seq of the block reserved on disk, Reserved the first
	// one beyond it.
	Next, Reserved uint64
	// Refill asks for another block when half of what was reserved is used. It
	// must return at once; the answer is Publisher.Reserve. It is asked once
	// per block. Nil: versions are not reserved (tests, followers).
	Refill func()
	// Stored is what each service's last view was before the start; nil: nothing
	// is remembered, and every view gets a new version. The Publisher owns it.
	Stored map[Name]Stored
	// Recent are the region's last changes before the start, in ascending order.
	Recent []Change
	Events PublisherEvents
}

// PublisherEvents report what happens; each may be nil. They are called
// outside the lock, from the goroutine that caused them.
type PublisherEvents struct {
	// ShedBegan and ShedEnded declare an episode in which additions wait
	// longer than a second.
	ShedBegan func(now time.Time, window time.Duration)
	ShedEnded func(now time.Time, lasted time.Duration)
	// BeyondReserved says that seq passed what is reserved on disk: the disk
	// hangs, and publishing goes on (the epoch keeps versions unique).
	BeyondReserved func(seq uint64)
}

// Publisher stamps versions, keeps the lanes and the ring of recent changes,
// and swaps the Snapshot. It is shared by all shards; each service is published
// by one shard only. Nothing in it waits for a disk or a client.
type Publisher struct {
	refill   func()
	events   PublisherEvents
	snapshot atomic.Pointer[Snapshot]
	recent   atomic.Pointer[ring] // stored after the snapshot that holds its changes

	mu       sync.Mutex
	epoch    uint64
	next     uint64 // the seq that the next publication gets
	reserved uint64 // first seq that is not reserved on disk
	halfway  uint64 // reaching it asks for the next block; 0: asked already
	beyond   bool
	term     uint64
	services map[Name]*service
	deleted  []tombstone // oldest first
	stored   map[Name]Stored
	shed     shedding
}

// tombstoneLife is how long a deleted service is remembered (STORE.md §2).
const tombstoneLife = 24 * time.Hour

type tombstone struct {
	name    Name
	version Version
	at      time.Time
}

// service is what a Publisher keeps of a service beside its view; also after
// its deletion, so that a late candidate of the old one is stale.
type service struct {
	pace
	held      Version // published; the deletion's, when it is deleted
	revision  uint64  // newest registry revision published
	restamped bool
}

// NewPublisher returns a Publisher whose Snapshot is empty and not complete.
func NewPublisher(c PublisherConfig) *Publisher {
	p := &Publisher{
		refill:   c.Refill,
		events:   c.Events,
		epoch:    c.Epoch,
		next:     max(c.Next, 1),
		reserved: c.Reserved,
		halfway:  c.Next + (c.Reserved-min(c.Next, c.Reserved))/2,
		services: map[Name]*service{},
		stored:   c.Stored,
	}
	if p.stored == nil {
		p.stored = map[Name]Stored{}
	}
	s := NewSnapshot(false)
	s.head.version = Version{p.epoch, p.next - 1} // all that could be published before the start
	p.snapshot.Store(s)
	p.recent.Store(newRing(s.head.version, c.Recent))
	return p
}

// Snapshot returns the region's newest views. It never blocks.
func (p *Publisher) Snapshot() *Snapshot { return p.snapshot.Load() }

// Publish compares the candidate with what is published and makes it the
// service's view if it differs, is not stale, and its lane lets it go now
// (DESIGN.md §8). Only the shard that owns the service may call it. After
// Published the caller tells every feed.
func (p *Publisher) Publish(now time.Time, c Candidate) Result {
	p.mu.Lock()
	r, after := p.publish(now, c)
	p.mu.Unlock()
	if after != nil {
		after()
	}
	return r
}

func (p *Publisher) publish(now time.Time, c Candidate) (Result, func()) {
	s := p.services[c.Name]
	if s == nil {
		s = &service{}
	}
	if why := p.stale(s, c); why != "" {
		return Result{Outcome: Stale, Reason: why, Held: s.held}, nil
	}
	snap := p.snapshot.Load()
	old := snap.Get(c.Name)
	d := diff(old, c.View)
	restamp := c.Restamp && !s.restamped && old != nil && c.View != nil
	if d.kinds == 0 && !restamp {
		s.waiting = time.Time{}
		s.revision = max(s.revision, c.Revision)
		return Result{Outcome: Unchanged, Held: s.held}, nil
	}
	// Until the first answer nobody waits for a lane, and everybody for the start.
	if snap.Complete() && !restamp {
		if at, why := s.due(now, d, p.shed.window()); at.After(now) {
			if d.lane == Additions && s.waiting.IsZero() {
				s.waiting = now
			}
			p.services[c.Name] = s
			return Result{Outcome: Deferred, Until: at, Reason: why, Held: s.held}, nil
		}
	}
	if restamp {
		s.restamped = true
		d.kinds |= Restate
	}
	p.services[c.Name] = s
	return p.commit(now, c, s, old, d, restamp)
}

// stale says why the candidate must not be published, or nothing.
func (p *Publisher) stale(s *service, c Candidate) string {
	switch {
	case c.Term != p.term:
		return "computed under another leader's term"
	case c.Base != s.held && !(c.Base.IsZero() && p.snapshot.Load().Get(c.Name) == nil):
		return "computed from " + c.Base.String() + ", published is " + s.held.String()
	case c.Revision < s.revision:
		return "computed from an older registry revision than what is published"
	}
	return ""
}

// commit stamps, remembers and swaps. It returns what to call outside the lock.
func (p *Publisher) commit(now time.Time, c Candidate, s *service, old *View, d difference, restamp bool) (Result, func()) {
	snap := p.snapshot.Load()
	pub := Publication{Name: c.Name, Old: old, Lane: d.lane, Kinds: d.kinds}
	var kept bool
	var after func()
	if c.View == nil {
		pub.Version, after = p.stamp()
		snap = snap.Without(c.Name, pub.Version)
		p.bury(tombstone{c.Name, pub.Version, now})
	} else {
		v := *c.View
		v.PublishedAt = now
		kept, after = p.version(&v, s, old, restamp)
		pub.New, pub.Version = &v, v.Version()
		snap = snap.With(&v)
	}
	if d.kinds&Reconfigure != 0 || old == nil || c.View == nil {
		g := snap.head.generations
		g.Routes++
		snap = snap.WithHead(snap.head.complete, g)
	}
	p.snapshot.Store(snap)
	if !kept {
		p.remember(Change{Version: pub.Version, Name: c.Name, Deleted: c.View == nil, Lane: d.lane, Kinds: d.kinds})
	}
	s.held, s.revision = pub.Version, max(s.revision, c.Revision)
	s.waiting, s.lastPublished = time.Time{}, now
	if d.lane == Withdrawals {
		s.lastWithdrawal = now
	}
	return Result{Outcome: Published, Publication: pub, Kept: kept, Held: s.held}, after
}

// bury remembers a deletion and forgets those that are old enough.
func (p *Publisher) bury(t tombstone) {
	p.deleted = append(p.deleted, t)
	for len(p.deleted) > 0 && t.at.Sub(p.deleted[0].at) > tombstoneLife {
		old := p.deleted[0]
		p.deleted = p.deleted[1:]
		if s := p.services[old.name]; s != nil && s.held == old.version {
			delete(p.services, old.name)
		}
	}
}

// version gives a view its two versions: a part whose contents are those held,
// or those last stored before the start, keeps its own (ENGINE.md §1).
func (p *Publisher) version(v *View, s *service, old *View, restamp bool) (kept bool, after func()) {
	v.Endpoint, v.Config = Version{}, Version{}
	if old != nil && !restamp {
		v.keep(Stored{old.Endpoint, old.Config, old.EndpointHash, old.ConfigHash})
	} else if last, ok := p.stored[v.Name]; ok && old == nil && s.held.IsZero() {
		v.keep(last)
	}
	delete(p.stored, v.Name)
	kept = !v.Endpoint.IsZero() && !v.Config.IsZero()
	if kept {
		return true, nil
	}
	at, after := p.stamp()
	if v.Endpoint.IsZero() {
		v.Endpoint = at
	}
	if v.Config.IsZero() {
		v.Config = at
	}
	return false, after
}

// keep takes over the version of each part whose hash is equal.
func (v *View) keep(last Stored) {
	if last.EndpointHash == v.EndpointHash {
		v.Endpoint = last.Endpoint
	}
	if last.ConfigHash == v.ConfigHash {
		v.Config = last.Config
	}
}

// stamp takes the next version. A block that is used up does not stop it.
func (p *Publisher) stamp() (Version, func()) {
	v := Version{p.epoch, p.next}
	p.next++
	var after func()
	if p.halfway != 0 && p.next >= p.halfway && p.refill != nil {
		p.halfway = 0
		after = p.refill
	}
	if p.refill != nil && v.Seq >= p.reserved && !p.beyond {
		p.beyond = true
		refill, report := after, p.events.BeyondReserved
		after = func() {
			if refill != nil {
				refill()
			}
			if report != nil {
				report(v.Seq)
			}
		}
	}
	return v, after
}

// Reserve says that every seq below end is now reserved on disk.
func (p *Publisher) Reserve(end uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if end <= p.reserved {
		return
	}
	p.reserved = end
	p.halfway = p.next + (end-min(p.next, end))/2
	p.beyond = p.next > end
}

// Reserved returns the epoch and the first seq that is not reserved: no
// version at or above it was ever handed out by this store.
func (p *Publisher) Reserved() (epoch, end uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch, max(p.reserved, p.next)
}

// remember adds to the ring; needs mu, and the snapshot that holds the change.
func (p *Publisher) remember(c Change) { p.recent.Store(p.recent.Load().add(c)) }

// Since returns the region's changes above v, oldest first, and through: every
// change up to and including it is in the Snapshot already. It is not ok when
// the ring does not reach back to v, or v is none of this region's versions;
// then only the whole Snapshot tells. It never blocks; the changes are shared
// and must not be written to.
func (p *Publisher) Since(v Version) (changes []Change, through Version, ok bool) {
	r := p.recent.Load()
	changes, ok = r.since(v)
	return changes, r.newest, ok
}

// Complete says that desired state is loaded and every service's view was
// offered since the start: from now on surfaces answer. A service that had a
// view before the start and has none now was deleted meanwhile; that becomes a
// change like any other, so that clients which resume learn of it. The
// deletions are returned for the view store, which would name them again at the
// next start.
func (p *Publisher) Complete() (gone []Publication) {
	p.mu.Lock()
	s := p.snapshot.Load()
	var after []func()
	for _, n := range slices.SortedFunc(maps.Keys(p.stored), Name.Compare) {
		at, f := p.stamp()
		gone = append(gone, Publication{Version: at, Name: n, Lane: Withdrawals, Kinds: Withdraw})
		s = s.Without(n, at)
		if f != nil {
			after = append(after, f)
		}
	}
	clear(p.stored)
	p.snapshot.Store(s.WithHead(true, s.head.generations))
	for _, g := range gone {
		p.remember(Change{Version: g.Version, Name: g.Name, Deleted: true, Lane: g.Lane, Kinds: g.Kinds})
	}
	p.mu.Unlock()
	for _, f := range after {
		f()
	}
	return gone
}

// Hold puts the last stored view of a service into the first snapshot as it
// was, because the service's own row does not decode: it keeps its last good
// state until the row is put again (RELIABILITY.md, I20). It is called before
// Complete. Where something newer may have been published than what was
// stored, the view gets a new version; that publication is returned for the
// view store.
func (p *Publisher) Hold(v *View) (anew *Publication) {
	p.mu.Lock()
	var after func()
	last, known := p.stored[v.Name]
	delete(p.stored, v.Name)
	newest := known && last == Stored{v.Endpoint, v.Config, v.EndpointHash, v.ConfigHash}
	if !newest {
		c := *v
		c.Endpoint, after = p.stamp()
		c.Config = c.Endpoint
		v = &c
		anew = &Publication{Version: c.Endpoint, Name: c.Name, New: v, Lane: Additions, Kinds: Restate}
	}
	p.services[v.Name] = &service{held: v.Version()}
	p.snapshot.Store(p.snapshot.Load().With(v))
	if anew != nil {
		p.remember(Change{Version: anew.Version, Name: v.Name, Lane: anew.Lane, Kinds: anew.Kinds})
	}
	p.mu.Unlock()
	if after != nil {
		after()
	}
	return anew
}

// PolicyChanged makes the policy's generation visible to renderings.
func (p *Publisher) PolicyChanged(generation uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.snapshot.Load()
	g := s.head.generations
	g.Policy = generation
	p.snapshot.Store(s.WithHead(s.head.complete, g))
}

// Lead starts a leader's term: candidates of any other term are stale.
func (p *Publisher) Lead(term uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.term = term
}

// FanOut is fed by the surfaces: how long the last change took to be handed to
// every stream that wanted it. It sets the additions window.
func (p *Publisher) FanOut(now time.Time, took time.Duration) {
	p.mu.Lock()
	began, ended := p.shed.measure(now, took)
	wide, since := p.shed.window(), p.shed.since
	if began {
		p.shed.since = now
	} else if ended {
		p.shed.since = time.Time{}
	}
	p.mu.Unlock()
	if began && p.events.ShedBegan != nil {
		p.events.ShedBegan(now, wide)
	}
	if ended && p.events.ShedEnded != nil {
		p.events.ShedEnded(now, now.Sub(since))
	}
}

// Shedding returns the additions window in force, and since when it is above a
// second; zero: it is not, and nothing is shed.
func (p *Publisher) Shedding() (window time.Duration, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shed.window(), p.shed.since
}
