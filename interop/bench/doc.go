// Command bench measures Sightline against baselines, and prints one JSON object
// a line.
//
//	go run ./interop/bench -list
//	go run ./interop/bench -run fanout-estate -short -json
//
// Ours and the baselines run in turns within one run, each server in a process
// of its own with its clients in another, over the same mTLS transport. Progress
// goes to standard error. The exit code is 0 when every target load was reached,
// 1 when one was not or the run failed, and 2 for a wrong command line.
//
// It owns the workloads, the baselines and the arithmetic, and judges nothing:
// the goals are in docs/PERFORMANCE.md. Its tests check the arithmetic and that
// all sides send the same bytes; they measure no time.
package main
