package shard

import (
	"context"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// Set is all shards of a process. Submit and the like may be called from any
// goroutine, also before Run: what comes early waits in the inboxes.
type Set struct {
	// Fixed after New.
	cfg       Config
	shards    []*shard
	observers *observers
	aged      chan agedOut
	started   time.Time // of Run; set before the shards start
	stopped   chan struct{}

	loading   atomic.Int32 // shards that have not loaded yet
	services  atomic.Int64 // loaded
	instances atomic.Int64
}

type agedOut struct {
	name registry.Name
	uids []registry.UID
}

// Boot is what a start finds on disk.
type Boot struct {
	// Services holds every service with all its instances.
	Services []registry.Change
	// Memories are the checkpoints by service, as SaveCheckpoint was given
	// them. What is missing admits.
	Memories map[registry.Name][]byte
	// Lost are the members of last published views whose stored rows do not
	// decode; they stay as they were until their service is repaired.
	Lost map[registry.Name][]*views.Member
	// Held are the published views of services whose own rows do not decode.
	// Each stays as it is until its service is put again, or deleted.
	Held map[registry.Name]*views.View
}

// New builds the shards; Run starts them.
func New(cfg Config) *Set {
	cfg = cfg.withDefaults()
	s := &Set{cfg: cfg, observers: newObservers(&cfg), aged: make(chan agedOut, 256), stopped: make(chan struct{})}
	for k := range cfg.Shards {
		s.shards = append(s.shards, newShard(s, k))
	}
	return s
}

// Run loads what boot holds, builds every view, says Complete, and goes on
// until ctx ends. It saves a last checkpoint before it returns nil. It may be
// called once.
func (s *Set) Run(ctx context.Context, boot Boot) error {
	s.started = time.Now()
	s.loading.Store(int32(len(s.shards)))
	parts := make([][]registry.Change, len(s.shards))
	for _, c := range boot.Services {
		k := s.index(c.Name)
		parts[k] = append(parts[k], c)
	}
	var reaping sync.WaitGroup
	reaping.Go(s.reap)
	watching, blink := context.WithCancel(context.Background())
	var observing sync.WaitGroup
	observing.Go(func() { s.observers.run(watching) })
	var running sync.WaitGroup
	for k, sh := range s.shards {
		running.Go(func() { sh.run(ctx, parts[k], boot) })
	}
	// Stop order: the shards, then the observers and the reaper that they feed,
	// then whoever still asks.
	running.Wait()
	blink()
	observing.Wait()
	close(s.aged)
	reaping.Wait()
	close(s.stopped)
	return nil
}

// loaded is called by each shard once its views are built; the last one
// completes the start and lets every shard count its leases from here.
func (s *Set) loaded(services, instances int) {
	s.services.Add(int64(services))
	s.instances.Add(int64(instances))
	if s.loading.Add(-1) > 0 {
		return
	}
	s.cfg.Complete()
	if f := s.cfg.Events.Rebuilt; f != nil {
		f(int(s.services.Load()), int(s.instances.Load()), time.Since(s.started))
	}
	for _, sh := range s.shards {
		sh.inbox.putReady()
	}
}

// reap hands lapsed instances to the registry, which may wait for a disk. It
// ends when the shards have.
func (s *Set) reap() {
	for a := range s.aged {
		if s.cfg.AgedOut != nil {
			s.cfg.AgedOut(a.name, a.uids)
		}
	}
}

// SubmitChange takes the newest rows of a service after a commit. It is never
// lost.
func (s *Set) SubmitChange(c registry.Change) { s.of(c.Name).inbox.putChange(c) }

// SubmitRenewal takes the renewal of an instance's lease, as of now. It is
// never lost.
func (s *Set) SubmitRenewal(n registry.Name, uid registry.UID) {
	s.of(n).inbox.putRenewal(n, uid, time.Now())
}

// Submit takes samples on instances of one service, of which At must be set. It
// keeps none of the slice. When the inbox is full, ordinary samples are dropped
// and counted; the newest NOT_SERVING and DRAINING of each instance, and the
// newest refused connection that each prober met, are kept, and are judged
// without waiting for a tick.
func (s *Set) Submit(n registry.Name, samples []health.Sample) {
	count(s.cfg.Events.Dropped, s.of(n).inbox.putSamples(n, samples))
}

// SubmitOutcomes takes one report of callers on instances of one service, and
// keeps none of it. When the inbox is full the whole report is dropped, and its
// counts are counted.
func (s *Set) SubmitOutcomes(n registry.Name, o *health.Outcomes) {
	count(s.cfg.Events.OutcomesDropped, s.of(n).inbox.putOutcomes(n, o))
}

// Restamp asks for a new version of a service's unchanged view, because a
// client offered a higher one than we hold (DESIGN.md §8). The Publisher grants
// it once per service and start.
func (s *Set) Restamp(n registry.Name) { s.of(n).inbox.putRestamp(n) }

func (s *Set) of(n registry.Name) *shard { return s.shards[s.index(n)] }

// index hashes by FNV-1a over namespace, NUL, service.
func (s *Set) index(n registry.Name) int {
	h := fnv.New32a()
	h.Write([]byte(n.Namespace))
	h.Write([]byte{0})
	h.Write([]byte(n.Service))
	return int(h.Sum32() % uint32(len(s.shards)))
}
