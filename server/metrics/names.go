package metrics

import "github.com/prometheus/client_golang/prometheus"

func (m *Metrics) nameViews() {
	m.viewChanges = m.counter("sightline_view_changes_total", "Published changes of views, by what they did.", "kind")
	m.propagation = m.histogram("sightline_propagation_seconds", "From a publication to a client's acknowledgement of it.", slow(), "client")
	m.rebuild = m.gauge("sightline_rebuild_duration_seconds", "Time from the start until every view was built.").WithLabelValues()
	m.shedding = m.gauge("sightline_shed_additions_active", "1 while additions are held back longer than a second.").WithLabelValues()
	m.shedSeconds = m.counter("sightline_shed_additions_seconds_total", "Time during which additions were held back.").WithLabelValues()
	m.stale = m.counter("sightline_stale_candidates_total", "Views refused at publication because a newer one was out.").WithLabelValues()
}

func (m *Metrics) nameEvidence() {
	m.incidents = m.counter("sightline_incidents_total", "Incidents told to a person, by kind.", "kind")
	m.webhookEvents = m.counter("sightline_webhook_events_total", "Events for owners, by what became of them.", "result")
	m.webhookFailures = m.counter("sightline_webhook_failures_total", "Attempts to send events that failed.").WithLabelValues()
	m.gaps = m.counter("sightline_evaluator_gaps_total", "Times that an evaluator did not run on time.").WithLabelValues()
	m.transitions = m.counter("sightline_transitions_total", "Transitions of instances, by the state entered.", "state")
	m.flaps = m.counter("sightline_flaps_total", "Changes of members between serving and ineligible.").WithLabelValues()
	m.reports = m.counter("sightline_reports_total", "Samples received, by class and by what became of them.", "class", "result")
	m.loadsDropped = m.counter("sightline_lrs_dropped_entries_total", "Entries of load reports that became no outcomes, by reason.", "reason")
	m.probers = m.gauge("sightline_probers", "Probers that are at work.").WithLabelValues()
	m.blind = m.gauge("sightline_probers_blind", "Probers whose results count as silence.").WithLabelValues()
	m.deadZones = m.gauge("sightline_dead_zones", "Zones that every prober outside finds dead.").WithLabelValues()
	m.brake = m.gauge("sightline_withdrawal_brake_active", "1 while the region's brake holds withdrawals by observation back.").WithLabelValues()
}

func (m *Metrics) nameSurfaces() {
	m.resolutions = m.counter("sightline_resolutions_total", "Services asked for, by surface and answer.", "via", "result")
	m.watches = m.gauge("sightline_watch_streams", "Open Watch streams.").WithLabelValues()
	m.streams = m.gauge("sightline_xds_streams", "Open ADS and load report streams.", "proto", "client")
	m.pushes = m.counter("sightline_xds_pushes_total", "xDS responses sent.", "type", "client")
	m.pushedBytes = m.counter("sightline_xds_pushed_bytes_total", "Bytes of the xDS responses sent.", "type", "client")
	m.nacks = m.counter("sightline_xds_nacks_total", "xDS responses that a client refused.", "type")
	m.initial = m.histogram("sightline_xds_initial_answer_seconds", "From a stream's first request to its first answer.", slow(), "resumed")
	m.streamsEnded = m.counter("sightline_xds_streams_ended_total", "ADS streams that the server ended.", "client")
	m.throttled = m.counter("sightline_xds_throttled_total", "Requests that waited because a stream asks too fast.").WithLabelValues()
	m.unrenderable = m.counter("sightline_xds_unrenderable_total", "Resources that break a rule of their clients and were not sent.", "type")
	m.dns = m.counter("sightline_dns_requests_total", "DNS questions answered.", "type", "rcode")
	m.dnsDuration = m.histogram("sightline_dns_request_duration_seconds", "Time to answer a DNS question.", fast()).
		WithLabelValues().(prometheus.Histogram)
	m.dnsRefused = m.counter("sightline_dns_connections_refused_total", "DNS connections turned away, by limit.", "limit")
}

func (m *Metrics) nameStore() {
	m.storeState = m.gauge("sightline_store_state", "1 for the state that the store is in.", "state")
	m.storeCommit = m.histogram("sightline_store_commit_duration_seconds", "Time to make a group of writes durable.", slow()).
		WithLabelValues().(prometheus.Histogram)
	m.storeDropped = m.counter("sightline_store_dropped_records_total", "Records written behind that found no room.", "queue")
	m.unacked = m.counter("sightline_registry_unacknowledged_writes_total", "Writes answered before they were known to be durable.", "reason")
	m.pending = m.gauge("sightline_registry_pending_removals", "Removals that left the views and are not durable yet.").WithLabelValues()
	m.reconciled = m.counter("sightline_reconcile_changes_total", "Differences between a source and the registry that were applied or held.", "source", "outcome")
	m.held = m.gauge("sightline_reconcile_held_files", "Files whose newest content is not applied.", "source")
}

func (m *Metrics) nameTransport() {
	m.handshakes = m.counter("sightline_handshakes_total", "TLS handshakes, by port and result.", "port", "result")
	m.connections = m.gauge("sightline_connections", "Open connections.", "port")
	m.calls = m.counter("sightline_calls_refused_total", "RPCs refused before their handler, by reason.", "reason")
	m.panics = m.counter("sightline_panics_total", "Panics of handlers that ended one call.").WithLabelValues()
	m.svidExpiry = m.gauge("sightline_svid_expiry_timestamp_seconds", "End of the server's own SVID.").WithLabelValues()
	m.svidKept = m.counter("sightline_svid_kept_total", "Times that new identity documents were not usable and the last good ones stayed.").WithLabelValues()
}

// censusCollector counts the views at each scrape, so that nothing keeps
// counters beside them that could drift.
type censusCollector struct {
	census                                                               func() Census
	version, complete, services, instances, unknown, guards, singleClass *prometheus.Desc
}

func newCensusCollector(census func() Census) *censusCollector {
	return &censusCollector{
		census:      census,
		version:     prometheus.NewDesc("sightline_views_current_version", "Sequence number of the newest publication.", nil, nil),
		complete:    prometheus.NewDesc("sightline_views_complete", "1 once every view is built.", nil, nil),
		services:    prometheus.NewDesc("sightline_services", "Services with a view.", nil, nil),
		instances:   prometheus.NewDesc("sightline_instances", "Members of views, by state.", []string{"state"}, nil),
		unknown:     prometheus.NewDesc("sightline_unknown_ratio", "Share of the members of views that nothing is heard of.", nil, nil),
		guards:      prometheus.NewDesc("sightline_fraction_guard_tripped", "Services whose fraction guard is tripped.", nil, nil),
		singleClass: prometheus.NewDesc("sightline_single_class_services", "Services judged by one class of evidence.", nil, nil),
	}
}

// Describe sends every description.
func (c *censusCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.version, c.complete, c.services, c.instances, c.unknown, c.guards, c.singleClass} {
		to <- d
	}
}

// Collect counts once and sends the numbers.
func (c *censusCollector) Collect(to chan<- prometheus.Metric) {
	n := c.census()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	complete := 0.0
	if n.Complete {
		complete = 1
	}
	gauge(c.version, float64(n.Version))
	gauge(c.complete, complete)
	gauge(c.services, float64(n.Services))
	members := 0
	for state, count := range n.Instances {
		gauge(c.instances, float64(count), state)
		members += count
	}
	gauge(c.unknown, float64(n.Instances["unknown"])/float64(max(members, 1)))
	gauge(c.guards, float64(n.GuardsTripped))
	gauge(c.singleClass, float64(n.SingleClass))
}
