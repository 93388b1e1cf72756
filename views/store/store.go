package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Config is what a store needs. Only Dir and Now are required.
type Config struct {
	Dir string
	FS  vfs.FS    // nil: the operating system's
	Now time.Time // of the start: the one use of the wall clock (DESIGN.md §8)

	CacheBytes    int64         // block cache; 0: 16 MiB
	MemTableBytes uint64        // 0: 4 MiB
	QueueLength   int           // write-behind records that may wait; 0: 8192
	QueueBytes    int64         // approximate bytes of them; 0: 64 MiB
	SlowAfter     time.Duration // a file operation is reported as slow; 0: 500 ms
	RetryEvery    time.Duration // how often a full store looks for space; 0: 1 s

	ViewAge     time.Duration // views superseded for longer are dropped; 0: 24 h
	ViewBytes   int64         // and the oldest above this many bytes; 0: 1 GiB
	RingLength  int           // recent changes kept; 0: 16384
	TransitAge  time.Duration // transitions kept; 0: 7 days
	MinuteAge   time.Duration // minutes of evidence kept; 0: 7 days
	Events      Events
	CommitGroup int // commits synced together at most; 0: 256
}

func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = vfs.Default
	}
	orInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	orDuration := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	orBytes := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	orBytes(&c.CacheBytes, 16<<20)
	orBytes(&c.QueueBytes, 64<<20)
	orBytes(&c.ViewBytes, 1<<30)
	orInt(&c.QueueLength, 8192)
	orInt(&c.RingLength, 16384)
	orInt(&c.CommitGroup, 256)
	orDuration(&c.SlowAfter, 500*time.Millisecond)
	orDuration(&c.RetryEvery, time.Second)
	orDuration(&c.ViewAge, 24*time.Hour)
	orDuration(&c.TransitAge, 7*24*time.Hour)
	orDuration(&c.MinuteAge, 7*24*time.Hour)
	if c.MemTableBytes == 0 {
		c.MemTableBytes = 4 << 20
	}
	return c
}

// Store is an open store. Close ends it.
type Store struct {
	// Fixed after Open.
	cfg    Config
	cache  *pebble.Cache
	lock   io.Closer
	epoch  uint64
	ctx    context.Context // ends at Close: every goroutine's signal
	cancel context.CancelFunc
	wg     sync.WaitGroup // goroutines that always end at Close

	// Any goroutine.
	status        atomic.Pointer[Status]
	auditSeq      atomic.Uint64 // last audit record's number
	transitionSeq atomic.Uint64
	refill        chan struct{} // size 1
	requests      chan *request
	froze         chan struct{} // size 1: wakes the supervisor
	behind        behindQueue
	closeOnce     sync.Once
	closeErr      error

	// reading is held by readers, and by what closes a database under them.
	reading sync.RWMutex

	// Guarded by mu.
	mu         sync.Mutex
	opening    *opening // the current one
	reserved   func(end uint64)
	doubt      *group // synced group whose fate the freeze left open
	background sparse
	corrupt    sparse
}

// Open opens or creates the store in cfg.Dir and reads everything desired.
//
// When the disk fails or is full while it opens, the store is opened to read
// only, full or frozen from the start, so that what it holds can be served. An
// error means that it cannot even be read, or that another process has it.
func Open(cfg Config) (*Store, Loaded, error) {
	cfg = cfg.withDefaults()
	if err := cfg.FS.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, Loaded{}, fmt.Errorf("store folder %s cannot be made: %w", cfg.Dir, err)
	}
	lock, err := cfg.FS.Lock(cfg.FS.PathJoin(cfg.Dir, "LOCK"))
	if err != nil {
		return nil, Loaded{}, fmt.Errorf("store folder %s is in use by another process, or cannot be locked: %w", cfg.Dir, err)
	}
	s := &Store{
		cfg: cfg, cache: pebble.NewCache(cfg.CacheBytes), lock: lock,
		refill: make(chan struct{}, 1), requests: make(chan *request), froze: make(chan struct{}, 1),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.behind.init(cfg.QueueLength, cfg.QueueBytes)
	s.status.Store(&Status{})
	loaded, err := s.start()
	if err != nil {
		s.cancel()
		s.cache.Unref()
		return nil, Loaded{}, errors.Join(err, lock.Close())
	}
	return s, loaded, nil
}

// start makes the first opening, reads it, and starts the goroutines.
func (s *Store) start() (Loaded, error) {
	o, err := s.openPebble(false)
	if StateOf(err) != Writable {
		cause := err
		if o, err = s.openPebble(true); err != nil {
			err = errors.Join(cause, err)
		}
	}
	if err != nil {
		return Loaded{}, fmt.Errorf("store folder %s cannot be opened: %w", s.cfg.Dir, err)
	}
	loaded, n, err := o.load(s.cfg.Now)
	if err != nil {
		o.abandon()
		return Loaded{}, fmt.Errorf("store folder %s cannot be read: %w", s.cfg.Dir, err)
	}
	s.epoch = loaded.Epoch
	s.auditSeq.Store(loaded.auditSeq)
	loaded.Reserved = loaded.Next
	n.Seq = loaded.Next + seqBlock
	if s.begin(o, n, false) {
		loaded.Reserved = n.Seq
	}
	loaded.Status = s.Status()
	s.wg.Add(1)
	go s.supervise()
	return loaded, nil
}

// begin writes the counters of a new opening and starts its goroutines; false
// when the opening froze over it, or only reads. flush has what was recovered
// from the log written to tables first: a log whose sync failed may be in the
// kernel's cache alone.
func (s *Store) begin(o *opening, n numbers, flush bool) bool {
	s.mu.Lock()
	s.opening = o
	s.mu.Unlock()
	if o.readOnly {
		return false
	}
	o.numbers = n
	b := o.db.NewBatch()
	if err := n.addTo(b); err != nil {
		return false
	}
	done := make(chan error, 1)
	go func() {
		err := b.Commit(pebble.Sync)
		if err == nil && flush {
			err = o.db.Flush()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			o.fs.stop("commit", s.cfg.Dir, err)
			return false
		}
	case <-o.fs.frozen:
		return false
	}
	o.wg.Add(2)
	go s.write(o)
	go s.writeBehind(o)
	return true
}

// Status returns the store's state and its cause.
func (s *Store) Status() Status { return *s.status.Load() }

// State returns the store's state.
func (s *Store) State() State { return s.Status().State }

// Close ends the store. What was written behind and fits the disk within a
// moment is kept. A frozen store is left as it is, never closed, since closing
// it would write; its goroutines stay parked until the process ends. Closing
// twice is safe.
func (s *Store) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

// closeWithin bounds each step of Close that waits for the disk.
const closeWithin = 5 * time.Second

func (s *Store) close() error {
	// The supervisor ends first, so that nothing reopens; then the writers,
	// then Pebble, then the folder's lock: the reverse of Open.
	s.cancel()
	if !waitFor(&s.wg, closeWithin) {
		return fmt.Errorf("store folder %s: the disk did not answer within %s; its lock is kept", s.cfg.Dir, closeWithin)
	}
	s.mu.Lock()
	o, doubt := s.opening, s.doubt
	s.doubt = nil
	s.mu.Unlock()
	last := s.Status()
	s.status.Store(&Status{State: Closed, Err: last.Err, Op: last.Op, Path: last.Path})
	if doubt != nil {
		doubt.settle(&Unavailable{Status: last, InDoubt: true})
	}
	err := o.shut(&s.reading, closeWithin)
	s.behind.dropAll(s.cfg.Events.Dropped)
	if !o.fs.waitIdle(closeWithin) {
		// A change is still with the kernel: another opening must not start.
		return errors.Join(err, fmt.Errorf("store folder %s: a disk operation did not end; its lock is kept", s.cfg.Dir))
	}
	if err == nil {
		s.cache.Unref()
	}
	return errors.Join(err, s.lock.Close())
}

func waitFor(wg *sync.WaitGroup, within time.Duration) bool {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(within):
		return false
	}
}
