package store

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// opening is one opening of Pebble: its database on its own freezer. A frozen
// one is abandoned and replaced.
type opening struct {
	fs       *freezer
	db       *pebble.DB
	readOnly bool
	stop     chan struct{}  // closed to end the writers
	wg       sync.WaitGroup // the two writers; never ends when frozen

	// Owned by the writer goroutine after begin.
	numbers numbers
}

// formatVersion pins Pebble's format: a newer one cannot be read by the
// version before it, so it moves with a release of ours, never with Pebble's.
const formatVersion = pebble.FormatValueSeparation

// openPebble opens Pebble on a freezer of its own. It returns nil and the
// cause when the disk froze it.
func (s *Store) openPebble(readOnly bool) (*opening, error) {
	o := &opening{readOnly: readOnly, stop: make(chan struct{})}
	o.fs = newFreezer(s.cfg.FS, func(st Status) { s.noteFrozen(o, st) })
	type result struct {
		db  *pebble.DB
		err error
	}
	done := make(chan result, 1)
	go func() {
		db, err := pebble.Open(s.cfg.Dir, s.options(o))
		done <- result{db, err}
	}()
	select {
	case r := <-done:
		o.db = r.db
		if r.err != nil {
			return nil, r.err
		}
		return o, nil
	case <-o.fs.frozen:
	}
	st := o.fs.status
	if st.State == Frozen {
		// A failed read also returns to Pebble, whose own error says more.
		select {
		case r := <-done:
			return nil, errors.Join(&Unavailable{Status: st}, r.err)
		case <-time.After(openGrace):
		}
	}
	return nil, &Unavailable{Status: st}
}

// openGrace is how long a frozen Open may take to return an error by itself.
const openGrace = 50 * time.Millisecond

func (s *Store) options(o *opening) *pebble.Options {
	return &pebble.Options{
		FS:                    o.fs,
		ReadOnly:              o.readOnly,
		Cache:                 s.cache,
		MemTableSize:          s.cfg.MemTableBytes,
		FormatMajorVersion:    formatVersion,
		MaxOpenFiles:          256,
		Logger:                pebbleLogger{o.fs},
		DisableTableStats:     true,
		L0CompactionThreshold: 4,
		EventListener: &pebble.EventListener{
			BackgroundError: s.backgroundError,
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				s.corruption(fmt.Errorf("%s: %w", i.Path, i.Details))
			},
			WriteStallBegin: func(i pebble.WriteStallBeginInfo) {
				if tell := s.cfg.Events.WriteStall; tell != nil {
					tell(i.Reason)
				}
			},
		},
	}
}

// pebbleLogger drops Pebble's lines, whose facts come through events, and
// freezes where Pebble would end the process.
type pebbleLogger struct{ fs *freezer }

// Infof implements pebble.Logger.
func (pebbleLogger) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (pebbleLogger) Errorf(string, ...any) {}

// Fatalf implements pebble.Logger; it never returns, as Pebble expects.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.fs.stop("pebble", "", fmt.Errorf(format, args...))
	park()
}

func (s *Store) backgroundError(err error) {
	s.mu.Lock()
	leftOut, ok := s.background.pass(time.Now())
	s.mu.Unlock()
	if tell := s.cfg.Events.BackgroundError; ok && tell != nil {
		tell(err, leftOut)
	}
}

func (s *Store) corruption(err error) {
	s.mu.Lock()
	leftOut, ok := s.corrupt.pass(time.Now())
	s.mu.Unlock()
	if tell := s.cfg.Events.Corruption; ok && tell != nil {
		tell(err, leftOut)
	}
}

// noteFrozen runs on whatever goroutine met the error, with Pebble's locks held.
func (s *Store) noteFrozen(_ *opening, st Status) {
	s.status.Store(&st)
	select {
	case s.froze <- struct{}{}:
	default:
	}
}

func (o *opening) isFrozen() bool {
	select {
	case <-o.fs.frozen:
		return true
	default:
		return false
	}
}

// abandon gives up an opening that nobody has started to use.
func (o *opening) abandon() {
	if !o.isFrozen() {
		_ = o.shut(new(sync.RWMutex), closeWithin) // the error that led here is the one to report
	}
}

// shut ends the writers, waits for readers and closes Pebble, unless it is or
// becomes frozen.
func (o *opening) shut(readers *sync.RWMutex, within time.Duration) error {
	close(o.stop)
	done := make(chan error, 1)
	go func() {
		o.wg.Wait()
		readers.Lock()
		defer readers.Unlock()
		done <- o.db.Close()
	}()
	select {
	case err := <-done:
		return err
	case <-o.fs.frozen:
		return nil
	case <-time.After(within):
		return fmt.Errorf("the disk did not answer within %s", within)
	}
}
