package desired

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/reconcile"
)

// Config is what a Writer is built from. Loaded, Commit, Refusal and Tell are required.
type Config struct {
	// Loaded is the registry as the store had it; the Writer owns its index.
	Loaded registry.Loaded
	// Commit writes rows and records in one batch, all or nothing, and returns
	// nil once they are durable. It may block as long as the disk does. It is
	// called by Run alone.
	Commit func(ctx context.Context, rows []registry.Row, records []Record) error
	// Refusal says why the store takes no writes now, or nil. It must be quick.
	Refusal func() error
	// KindOf sorts the errors of Commit and Refusal; nil: all are Failing.
	KindOf func(error) Kind
	// Tell hands a change to the service's shard. It is called in order, with a
	// lock held, and must neither block nor call back.
	Tell func(registry.Change)

	WriteTimeout time.Duration    // a caller waits for the disk this long; 0: 1 s
	RetryEvery   time.Duration    // pending removals are tried again this often; 0: 1 s
	QueueLength  int              // writes that may wait for the disk; 0: 4096
	Brake        reconcile.Limits // for the sources' lists; zero: reconcile.DefaultLimits
	Events       Events
}

// Events report what happens; each may be nil. They are called without locks.
type Events struct {
	// Committed: a batch of so many rows is durable.
	Committed func(rows int, took time.Duration)
	// Unacknowledged: a write was not known to be durable when its caller was answered.
	Unacknowledged func(Kind)
	// Pending: so many removals are not durable yet.
	Pending func(int)
	// Reconciled: a source's list was compared; refused are the changes that
	// could not be planned, by position in the decision's Apply.
	Reconciled func(d reconcile.Decision, refused map[int]error)
}

// Writer is the only writer of desired state. Run commits what the other
// methods ask for.
type Writer struct {
	cfg       Config
	directory atomic.Pointer[registry.Directory]
	wake      chan struct{} // size 1: there is something to commit

	mu      sync.Mutex
	index   *registry.Index
	queue   []*pendingWrite // waits for the next group
	pending []*removal      // applied, not durable; in the order of their application
	records []queued        // audit records that belong to no change
	sources map[string]*reconcile.Source
}

// New returns a Writer. Nothing is told to the shards before Full is called.
func New(cfg Config) *Writer {
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = time.Second
	}
	if cfg.RetryEvery == 0 {
		cfg.RetryEvery = time.Second
	}
	if cfg.QueueLength == 0 {
		cfg.QueueLength = 4096
	}
	if cfg.Brake == (reconcile.Limits{}) {
		cfg.Brake = reconcile.DefaultLimits()
	}
	if cfg.KindOf == nil {
		cfg.KindOf = func(error) Kind { return Failing }
	}
	w := &Writer{
		cfg: cfg, index: cfg.Loaded.Index, wake: make(chan struct{}, 1),
		sources: make(map[string]*reconcile.Source),
	}
	d := new(registry.Directory)
	var all []registry.Change
	for s := range w.index.Services() {
		if c, ok := w.index.Full(s.Name); ok {
			all = append(all, c)
		}
	}
	w.directory.Store(d.With(all))
	if len(cfg.Loaded.Undo) > 0 {
		w.pending = append(w.pending, newRemoval(cfg.Loaded.Undo, nil))
	}
	return w
}

// Run commits until ctx ends. It must run exactly once.
func (w *Writer) Run(ctx context.Context) error {
	retry := time.NewTicker(w.cfg.RetryEvery)
	defer retry.Stop()
	w.signal() // what the start left to undo
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-retry.C:
		}
		for w.commitGroup(ctx) {
		}
	}
}

// Full calls tell with the whole of every service, in no order, between two
// changes: what the shards start from, and what a shadow rebuild compares with.
// tell must neither block nor call back.
func (w *Writer) Full(tell func(registry.Change)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.index.Services() {
		if c, ok := w.index.Full(s.Name); ok {
			tell(c)
		}
	}
}

// Read runs a short function on the index, between two changes. The rows that
// it finds are immutable and may be kept; the index itself may not.
func (w *Writer) Read(look func(*registry.Index)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	look(w.index)
}

// Lookup finds a live instance by its uid, unadmitted ones included: its
// service, identity and source. It never waits.
func (w *Writer) Lookup(uid registry.UID) (*registry.Instance, bool) {
	return w.directory.Load().Lookup(uid)
}

// Directory is what Lookup reads, as of now; immutable.
func (w *Writer) Directory() *registry.Directory { return w.directory.Load() }

// apply makes an overlay part of the index and tells everybody; mu is held.
func (w *Writer) apply(o *registry.Overlay) registry.Applied {
	a := w.index.Apply(o)
	if len(a.Changes) > 0 {
		w.directory.Store(w.directory.Load().With(a.Changes))
	}
	for _, c := range a.Changes {
		w.cfg.Tell(c)
	}
	return a
}

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
