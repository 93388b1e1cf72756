// Command sim drives the evaluator, the observers and the guard with simulated
// probers, self-reports and callers, and prints false verdicts and detection
// times by row of HEALTH.md §10 and §11.
//
//	go run ./interop/sim -run all
//	go run ./interop/sim -run background -days 1 -seeds 6 -json
//
// Everything follows from the seed: traffic is Poisson, failures are drawn call
// by call, time is the simulation's own. What is judged is what a client would
// have been given: the Publisher's Snapshot, with its lanes. Callers choose
// among the listed members by their published weights, and report every two
// seconds; probers and instances likewise.
//
// A row states what has to hold; the command exits with 1 when it does not.
package main
