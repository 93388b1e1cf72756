package store

import (
	"errors"
	"fmt"
)

// State says whether the store takes writes.
type State uint8

// The states. Full heals by itself; Frozen lasts until the process starts anew.
const (
	Writable State = iota
	Full           // the disk has no room, or the process no file descriptors left
	Frozen         // the disk failed
	Closed
)

var stateNames = [...]string{"writable", "full", "frozen", "closed"}

// String is the state's name in messages and metrics.
func (s State) String() string { return stateNames[s] }

// Status is the store's state with its cause.
type Status struct {
	State State
	// Op and Path name the file operation that failed, Err its error; empty
	// while the store is writable.
	Op, Path string
	Err      error
}

// Unavailable is the error of a write that the store refused, or whose fate it
// cannot learn any more. State says which: Full is the caller's
// RESOURCE_EXHAUSTED, anything else its UNAVAILABLE.
type Unavailable struct {
	Status
	// InDoubt says that the write had been handed to the disk when the store
	// froze: it may be found there by the next start.
	InDoubt bool
}

// Error says what happened, why, and what to do.
func (e *Unavailable) Error() string {
	switch e.State {
	case Full:
		return fmt.Sprintf("store is full (%s %s: %v): free some space, it resumes by itself", e.Op, e.Path, e.Err)
	case Frozen:
		return fmt.Sprintf("store is frozen after a disk error (%s %s: %v): check the disk and restart", e.Op, e.Path, e.Err)
	}
	return "store is closed"
}

// Unwrap returns the disk's own error.
func (e *Unavailable) Unwrap() error { return e.Err }

// StateOf returns the state that an error of Commit speaks of, and Writable
// for every other error.
func StateOf(err error) State {
	var u *Unavailable
	if errors.As(err, &u) {
		return u.State
	}
	return Writable
}
