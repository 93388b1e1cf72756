// Package probe is the prober's input and output: it asks instances whether
// they serve, over TCP, grpc.health.v1 or HTTP, and tells the control plane
// what it saw. It judges nothing: scores, silence and verdicts are health's.
//
// A Prober is another process than the server, with an identity of its own and
// no store. What it asks is its assignment and nothing else: targets come from
// ReportService.WatchAssignment, results leave by one ReportProbes stream.
// While the control plane is away it keeps asking what it was assigned last, for
// Limits.KeepAssignment, so that fresh results are there when it returns;
// results that could not be sent within Limits.MaxAge are dropped, which is
// silence and never a failure.
//
// What it never does: follow a redirect; connect to link-local, multicast,
// reserved or metadata addresses, or to loopback outside development; ask an
// address that is not proved (a dial-back is what proves one); report a failure
// that may be its own (no descriptor left, a pause of its process, a resolver
// that is down).
//
// One loop owns the targets and their schedule, and starts a goroutine for each
// probe in flight, of which there are at most Limits.InFlight: none waits beside
// a target. Two more goroutines hold the two streams. Run starts them all and
// returns when they have ended. New, Run once, Counts at any time.
//
// # What a probe costs
//
// Bytes on the wire of one probe of a good instance over IPv4, headers of IP
// and TCP included, both directions together, as TestCostOfAProbe measures them
// (a connection of its own for each probe: it is the way in that callers
// depend on, and one that is kept would hide a listener that is gone):
//
//	tcp    about 0.5 KB
//	http   about 0.9 KB
//	grpc   about 1.6 KB
//
// An instance with two probers at full cadence (2 s) costs as many bytes a
// second as one probe; at the confirmation cadence (10 s) a fifth of that. Probe
// traffic stays under 0.5 % of internal bytes where an instance moves 200 times
// as much: 100 KB/s with TCP probes at full cadence, 20 KB/s at confirmation.
package probe
