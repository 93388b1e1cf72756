// Package health turns evidence into verdicts: may this instance serve, with
// what weight, and why (HEALTH.md).
//
// An Evaluator belongs to one service and is owned by that service's shard. It
// is pure: now is an argument, samples, outcomes and registry changes go in,
// verdicts and the time of the next judgement come out. It knows nothing of
// guards, views or versions: what a service's callers are given is decided by
// views. What spans services, the region's Observers judge, from the Tally of
// each evaluator; their Stance goes back to all of them.
//
// Where things are. types.go, evidence.go and outcomes.go hold the words, terms.go
// what a contract says, instance.go what is kept of one instance. Each class of
// evidence has files of its own: self.go; lease.go, suspects.go and ageing.go;
// probes.go, one score for each prober; callers*.go, outcomes by reporter, decayed
// and compared with siblings, and hearing.go, which says when they are read.
// silence.go says when a class is silent, sight.go reads them all for one moment,
// primary.go says which decides and how often is probed. rules.go walks the rules
// in order, with dependencies.go (R2), observed.go (R3–R5) and third.go, how much
// of a service callers' word alone holds out; outby.go and trial.go say when what
// took an instance out lets it return, admission.go who becomes a member, ramp.go
// and quarantine.go with what weight and whether at all. judge.go and queue.go see
// to it that only who was touched or is due is looked at. observers*.go is the
// region: tallies, blind probers, dead zones, the brake. explain.go and describe.go
// are for people. checkpoint.go holds what outlives the process; minutes*.go what
// is kept for a contract's test; and shadow.go makes the evaluator that judges by
// another contract, for a test or for a rollout (server/shard).
//
// To test with it: call New and Apply, feed Observe, ObserveOutcomes and Renew,
// and read what Judge returns; the timelines in testdata/scenarios show how.
package health
