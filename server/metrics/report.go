package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ViewChanged counts one publication, once for each kind of change in it
// (withdraw, admit, reweight, …).
func (m *Metrics) ViewChanged(kind string) { m.viewChanges.WithLabelValues(kind).Inc() }

// Propagated records how long a publication took to a client's acknowledgement.
func (m *Metrics) Propagated(client string, took time.Duration) {
	o, ok := m.propagatedTo.Load(client)
	if !ok {
		o, _ = m.propagatedTo.LoadOrStore(client, m.propagation.WithLabelValues(client))
	}
	o.(prometheus.Observer).Observe(took.Seconds())
}

// Rebuilt records the time of the start's rebuild.
func (m *Metrics) Rebuilt(took time.Duration) { m.rebuild.Set(took.Seconds()) }

// ShedBegan and ShedEnded record an episode of held additions.
func (m *Metrics) ShedBegan() { m.shedding.Set(1) }

// ShedEnded ends the episode and adds its length.
func (m *Metrics) ShedEnded(lasted time.Duration) {
	m.shedding.Set(0)
	m.shedSeconds.Add(lasted.Seconds())
}

// WebhookEvents counts events for owners: delivered, refused, dropped.
func (m *Metrics) WebhookEvents(result string, n int) {
	m.webhookEvents.WithLabelValues(result).Add(float64(n))
}

// WebhookFailed counts an attempt that failed.
func (m *Metrics) WebhookFailed() { m.webhookFailures.Inc() }

// Incident counts an incident of a kind.
func (m *Metrics) Incident(kind string) { m.incidents.WithLabelValues(kind).Inc() }

// EvaluatorGap counts a time at which an evaluator did not run.
func (m *Metrics) EvaluatorGap() { m.gaps.Inc() }

// StaleCandidate counts a view that was refused at publication.
func (m *Metrics) StaleCandidate() { m.stale.Inc() }

// Transition counts an instance's move into a state.
func (m *Metrics) Transition(state string) { m.transitions.WithLabelValues(state).Inc() }

// Flapped counts a member's change between serving and ineligible.
func (m *Metrics) Flapped() { m.flaps.Inc() }

// Reports counts samples of a class (self, probe, callers) by what became of
// them (accepted, unattributed, out_of_scope, stale, limited, dropped, refused).
func (m *Metrics) Reports(class, result string, n int) {
	m.reports.WithLabelValues(class, result).Add(float64(n))
}

// LoadDropped counts entries of a load report that became no outcomes.
func (m *Metrics) LoadDropped(reason string, n int) {
	m.loadsDropped.WithLabelValues(reason).Add(float64(n))
}

// Probers is the number of probers that are at work.
func (m *Metrics) Probers(n int) { m.probers.Set(float64(n)) }

// Observers is what the region's observers make of themselves: how many probers
// are blind, how many zones are dead, and whether the brake holds.
func (m *Metrics) Observers(blind, deadZones int, braked bool) {
	m.blind.Set(float64(blind))
	m.deadZones.Set(float64(deadZones))
	m.brake.Set(0)
	if braked {
		m.brake.Set(1)
	}
}

// Resolution counts a service asked for (via xds, dns, api) and the answer
// (ok, denied, unknown).
func (m *Metrics) Resolution(via, result string) { m.resolutions.WithLabelValues(via, result).Inc() }

// Watches adds to the number of open Watch streams.
func (m *Metrics) Watches(delta int) { m.watches.Add(float64(delta)) }

// Streams adds to the number of open ADS streams (delta, sotw) and load report
// streams (lrs).
func (m *Metrics) Streams(proto, client string, delta int) {
	m.streams.WithLabelValues(proto, client).Add(float64(delta))
}

// Pushed counts an xDS response and its bytes.
func (m *Metrics) Pushed(typ, client string, bytes int) {
	key := [2]string{typ, client}
	p, ok := m.pushedBy.Load(key)
	if !ok {
		p, _ = m.pushedBy.LoadOrStore(key, pushed{m.pushes.WithLabelValues(typ, client), m.pushedBytes.WithLabelValues(typ, client)})
	}
	p.(pushed).responses.Inc()
	p.(pushed).bytes.Add(float64(bytes))
}

// Nacked counts a response that a client refused.
func (m *Metrics) Nacked(typ string) { m.nacks.WithLabelValues(typ).Inc() }

// InitialAnswer records a stream's first answer.
func (m *Metrics) InitialAnswer(resumed bool, after time.Duration) {
	m.initial.WithLabelValues(strconv.FormatBool(resumed)).Observe(after.Seconds())
}

// StreamEnded counts an ADS stream that the server ended.
func (m *Metrics) StreamEnded(client string) { m.streamsEnded.WithLabelValues(client).Inc() }

// Throttled counts a request that had to wait.
func (m *Metrics) Throttled() { m.throttled.Inc() }

// Unrenderable counts a resource that was not sent.
func (m *Metrics) Unrenderable(typ string) { m.unrenderable.WithLabelValues(typ).Inc() }

// DNSAnswered counts an answer and its time.
func (m *Metrics) DNSAnswered(qtype, rcode string, took time.Duration) {
	m.dns.WithLabelValues(qtype, rcode).Inc()
	m.dnsDuration.Observe(took.Seconds())
}

// DNSRefused counts a connection that a limit turned away.
func (m *Metrics) DNSRefused(limit string) { m.dnsRefused.WithLabelValues(limit).Inc() }

// StoreState says which of all states the store is in.
func (m *Metrics) StoreState(now string, all ...string) {
	for _, s := range all {
		m.storeState.WithLabelValues(s).Set(0)
	}
	m.storeState.WithLabelValues(now).Set(1)
}

// StoreCommitted records the time of one group of synced writes.
func (m *Metrics) StoreCommitted(took time.Duration) { m.storeCommit.Observe(took.Seconds()) }

// StoreDropped counts a record written behind that found no room.
func (m *Metrics) StoreDropped(queue string) { m.storeDropped.WithLabelValues(queue).Inc() }

// Unacknowledged counts a write answered before it was known to be durable.
func (m *Metrics) Unacknowledged(reason string) { m.unacked.WithLabelValues(reason).Inc() }

// PendingRemovals is the number of removals that are not durable yet.
func (m *Metrics) PendingRemovals(n int) { m.pending.Set(float64(n)) }

// Reconciled counts a source's differences by outcome (applied, held, refused).
func (m *Metrics) Reconciled(source, outcome string, n int) {
	m.reconciled.WithLabelValues(source, outcome).Add(float64(n))
}

// HeldFiles is the number of a source's files whose newest content is not applied.
func (m *Metrics) HeldFiles(source string, n int) { m.held.WithLabelValues(source).Set(float64(n)) }

// Handshake counts a TLS handshake on a port (xds, api) by its result (ok,
// refused, broken).
func (m *Metrics) Handshake(port, result string) { m.handshakes.WithLabelValues(port, result).Inc() }

// Connections adds to the number of a port's open connections.
func (m *Metrics) Connections(port string, delta int) {
	m.connections.WithLabelValues(port).Add(float64(delta))
}

// CallRefused counts an RPC refused before its handler (denied, unknown,
// expired, no_identity).
func (m *Metrics) CallRefused(reason string) { m.calls.WithLabelValues(reason).Inc() }

// Panicked counts a handler's panic.
func (m *Metrics) Panicked() { m.panics.Inc() }

// SVIDEnds is the end of the server's own SVID.
func (m *Metrics) SVIDEnds(at time.Time) { m.svidExpiry.Set(float64(at.Unix())) }

// SVIDKept counts identity documents that were not usable.
func (m *Metrics) SVIDKept() { m.svidKept.Inc() }
