// Package desired is the only writer of desired state (STORE.md §1).
//
// It plans a group of changes against an overlay of the registry's index, has
// it written in one synced batch, applies it to the index, tells the shards,
// and then answers. The store is reached through functions, so that a disk is
// whatever the server wires.
//
// A removal does not wait for the disk: it is applied and told at once, kept as
// pending until it is durable, and answered OK only then. No caller waits for
// the disk for longer than Config.WriteTimeout; a commit that finishes later is
// applied all the same.
//
// The package never reads a row from the store after the start, judges nobody's
// rights (its callers do, before they write), and keeps no lease times: those
// are the shards'. Every method may be called from any goroutine; shards are
// told in the order in which the index changed.
//
// Tests give it a Commit function that hangs or fails.
package desired
