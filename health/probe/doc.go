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
// and TCP included, both directions together, as TestCostOfAProbe measures
// them. Each probe has a connection of its own: the way in is what callers
// depend on, and a connection that is kept would hide a listener that is gone.
//
//	tcp         0.33 KB
//	http        0.84 KB and the body
//	grpc        1.3 KB
//	dial-back   4.8 KB, while an address is to be proved
//
// An instance has two probers: at full cadence (each 2 s) that is one probe a
// second, at the confirmation cadence (10 s) a fifth of it. Probe traffic stays
// under 0.5 % of internal bytes where an instance moves 200 times as much: 66
// KB/s with TCP, 260 KB/s with gRPC; at confirmation 13 and 52 KB/s. Counts has
// the bytes above TCP of all probes so far.
package probe
