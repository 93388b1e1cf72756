// Package shard drives the pure core: it owns, for every service, the
// health.Evaluator and the views.Assembler, and takes what they decide to the
// Publisher and the feeds.
//
// A service belongs to one shard by the hash of its name, and a shard is one
// goroutine. Input is submitted to the shard's inbox from any goroutine and
// never waits: the inbox keeps the newest row of each changed service and
// instance, the newest renewal of each instance, and a bounded number of
// samples and counts. What a full inbox drops is only what is lossy by contract:
// registry changes, renewals, an instance's word against itself and a refused
// connection that a prober met are always kept (STORE.md §6). An inbox that is
// half full is taken in before the next tick, and judged at it.
//
// What spans services is judged by one loop of its own (observers.go): shards
// hand it a tally of each service at every tick, and read its stance as one
// value at the next.
//
// A changed contract is put into effect by steps (rollout.go): it is judged by
// beside the one in effect, on the same evidence, then zone by zone. What was
// heard in each minute is kept (minutes.go), so that a draft can be held against
// it (trial.go); and a view can be made anew and compared (rebuild.go).
//
// One withdrawal travels: Submit, Evaluator.Observe, Evaluator.Judge,
// Assembler.Apply, Publisher.Publish, and then each feed (DESIGN.md §3). For
// one service these happen in order, and feeds see its publications in the
// order of their versions; between services nothing is promised.
//
// The package does no I/O: rows, checkpoints, the log and the Publisher are
// reached through the functions of Config. Tests run a Set inside a
// testing/synctest bubble.
package shard
