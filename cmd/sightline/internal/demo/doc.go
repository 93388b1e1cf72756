// Package demo runs the main job in front of a person: a real server, real
// instances and real callers, each a process of its own, driven through
// nothing but public surfaces (the API, xDS, DNS, signals).
//
// A scenario breaks something, and every sentence that it prints about the
// outcome is checked against what the callers themselves hold; with Assert a
// failed check ends the demo with an error. The parts (instance, gRPC caller,
// Envoy caller, DNS caller) are this same binary, started again with a Part.
package demo
