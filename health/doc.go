// Package health turns evidence into verdicts: may this instance serve, with
// what weight, and why (HEALTH.md).
//
// An Evaluator belongs to one service and is owned by that service's shard. It
// is pure: now is an argument, samples and registry changes go in, verdicts and
// the time of the next judgement come out. It knows nothing of guards, views
// or versions: what a service's callers are given is decided by views.
package health
