package store

import "time"

// Events is what the store tells its owner; each function may be nil, must
// return quickly and must not call back into the store.
type Events struct {
	// Frozen: the store went from writable to full or frozen.
	Frozen func(Status)
	// Resumed: space came back and the store was reopened, after so long.
	Resumed func(after time.Duration)
	// BackgroundError: a flush or compaction failed; at most one a second, with
	// the number left out since the last.
	BackgroundError func(err error, leftOut int)
	// Corruption: bytes read from a file do not match their checksum; at most one a second.
	Corruption func(err error, leftOut int)
	// WriteStall: Pebble holds writers back because flushes do not keep up.
	WriteStall func(reason string)
	// DiskSlow: a file operation has been running for longer than Config.SlowAfter; once per operation.
	DiskSlow func(op, path string, running time.Duration)
	// Dropped: a write-behind record did not fit the queue, or could not be written.
	Dropped func(queue Queue)
	// Committed: one group of synced writes took so long.
	Committed func(requests int, took time.Duration)
}

// Queue names what was written behind.
type Queue uint8

// The kinds of write-behind records.
const (
	Views Queue = iota
	Transitions
	AuditRecords
	Checkpoints
	Minutes
)

var queueNames = [...]string{"views", "transitions", "audit", "checkpoints", "minutes"}

// String is the name used as a metric label.
func (q Queue) String() string { return queueNames[q] }

// sparse lets one event a second through and counts the others. It is used by
// one goroutine at a time under the owner's lock.
type sparse struct {
	last    time.Time
	leftOut int
}

func (s *sparse) pass(now time.Time) (leftOut int, ok bool) {
	if !s.last.IsZero() && now.Sub(s.last) < time.Second {
		s.leftOut++
		return 0, false
	}
	leftOut, s.leftOut, s.last = s.leftOut, 0, now
	return leftOut, true
}
