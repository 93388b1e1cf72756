package main

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

// How often everybody reports and probes (DESIGN.md §1).
const (
	reportEvery = 2 * time.Second
	probeEvery  = 2 * time.Second
	confirmOnce = 10 * time.Second
	probeWaits  = time.Second // a probe's timeout
)

// caller is one workload that calls the service.
type caller struct {
	reporter health.Reporter
	kind     health.ReporterKind
	rate     float64 // calls a second, over all members
	broken   bool    // its own network fails half of its calls, whoever they go to
	lies     bool    // it reports that all of its calls to the first instance failed
	tenant   bool    // it calls for the tenant whose calls fail wherever they stick
	next     time.Time
	hanging  map[registry.UID]uint32 // calls that have not ended
	draft    health.Outcomes
}

func newCaller(k int, kind health.ReporterKind, rate float64, first time.Time) *caller {
	c := &caller{kind: kind, rate: rate, next: first, hanging: make(map[registry.UID]uint32)}
	c.reporter = health.Reporter{
		Identity: identity.MustParse("spiffe://sim.test/ns/callers/sa/c" + itoa(k%7)),
		Addr:     netip.AddrFrom4([4]byte{10, 1, byte(k >> 8), byte(k)}),
	}
	return c
}

// report draws the calls of one interval and hands them over.
func (c *caller) report(w *world) {
	o := &c.draft
	o.Reporter, o.Kind, o.At, o.Interval = c.reporter, c.kind, c.next, reportEvery
	o.Entries = o.Entries[:0]
	total := c.reachable(w)
	for _, m := range w.listed {
		i := w.byUID[m.UID]
		if i == nil {
			continue
		}
		e := health.Outcome{UID: m.UID}
		if c.kind == health.FromGRPC {
			e.Weight = m.Weight
		}
		picked := c.rate * reportEvery.Seconds() * float64(m.Weight) / total
		switch {
		case i.is.refuses && c.kind == health.FromGRPC:
			// Its connection is not ready: it is never picked.
		case i.is.refuses:
			e.Failed = poisson(w.rng, picked)
			e.Refused = e.Failed
		default:
			c.call(w, i, &e, poisson(w.rng, picked))
		}
		if e.Issued+e.Failed+e.OK+e.InProgress > 0 || e.Weight > 0 {
			o.Entries = append(o.Entries, e)
		}
	}
	if len(o.Entries) > 0 {
		w.eval.ObserveOutcomes(w.now, o)
		w.noteReport(o)
	}
}

// reachable is the weight that the caller's choice is spread over: a gRPC client
// leaves out whom it cannot connect to.
func (c *caller) reachable(w *world) float64 {
	total := 0.0
	for _, m := range w.listed {
		if i := w.byUID[m.UID]; i != nil && !(i.is.refuses && c.kind == health.FromGRPC) {
			total += float64(m.Weight)
		}
	}
	return max(total, 1)
}

// call draws how n calls to an instance ended.
func (c *caller) call(w *world, i *instance, e *health.Outcome, n uint32) {
	e.Issued = n
	p := i.is.fails
	if c.tenant && w.stuck == i.uid {
		p = max(p, w.stuckFails)
	}
	if w.background > p {
		p = w.background
	}
	if c.broken {
		p = max(p, 0.5)
	}
	switch {
	case c.lies && i == w.instances[0]:
		e.Failed = n
	case i.is.hangs && c.kind == health.FromEnvoy:
		// The caller gives up; Envoy counts nothing at all.
	case i.is.hangs:
		e.Failed = n // the deadline
	default:
		e.Failed = binomial(w.rng, n, p)
		e.OK = n - e.Failed
	}
}

// prober probes the instances that it is assigned.
type prober struct {
	health.Prober
	cutOff   bool            // its own network is broken: everything times out
	cutZones map[string]bool // the zones that it cannot reach
	liar     bool            // it always says good
}

// visit is one instance's turn with one prober.
type visit struct {
	prober *prober
	next   time.Time
}

func (p *prober) probe(w *world, i *instance) health.ProbeResult {
	switch {
	case p.cutOff, p.cutZones[i.zone], i.is.dark:
		return health.ProbeTimeout
	case p.liar:
		return health.ProbeOK
	case i.is.refuses:
		return health.ProbeRefused
	case i.is.hangs:
		return health.ProbeTimeout
	case i.is.probeFails:
		return health.ProbeFailed
	}
	return health.ProbeOK
}

// poisson draws a number of events with the given mean.
func poisson(rng *rand.Rand, mean float64) uint32 {
	if mean <= 0 {
		return 0
	}
	if mean > 60 {
		return uint32(max(0, math.Round(mean+math.Sqrt(mean)*rng.NormFloat64())))
	}
	limit, product := math.Exp(-mean), rng.Float64()
	n := uint32(0)
	for product > limit {
		product *= rng.Float64()
		n++
	}
	return n
}

// binomial draws how many of n succeed with probability p.
func binomial(rng *rand.Rand, n uint32, p float64) uint32 {
	switch {
	case n == 0 || p <= 0:
		return 0
	case p >= 1:
		return n
	case float64(n)*p > 60 && float64(n)*(1-p) > 60:
		mean := float64(n) * p
		k := math.Round(mean + math.Sqrt(mean*(1-p))*rng.NormFloat64())
		return uint32(min(max(k, 0), float64(n)))
	}
	// The gaps between successes are geometric: one draw for each success.
	k, at, scale := uint32(0), 0.0, math.Log1p(-p)
	for {
		at += math.Floor(math.Log(1-rng.Float64())/scale) + 1
		if at > float64(n) {
			return k
		}
		k++
	}
}
