package desired

import (
	"fmt"
	"time"
)

// Kind says why a write was not acknowledged.
type Kind uint8

// The kinds. Full and Overloaded are the caller's RESOURCE_EXHAUSTED, the others UNAVAILABLE.
const (
	Hung       Kind = iota // the disk did not answer in time
	Full                   // the store has no room; it heals by itself
	Failing                // the store is frozen after a disk error, or closed
	Overloaded             // too many writes wait
)

var kindNames = [...]string{"hung", "full", "failing", "overloaded"}

// String is the kind's name as a metric label.
func (k Kind) String() string { return kindNames[k] }

// Unavailable is the error of a write that is not known to be durable.
type Unavailable struct {
	Kind Kind
	// Removed says that the write was a removal that has left the views all the
	// same; it is written as soon as that is possible, and a retry waits for it.
	Removed bool
	After   time.Duration // how long the caller waited
	Err     error         // the store's own, if it gave one
}

// Error says what happened and what to do.
func (e *Unavailable) Error() string {
	var what string
	switch e.Kind {
	case Hung:
		what = fmt.Sprintf("the disk did not confirm the write within %s; it may still happen, read before trying again", e.After)
	case Overloaded:
		what = "too many writes are waiting for the disk; try again later"
	default:
		what = fmt.Sprintf("the write cannot be stored: %v", e.Err)
	}
	if e.Removed {
		return "removed from all views, and not stored yet: " + what
	}
	return what
}

// Unwrap returns the store's own error.
func (e *Unavailable) Unwrap() error { return e.Err }
