package probe

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// counters are what a prober has done since it was built.
type counters struct {
	targets       atomic.Int64
	results       [len(kinds)][len(outcomes)]atomic.Int64
	sentBytes     [len(kinds)]atomic.Int64
	receivedBytes [len(kinds)]atomic.Int64
	sent          atomic.Int64
	unusable      atomic.Int64
	dialBacksHeld atomic.Int64
	lateProbes    atomic.Int64
	gaps          atomic.Int64
	starved       atomic.Int64
	lostStreams   [2]atomic.Int64
}

// lateness above which a probe counts as late: its phase is lost, and with too
// much of it the class falls silent.
const lateness = time.Second

func (c *counters) late(by time.Duration) {
	if by > lateness {
		c.lateProbes.Add(1)
	}
}

func (c *counters) probed(r *Result) {
	c.results[r.Kind][r.Outcome].Add(1)
	c.sentBytes[r.Kind].Add(int64(r.Sent))
	c.receivedBytes[r.Kind].Add(int64(r.Received))
}

func (c *counters) lost(s Stream) {
	i := 0
	if s == Reports {
		i = 1
	}
	c.lostStreams[i].Add(1)
}

// Counts is what a prober has done since it was built.
type Counts struct {
	Targets       int64                               // assigned now
	Results       [len(kinds)][len(outcomes)]int64    // probes by kind and outcome
	SentBytes     [len(kinds)]int64                   // above TCP, by kind
	ReceivedBytes [len(kinds)]int64                   // above TCP, by kind
	Sent          int64                               // results sent
	Dropped       int64                               // results that grew too old, or were too many
	Unusable      int64                               // targets that could not be asked
	DialBacksHeld int64                               // dial-backs put off by their identity's budget
	Late          int64                               // probes that began more than a second late
	Gaps          int64                               // pauses of our own
	Starved       int64                               // failures that do not count: the prober did not run
	Lost          struct{ Assignment, Reports int64 } // streams that ended
}

// Counts returns the counters as they are now.
func (p *Prober) Counts() Counts {
	c := &p.counts
	out := Counts{Targets: c.targets.Load(), Sent: c.sent.Load(), Dropped: p.board.droppedSoFar(), Unusable: c.unusable.Load(),
		DialBacksHeld: c.dialBacksHeld.Load(), Late: c.lateProbes.Load(), Gaps: c.gaps.Load(), Starved: c.starved.Load()}
	for k := range c.results {
		for o := range c.results[k] {
			out.Results[k][o] = c.results[k][o].Load()
		}
		out.SentBytes[k], out.ReceivedBytes[k] = c.sentBytes[k].Load(), c.receivedBytes[k].Load()
	}
	out.Lost.Assignment, out.Lost.Reports = c.lostStreams[0].Load(), c.lostStreams[1].Load()
	return out
}

// WriteMetrics writes the counters in Prometheus' text format. It is the one
// place that names the prober's metrics; those of the server are in
// server/metrics.
func (c Counts) WriteMetrics(w io.Writer) error {
	out := &page{w: w}
	out.head("sightline_prober_targets", "gauge", "Targets assigned.")
	out.line("sightline_prober_targets", "", c.Targets)
	out.head("sightline_prober_probes_total", "counter", "Probes by kind and outcome.")
	for k := range c.Results {
		for o, n := range c.Results[k] {
			out.line("sightline_prober_probes_total", fmt.Sprintf(`{kind=%q,outcome=%q}`, Kind(k), Outcome(o)), n)
		}
	}
	out.head("sightline_prober_probe_bytes_total", "counter", "Bytes of probes above TCP, by kind and direction.")
	for k := range c.SentBytes {
		out.line("sightline_prober_probe_bytes_total", fmt.Sprintf(`{kind=%q,direction="sent"}`, Kind(k)), c.SentBytes[k])
		out.line("sightline_prober_probe_bytes_total", fmt.Sprintf(`{kind=%q,direction="received"}`, Kind(k)), c.ReceivedBytes[k])
	}
	out.head("sightline_prober_streams_lost_total", "counter", "Streams to the control plane that ended.")
	out.line("sightline_prober_streams_lost_total", `{stream="assignment"}`, c.Lost.Assignment)
	out.line("sightline_prober_streams_lost_total", `{stream="reports"}`, c.Lost.Reports)
	for _, m := range []struct {
		name, help string
		n          int64
	}{
		{"sightline_prober_results_sent_total", "Results sent to the control plane.", c.Sent},
		{"sightline_prober_results_dropped_total", "Results that grew too old to send, or were too many.", c.Dropped},
		{"sightline_prober_targets_unusable_total", "Targets of an assignment that could not be asked.", c.Unusable},
		{"sightline_prober_dial_backs_held_total", "Dial-backs put off by their identity's budget.", c.DialBacksHeld},
		{"sightline_prober_probes_late_total", "Probes that began more than a second late.", c.Late},
		{"sightline_prober_probes_starved_total", "Failures that do not count: the prober had no processor meanwhile.", c.Starved},
		{"sightline_prober_gaps_total", "Pauses of the prober's own process.", c.Gaps},
	} {
		out.head(m.name, "counter", m.help)
		out.line(m.name, "", m.n)
	}
	return out.err
}

// page writes until the first error.
type page struct {
	w   io.Writer
	err error
}

func (p *page) head(name, kind, help string) {
	p.printf("# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (p *page) line(name, labels string, n int64) { p.printf("%s%s %d\n", name, labels, n) }

func (p *page) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}
