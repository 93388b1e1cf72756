// Package registry is desired state: which services, instances, contracts and
// capability profiles exist, and who said so.
//
// An Index holds the rows and what is derived from them. A change is planned on
// an Overlay, which validates it, says which rows to write and leaves the Index
// alone; once they are written the Index applies the overlay and says what each
// service's shard has to be told. Whatever is refused, is refused before
// anything is stored: as Violations where the input breaks a rule, as a Refusal
// where the state does not allow it.
//
// What it promises: a uid is never given out twice; a row is changed by its own
// source only; a label has one live instance in its service and a proved
// address one in the region, the newest; what was removed while a write was on
// its way stays removed; a service's revision never goes back.
//
// The package never reads a clock, writes a row or starts a goroutine, and is
// not safe for concurrent use: server/desired owns the Index. Rows, and a
// Directory, are immutable and may be read from anywhere. Tests build an Index
// with NewIndex or Load and apply overlays to it; nothing needs to be faked.
package registry
