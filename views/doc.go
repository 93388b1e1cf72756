// Package views turns verdicts into what callers are given.
//
// An Assembler (one per service, owned by the service's shard) applies the
// fraction guard and the rules against empty sets, and decides weights, forms
// and confidence; the Publisher (one per region) compares a candidate with what
// is published, stamps versions, keeps the two lanes and the ring of recent
// changes, and swaps the Snapshot; a Snapshot is immutable and all that the
// surfaces read.
//
// The package is pure: now is an argument, nothing here does I/O. Only the
// Publisher and the Snapshot may be used from several goroutines at once, and
// their files alone import sync. Everything that is handed out (views, members,
// snapshots, changes) is immutable and shared.
//
// Order: the Snapshot holds a change before the ring names it, and both before
// Publish returns. Versions of a region only grow; a service's two versions
// move only with the hash of what they cover.
//
// To test a surface, build a Snapshot with NewSnapshot; to test what follows
// publications, drive a Publisher with candidates whose hashes are HashEndpoint
// and HashConfig, and let Verify compare what a client ended up with.
package views
