package metrics

import (
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Census is what a scrape counts in the views of that moment.
type Census struct {
	Version       uint64         // seq of the newest publication
	Services      int            // with a view
	Instances     map[string]int // by state
	GuardsTripped int            // services
	SingleClass   int            // services judged by one class of evidence
	Complete      bool
}

// Metrics is every metric of a server.
type Metrics struct {
	registry *prometheus.Registry

	viewChanges  *prometheus.CounterVec
	propagation  *prometheus.HistogramVec
	rebuild      prometheus.Gauge
	shedding     prometheus.Gauge
	shedSeconds  prometheus.Counter
	incidents    *prometheus.CounterVec
	gaps         prometheus.Counter
	stale        prometheus.Counter
	transitions  *prometheus.CounterVec
	flaps        prometheus.Counter
	reports      *prometheus.CounterVec
	loadsDropped *prometheus.CounterVec
	probers      prometheus.Gauge
	blind        prometheus.Gauge
	deadZones    prometheus.Gauge
	brake        prometheus.Gauge
	resolutions  *prometheus.CounterVec
	watches      prometheus.Gauge
	streams      *prometheus.GaugeVec
	pushes       *prometheus.CounterVec
	pushedBytes  *prometheus.CounterVec
	nacks        *prometheus.CounterVec
	initial      *prometheus.HistogramVec
	streamsEnded *prometheus.CounterVec
	throttled    prometheus.Counter
	unrenderable *prometheus.CounterVec
	dns          *prometheus.CounterVec
	dnsDuration  prometheus.Histogram
	dnsRefused   *prometheus.CounterVec
	storeState   *prometheus.GaugeVec
	storeCommit  prometheus.Histogram
	storeDropped *prometheus.CounterVec
	unacked      *prometheus.CounterVec
	pending      prometheus.Gauge
	reconciled   *prometheus.CounterVec
	held         *prometheus.GaugeVec
	handshakes   *prometheus.CounterVec
	connections  *prometheus.GaugeVec
	calls        *prometheus.CounterVec
	panics       prometheus.Counter
	svidExpiry   prometheus.Gauge
	svidKept     prometheus.Counter

	webhookEvents   *prometheus.CounterVec
	webhookFailures prometheus.Counter

	// What is counted on every delivery, found without hashing labels.
	pushedBy     sync.Map // [2]string{type, client} → pushed
	propagatedTo sync.Map // client → prometheus.Observer
}

// pushed are the counters of one type and client kind.
type pushed struct{ responses, bytes prometheus.Counter }

// New returns the metrics of one server. census is asked at every scrape.
func New(version, revision string, census func() Census) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.nameViews()
	m.nameEvidence()
	m.nameSurfaces()
	m.nameStore()
	m.nameTransport()
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "sightline_build_info",
		Help:        "The running build; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision, "goversion": runtime.Version()}})
	build.Set(1)
	m.registry.MustRegister(build, newCensusCollector(census), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the metrics in the Prometheus and OpenMetrics formats.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4})
}

// Gatherer gives tests what a scrape would return.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(g)
	return g
}

// histogram has native buckets, and classic ones for scrapers without them.
func (m *Metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
		NativeHistogramMinResetDuration: time.Hour}, labels)
	m.registry.MustRegister(h)
	return h
}

// slow are buckets for what takes milliseconds to a minute, fast for what takes
// microseconds to a second.
func slow() []float64 { return []float64{.001, .005, .025, .1, .25, .5, 1, 2.5, 5, 10, 15, 30, 60} }
func fast() []float64 { return []float64{.00001, .0001, .0005, .001, .005, .01, .05, .1, .5, 1} }
