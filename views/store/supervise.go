package store

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// supervise is the goroutine that watches the disk: it reports slow
// operations, tells of a freeze, and reopens a full store once there is room.
func (s *Store) supervise() {
	defer s.wg.Done()
	ticker := time.NewTicker(min(s.cfg.RetryEvery, s.cfg.SlowAfter))
	defer ticker.Stop()
	var frozenAt, retryAt time.Time
	wait := s.cfg.RetryEvery
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.froze:
			if s.State() == Writable {
				continue // an attempt to reopen froze, and a later one did not
			}
			if frozenAt.IsZero() {
				frozenAt, retryAt = time.Now(), time.Now().Add(wait)
				s.tellFrozen()
			}
			if s.State() == Frozen {
				s.giveUpDoubt()
			}
		case now := <-ticker.C:
			s.reportSlow()
			if s.State() != Full || now.Before(retryAt) {
				continue
			}
			if s.reopen() {
				s.tellResumed(time.Since(frozenAt))
				frozenAt, wait = time.Time{}, s.cfg.RetryEvery
				continue
			}
			retryAt = time.Now().Add(wait)
		}
	}
}

func (s *Store) tellFrozen() {
	if tell := s.cfg.Events.Frozen; tell != nil {
		tell(s.Status())
	}
}

func (s *Store) tellResumed(after time.Duration) {
	if tell := s.cfg.Events.Resumed; tell != nil {
		tell(after)
	}
}

// giveUpDoubt answers the group that was under way when the disk failed.
func (s *Store) giveUpDoubt() {
	s.mu.Lock()
	g := s.doubt
	s.doubt = nil
	s.mu.Unlock()
	if g != nil {
		g.settle(&Unavailable{Status: s.Status(), InDoubt: true})
	}
}

func (s *Store) reportSlow() {
	tell := s.cfg.Events.DiskSlow
	if tell == nil {
		return
	}
	s.mu.Lock()
	o := s.opening
	s.mu.Unlock()
	o.fs.slow(s.cfg.SlowAfter, tell)
}

// reopen replaces a frozen opening once the disk has room again. The old one
// is left as it is: its goroutines are parked, and it must not be closed.
func (s *Store) reopen() bool {
	s.mu.Lock()
	old := s.opening
	s.mu.Unlock()
	if !old.fs.idle() || !s.hasRoom() {
		return false
	}
	o, err := s.openPebble(false)
	if err != nil {
		return false
	}
	n, ok, err := readNumbers(o.db)
	if err != nil || !ok {
		// Damaged counters heal at a start, where every row is read.
		o.fs.stop("read", s.cfg.Dir, fmt.Errorf("counters cannot be read after reopening: %w", errors.Join(err, errNoCounters)))
		return false
	}
	s.mu.Lock()
	g := s.doubt
	s.doubt = nil
	s.mu.Unlock()
	reached := n.Commit
	n.Epoch, n.Seq = max(n.Epoch, s.epoch), max(n.Seq, 1)+seqBlock
	if !s.begin(o, n, g != nil && g.number <= reached) {
		// It froze again: the group stays in doubt.
		s.mu.Lock()
		s.doubt = g
		s.mu.Unlock()
		return false
	}
	s.tellReserved(n.Seq)
	s.status.Store(&Status{})
	if o.isFrozen() {
		s.status.Store(&o.fs.status)
	}
	if g != nil {
		var err error
		if g.number > reached {
			err = &Unavailable{Status: old.fs.status}
		}
		g.settle(err)
	}
	if old.readOnly && !old.isFrozen() {
		s.closeReadOnly(old)
	}
	return true
}

var errNoCounters = errors.New("no copy is good")

// hasRoom tries the disk with a file of its own: free space is not always what
// statfs says (quotas, reserved blocks).
func (s *Store) hasRoom() bool {
	need := 2*s.cfg.MemTableBytes + probeBytes
	if u, err := s.cfg.FS.GetDiskUsage(s.cfg.Dir); err == nil && u.AvailBytes < need {
		return false
	}
	name := s.cfg.FS.PathJoin(s.cfg.Dir, "room.probe")
	err := writeProbe(s.cfg.FS, name)
	return errors.Join(err, s.cfg.FS.Remove(name)) == nil
}

const probeBytes = 1 << 20

func writeProbe(fs vfs.FS, name string) error {
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, probeBytes))
	return errors.Join(err, f.Sync(), f.Close())
}

// reader returns the database to read from, and what to call afterwards.
func (s *Store) reader() (*pebble.DB, func(), error) {
	s.reading.RLock()
	s.mu.Lock()
	o := s.opening
	s.mu.Unlock()
	if st := s.Status(); st.State == Closed {
		s.reading.RUnlock()
		return nil, nil, &Unavailable{Status: st}
	}
	return o.db, s.reading.RUnlock, nil
}

// closeReadOnly closes an opening that only read, after its last reader.
func (s *Store) closeReadOnly(o *opening) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if err := o.db.Close(); err != nil {
		s.backgroundError(err)
	}
}
