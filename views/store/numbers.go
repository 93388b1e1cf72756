package store

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// seqBlock is how many versions are reserved on disk at a time (STORE.md §2).
const seqBlock = 1 << 16

// uidsPerSecond is the base of instance ids: they start at Unix seconds times
// this, so that a lost or restored store cannot repeat one (DESIGN.md §6).
const uidsPerSecond = 1 << 20

// numbers is the one row of counters. It is written with every group of
// commits, twice, so that one damaged copy loses nothing.
type numbers struct {
	Epoch    uint64 // of the newest start
	Seq      uint64 // versions up to here are reserved
	UID      uint64 // highest instance id ever written
	Revision uint64 // highest registry revision ever written
	Commit   uint64 // number of the newest group: tells, after a freeze, whether a group reached the disk
}

var numberKeys = [2][]byte{{prefixNumbers, 1}, {prefixNumbers, 2}}

func (n numbers) addTo(b *pebble.Batch) error {
	for _, key := range numberKeys {
		value, err := sealJSON(key, n)
		if err != nil {
			return err
		}
		if err := b.Set(key, value, nil); err != nil {
			return err
		}
	}
	return nil
}

// readNumbers returns the stored counters, zero in a new store. When a copy is
// damaged the other speaks and err says so; when both are, ok is false.
func readNumbers(r pebble.Reader) (n numbers, ok bool, err error) {
	found := false
	for _, key := range numberKeys {
		var c numbers
		value, closer, getErr := r.Get(key)
		if errors.Is(getErr, pebble.ErrNotFound) {
			continue
		}
		found = true
		if getErr == nil {
			getErr = unsealJSON(key, value, &c)
			getErr = errors.Join(getErr, closer.Close())
		}
		if getErr != nil {
			err = errors.Join(err, fmt.Errorf("copy %d of the counters: %w", key[1], getErr))
			continue
		}
		ok = true
		if c.Commit >= n.Commit {
			n = c
		}
	}
	return n, ok || !found, err
}

// NextSeq returns the next version number of this start. It never waits: a new
// block is reserved on disk when half of the last one is used, and when the
// disk does not answer in time numbers go on beyond the block, which the epoch
// keeps unique (DESIGN.md §8).
func (s *Store) NextSeq() uint64 {
	n := s.seq.Add(1)
	switch reserved := s.reserved.Load(); {
	case n > reserved:
		s.askRefill()
		if last := s.unreservedTold.Load(); n-reserved == 1 && last != reserved && s.unreservedTold.CompareAndSwap(last, reserved) {
			s.unreserved(n)
		}
	case reserved-n < seqBlock/2:
		s.askRefill()
	}
	return n
}

// Epoch is the epoch of this start: max(stored + 1, Config.Now at Open).
func (s *Store) Epoch() uint64 { return s.epoch }

// Reserved is the highest version number that the disk is known to have
// reserved. A number above it was never handed out by any start but this one.
func (s *Store) Reserved() uint64 { return s.reserved.Load() }

func (s *Store) askRefill() {
	select {
	case s.refill <- struct{}{}:
	default:
	}
}

func (s *Store) unreserved(seq uint64) {
	if tell := s.cfg.Events.Unreserved; tell != nil {
		tell(seq)
	}
}
