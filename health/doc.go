// Package health turns evidence into verdicts: may this instance serve, with
// what weight, and why (HEALTH.md).
//
// An Evaluator belongs to one service and is owned by that service's shard. It
// is pure: now is an argument, samples and registry changes go in, verdicts and
// the time of the next judgement come out. It knows nothing of guards, views
// or versions: what a service's callers are given is decided by views.
//
// Where things are: types.go and evidence.go hold the words; each evidence
// class and the leases have a file of their own (self.go, lease.go, suspects.go);
// silence.go says when a class is silent; rules.go walks the rules in order,
// outby.go says when what took an instance out lets it return, admission.go who
// becomes a member; judge.go and queue.go see to it that only who was touched
// or is due is looked at; checkpoint.go holds what outlives the process.
//
// To test with it: call New and Apply, feed Observe and Renew, and read what
// Judge returns; the timelines in testdata/scenarios show how.
package health
