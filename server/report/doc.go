// Package report takes evidence in over ReportService, and tells probers what
// to probe.
//
// A stream binds its ids at its start, so that a sample carries a position and
// never a string. For each id it is decided whether the reporter may speak of
// it: an instance of itself (authz.CanReport), a prober of what it is assigned
// to, a caller of services that it may resolve (authz.Policy.CanResolve, asked
// again when the policy is another). What may count is handed to the service's
// shard through a function. What cannot be attributed is dropped and counted by
// its reason, never weighed down; an id that is not known and one that is not
// the reporter's to speak of are told apart in no answer.
//
// Who probes what follows from the set of probers that are at work and from
// registry.Probers; the same function tells a prober its targets and judges its
// results. A prober is at work from its WatchAssignment stream until its reports
// have been silent for ten seconds. The set is in memory: after a start it fills
// as probers come back.
//
// It holds no evidence: a sample is in the shard's inbox when the next frame is
// read. A stream that comes too fast loses ordinary samples; an instance's word
// that it does not serve, and a refused connection that a prober met, are always
// kept. Frames of outcomes are decoded without the generated code
// (ServerOption), into memory that a stream uses again.
//
// The Service may be used from any number of goroutines and starts none: time
// passes for it when somebody asks. Its tests run in testing/synctest bubbles.
package report
