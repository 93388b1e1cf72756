package store

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// seqBlock is how many versions are reserved on disk at a time (STORE.md §2).
const seqBlock = 1 << 16

// idsPerSecond is the base of ids and revisions: they start at Unix seconds
// times this, so that a lost or restored store cannot repeat one (DESIGN.md §6).
const idsPerSecond = 1 << 20

// numbers is the one row of counters. It is written with every group of
// commits, twice, so that one damaged copy loses nothing.
type numbers struct {
	Epoch  uint64 // of the newest start
	Seq    uint64 // version numbers below it are reserved
	Base   uint64 // highest instance id or registry revision ever written
	Commit uint64 // number of the newest group: tells, after a freeze, whether a group reached the disk
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

// Refill reserves another block of version numbers; answer is told the first
// number beyond it, from another goroutine, once it is on the disk. It returns
// at once. Of several calls that the disk has not answered yet, each with the
// same meaning, the last one's answer counts. A store that is full or hangs
// answers when it can; until then publishing goes on beyond the block, which
// the epoch keeps unique (DESIGN.md §8).
func (s *Store) Refill(answer func(end uint64)) {
	s.mu.Lock()
	s.reserved = answer
	s.mu.Unlock()
	select {
	case s.refill <- struct{}{}:
	default:
	}
}

func (s *Store) tellReserved(end uint64) {
	s.mu.Lock()
	answer := s.reserved
	s.mu.Unlock()
	if answer != nil {
		answer(end)
	}
}
