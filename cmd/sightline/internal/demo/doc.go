// Package demo runs the main job in front of a person: a real server, real
// instances and real callers, each a process of its own, driven through
// nothing but public surfaces (the API, xDS, DNS, signals).
//
// A scenario has a cast (cast.go): its services with their zones, what evidence
// their runtimes give and what their contracts say, its probers and its callers. It
// breaks something, and every sentence that it prints about the outcome is checked
// against what the callers themselves hold; with Assert a failed check ends the
// demo with an error. Envoy calls in each of them, where there is one.
//
//	tour, crash,    three services of four instances that speak for themselves;
//	guard, outage   three gRPC callers, one that asks DNS
//	grey            four instances, probes, own word and callers; two probers
//	baddeploy       four instances, probes and own word; two probers; then five
//	                more that are never good
//	zonedead        twelve instances in three zones, probes and own word; a prober
//	                in each zone; no ramp
//	flap            four instances, own word; one of them turns again and again
//	blind           four instances, probes alone; two probers, which stop
//	dependency      four instances, own word, one database that all share; no ramp
//	ramp            three instances and one more, own word; one gRPC caller, which
//	                calls often enough for shares to mean something
//
// acts.go plays the tour, verdicts.go the scenarios about verdicts, ramp.go the
// last one. The parts (instance, gRPC caller, Envoy caller, DNS caller) are this
// same binary, started again with a Part; probers are its prober command. The
// ledger keeps what the callers held and what their calls came to.
package demo
