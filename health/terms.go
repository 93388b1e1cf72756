package health

import (
	"slices"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	// confirmCadence is how often an instance is probed while its callers decide.
	confirmCadence = 10 * time.Second
	// fullCadenceFor is how long one failed confirmation makes probes come at
	// full cadence (HEALTH.md §3).
	fullCadenceFor = 15 * time.Second
)

// terms are what a contract says about evidence. They are shared by the
// instances that they hold for, and never changed.
type terms struct {
	callers      callersTerms
	probes       probeTerms
	silence      registry.SilencePolicy
	returnHold   time.Duration
	ramp         time.Duration // from admission to full weight; 0: at once
	quarantine   registry.Quarantine
	dependencies []registry.Dependency // sorted by name
}

// termsOf reads a contract; what it leaves out is the default.
func termsOf(c registry.Contract) *terms {
	c = c.WithDefaults()
	t := &terms{
		callers: callersTerms{
			halfLife: c.CallersHalfLife, out: c.CallersOut, in: c.CallersIn, ignoreLRS: c.IgnoreLRSErrors,
		},
		probes: probeTerms{
			halfLife: c.ProbeHalfLife, out: c.ProbeOut, in: c.ProbeIn,
			interval: c.Probe.Interval, timeout: c.Probe.Timeout,
		},
		silence: c.Silence, returnHold: c.ReturnHold, ramp: c.Ramp, quarantine: c.Quarantine,
		dependencies: c.Dependencies,
	}
	if c.NoRamp {
		t.ramp = 0
	}
	return t
}

// equal reports whether both say the same.
func (t *terms) equal(o *terms) bool {
	return t != nil && t.callers == o.callers && t.probes == o.probes && t.silence == o.silence &&
		t.returnHold == o.returnHold && t.ramp == o.ramp && t.quarantine == o.quarantine &&
		slices.Equal(t.dependencies, o.dependencies)
}

// probeSilence is how long the probe class may be quiet at the cadence:
// 3 intervals and a timeout.
func (t *terms) probeSilence(confirming bool) time.Duration {
	every := t.probes.interval
	if confirming {
		every = max(every, confirmCadence)
	}
	return 3*every + t.probes.timeout
}

// SetContract puts a contract into effect in one zone, or with an empty zone
// everywhere: for every instance there is, and for those that come. Callers'
// half-life, and whether errors over LRS count, are the service's: reports are
// added up across zones, so they change with the contract that is in effect
// everywhere.
func (e *Evaluator) SetContract(now time.Time, c registry.Contract, zone string) {
	t := termsOf(c)
	if zone != "" {
		if e.termsIn(zone).equal(t) {
			return
		}
		if e.zoneTerms == nil {
			e.zoneTerms = make(map[string]*terms)
		}
		e.zoneTerms[zone] = t
	} else {
		if e.terms.equal(t) && e.zoneTerms == nil {
			return
		}
		e.terms, e.zoneTerms = t, nil
		e.callers.configure(t.callers)
	}
	for _, i := range e.instances {
		if in := e.termsIn(i.row.Zone); !i.terms.equal(in) {
			i.terms, i.readAt = in, time.Time{}
			e.forgiveSilence(i)
			e.touch(i)
		}
	}
}

// termsIn are the terms that hold in a zone.
func (e *Evaluator) termsIn(zone string) *terms {
	if t := e.zoneTerms[zone]; t != nil {
		return t
	}
	return e.terms
}
