// Package store is the bytes on disk: desired rows, numbers, logs, the view
// store, the evaluators' checkpoints and their minutes of evidence, in one Pebble
// (STORE.md).
//
// It owns durability and nothing else: it decides nothing, and what it holds of
// computed state is never an input to a decision. Desired rows and the audit
// records of privileged acts are synced before Commit returns; everything else
// is written behind, through a bounded queue that drops and counts.
//
// A bad disk never ends the process and never blocks a reader. The first error
// of the file system freezes the store: reads go on, commits are refused at
// once with an *Unavailable. When the cause was a lack of space, its return is
// noticed and the store reopens by itself; after any other cause it stays
// frozen, because what the disk holds can no longer be known (RELIABILITY.md F3).
//
// Every method may be called from any goroutine. Commit waits for the disk, so
// its callers bound their own waiting through the context. Refill, PutView,
// AppendTransition, AppendAudit, SaveCheckpoint and SaveMinute never wait.
//
// Tests use vfs.NewMem or vfs.NewCrashableMem as Config.FS.
package store
