// Package views turns verdicts into what callers are given.
//
// An Assembler (one per service, owned by the service's shard) applies the
// fraction guard and decides weights and forms; the Publisher (one per region)
// stamps versions, keeps the two lanes and the ring of recent changes, and
// swaps the Snapshot; a Snapshot is immutable and all that the surfaces read.
//
// The package is pure: now is an argument, nothing here does I/O. Only the
// Publisher and the Snapshot may be used from several goroutines at once.
package views
