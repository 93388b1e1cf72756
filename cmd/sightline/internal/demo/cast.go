package demo

import (
	"context"
	"fmt"
	"time"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// cast is who takes part in a scenario.
type cast struct {
	services []service
	probers  []string // a zone each
	grpc     int      // proxyless callers
	dns      bool     // a DNS caller; Envoy's is there whenever Envoy is
	every    time.Duration
	workers  int // callers' concurrent loops for each service, each calling every
}

// service is one demo service.
type service struct {
	name      string
	instances int                        // at the start
	zones     string                     // one letter a zone, in turn
	supplies  []registryv1.EvidenceClass // what its instances can give
	contract  func(*registryv1.Contract) // what its contract says beside the lease; nil: nothing
	lease     time.Duration
}

const (
	classProbe   = registryv1.EvidenceClass_EVIDENCE_CLASS_PROBE
	classSelf    = registryv1.EvidenceClass_EVIDENCE_CLASS_SELF
	classCallers = registryv1.EvidenceClass_EVIDENCE_CLASS_CALLERS
)

// shortLease lets a killed instance be noticed while one watches.
const shortLease = 5 * time.Second

// shop is the cast of the first five minutes: three services of four instances
// in two zones that speak for themselves, and five callers.
func shop() cast {
	c := cast{grpc: 3, dns: true, every: callEvery, workers: 1}
	for _, name := range []string{"checkout", "cart", "catalog"} {
		c.services = append(c.services, service{name: name, instances: 4, zones: "ab", supplies: []registryv1.EvidenceClass{classSelf}, lease: shortLease})
	}
	return c
}

// one is a cast with a single service.
func one(name string, instances int, zones string, supplies ...registryv1.EvidenceClass) cast {
	return cast{grpc: 3, dns: true, every: callEvery, workers: 1, services: []service{
		{name: name, instances: instances, zones: zones, supplies: supplies, lease: shortLease},
	}}
}

func (c cast) probed(zones ...string) cast {
	c.probers = zones
	return c
}

// scenario is a cast and what happens to it.
type scenario struct {
	name  string
	about string
	cast  func() cast
	acts  []func(*director, context.Context) error
	moves bool // sets are still moving at its end: surfaces are not compared
}

func scenarios() []scenario {
	type acts = []func(*director, context.Context) error
	return []scenario{
		{name: "tour", about: "a crash, the guard, an outage of the control plane", cast: shop, acts: acts{(*director).crash, (*director).guard, (*director).outage}},
		{name: "crash", about: "an instance is killed", cast: shop, acts: acts{(*director).crash}},
		{name: "guard", about: "three of four replicas call themselves unready", cast: shop, acts: acts{(*director).guard}},
		{name: "outage", about: "the control plane is killed and comes back", cast: shop, acts: acts{(*director).outage}},
		{name: "grey", about: "40 % of one instance's calls fail while its probes and its own word are good", cast: greyCast, acts: acts{(*director).grey}, moves: true},
		{name: "baddeploy", about: "new instances never become good", cast: baddeployCast, acts: acts{(*director).baddeploy}},
		{name: "zonedead", about: "one of three zones stops", cast: zonedeadCast, acts: acts{(*director).zonedead}, moves: true},
		{name: "flap", about: "an instance changes its mind again and again", cast: flapCast, acts: acts{(*director).flap}, moves: true},
		{name: "blind", about: "all probers stop, and nothing else speaks", cast: blindCast, acts: acts{(*director).blind}},
		{name: "dependency", about: "a shared dependency is degraded everywhere", cast: dependencyCast, acts: acts{(*director).dependency}},
		{name: "ramp", about: "a new instance takes its share of the traffic step by step", cast: rampCast, acts: acts{(*director).ramp}},
	}
}

// Scenarios lists what Config.Scenario may name.
func Scenarios() []string {
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.name)
	}
	return names
}

// Describe lists the scenarios with what happens in them, a line each.
func Describe() string {
	text := ""
	for _, s := range scenarios() {
		text += fmt.Sprintf("  %-11s %s\n", s.name, s.about)
	}
	return text
}

func find(name string) (scenario, bool) {
	for _, s := range scenarios() {
		if s.name == name {
			return s, true
		}
	}
	return scenario{}, false
}

// place is one instance's seat: a service of the cast, and its number in it.
type place struct{ service, index int }

func (d *director) label(p place) string {
	return fmt.Sprintf("%s-%d", d.cast.services[p.service].name, p.index+1)
}

func (d *director) zone(p place) string {
	zones := d.cast.services[p.service].zones
	return zones[p.index%len(zones):][:1]
}

func (d *director) address(p place) string {
	return fmt.Sprintf("127.0.0.1:%d", d.layout.instancePort(p.service, p.index))
}

// names of the cast's services.
func (c cast) names() []string {
	var names []string
	for _, s := range c.services {
		names = append(names, s.name)
	}
	return names
}

// seats lists every instance of the start.
func (c cast) seats() []place {
	var all []place
	for s := range c.services {
		for i := range c.services[s].instances {
			all = append(all, place{s, i})
		}
	}
	return all
}
