// Package harness runs the real peers of the black-box tests: the built
// sightline binary, real Envoy, stock grpc-go clients, grpcurl, dig, and small
// backends that answer grpc.health.v1.
//
// Every runner takes a testing.TB, ends what it started when the test ends, and
// puts the peer's log into the test's log when the test failed. A missing peer
// fails a test and never skips it: a suite that passes without its peers says
// nothing. Nothing here judges; the tests do.
//
// Waiting is always polling with a deadline (Eventually): real processes have no
// clock that a test could turn.
package harness
