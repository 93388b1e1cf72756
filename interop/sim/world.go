package main

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

const tick = 250 * time.Millisecond

// condition is how an instance is at a moment.
type condition struct {
	fails      float64 // share of its calls that fail
	refuses    bool    // nobody listens
	hangs      bool    // it takes calls and answers none
	probeFails bool    // its health check says no
	dark       bool    // its zone lost power: nothing reaches it, nor it us
	self       health.SelfStatus
	degraded   []string // dependencies that it calls degraded
}

// instance is one simulated copy of the service.
type instance struct {
	uid    registry.UID
	zone   string
	is     condition
	since  time.Time // of is
	leased bool
	visits []*visit
	says   time.Time // next self-report
	renews time.Time

	confirming bool // probers look every ten seconds
	third      bool
}

// healthy reports whether nothing is wrong with it.
func (i *instance) healthy() bool {
	return i.is.fails == 0 && !i.is.refuses && !i.is.hangs && !i.is.probeFails && !i.is.dark && i.is.self != health.NotServing
}

// world is one service and everything around it.
type world struct {
	rng       *rand.Rand
	epoch     time.Time
	now       time.Time
	contract  registry.Contract
	profile   registry.Profile
	eval      *health.Evaluator
	assembler *views.Assembler
	publisher *views.Publisher
	observers *health.Observers
	revision  uint64

	instances []*instance
	byUID     map[registry.UID]*instance
	callers   []*caller
	probers   []*prober
	pending   []health.Sample
	script    []act

	background float64 // share of every call that fails
	stuck      registry.UID
	stuckFails float64

	listed   []*views.Member
	stance   *health.Stance
	assemble time.Time
	offerAt  time.Time
	changes  []registry.InstanceChange

	newest     int     // uid last given
	worstShare float64 // noteShare's
	halfway    bool

	seen record
}

// act is something that happens at a time, from the start.
type act struct {
	at time.Duration
	do func(*world)
}

var serviceName = registry.Name{Namespace: "shop", Service: "checkout"}

// setup says what a world starts with.
type setup struct {
	seed     uint64
	supplies registry.ClassSet
	contract registry.Contract
	lease    time.Duration
	zones    []string // one instance each, in order
	probers  []health.Prober
	callers  int
	kinds    []health.ReporterKind // in turn
	rate     float64               // calls a second at each instance, over all callers
	errors   float64               // background
}

func newWorld(s setup) *world {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := &world{
		rng: rand.New(rand.NewPCG(s.seed, 0x5167)), epoch: epoch, now: epoch,
		contract: s.contract.WithDefaults(), profile: registry.Profile{Namespace: "shop", Name: "sim", Supplies: s.supplies},
		observers: health.NewObservers(), byUID: make(map[registry.UID]*instance), background: s.errors,
	}
	w.eval = health.New(serviceName, epoch, health.Memory{})
	w.assembler = views.NewAssembler(serviceName, views.Memory{})
	w.publisher = views.NewPublisher(views.PublisherConfig{Epoch: 1, Next: 1, Reserved: 1 << 40})
	for _, p := range s.probers {
		w.probers = append(w.probers, &prober{Prober: p})
	}
	load := registry.Change{Name: serviceName, Service: w.service(), Contract: w.contract}
	for _, z := range s.zones {
		load.Instances = append(load.Instances, w.insert(z, s.lease))
	}
	// The server starts with a fleet that runs: whoever was stored is a member.
	w.eval.Load(load)
	c, next := w.assembler.Apply(epoch, views.Input{Change: &load, Verdicts: w.eval.Verdicts()})
	w.assemble = next
	w.offer(c)
	w.publisher.Complete()
	kinds := s.kinds
	if len(kinds) == 0 {
		kinds = []health.ReporterKind{health.FromLibrary}
	}
	for k := range s.callers {
		phase := time.Duration(w.rng.Int64N(int64(reportEvery)))
		w.callers = append(w.callers, newCaller(k, kinds[k%len(kinds)], s.rate*float64(len(s.zones))/float64(s.callers), epoch.Add(phase)))
	}
	w.seen.outs = make(map[registry.UID]time.Time)
	return w
}

func (w *world) service() *registry.Service {
	return &registry.Service{Name: serviceName, Ports: []registry.Port{{Name: "grpc", Number: 8080, Protocol: registry.GRPC}}}
}

// insert makes an instance and the change that brings it.
func (w *world) insert(zone string, lease time.Duration) registry.InstanceChange {
	w.newest++
	n := w.newest
	i := &instance{uid: registry.UID(n), zone: zone, leased: lease > 0, is: condition{self: health.Serving}, since: w.now}
	i.says = w.now.Add(time.Duration(w.rng.Int64N(int64(reportEvery))))
	i.renews = w.now.Add(time.Duration(w.rng.Int64N(int64(max(lease/3, time.Second)))))
	w.instances = append(w.instances, i)
	w.byUID[i.uid] = i
	w.assign(i)
	row := &registry.Instance{
		UID: i.uid, Service: serviceName, Identity: identity.MustParse("spiffe://sim.test/ns/shop/sa/checkout"),
		Endpoint: registry.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})},
		Zone:     zone, Weight: 100, Lease: lease, Proof: registry.ByAuthority,
	}
	return registry.InstanceChange{UID: i.uid, Row: row, Profile: w.profile}
}

// assign gives an instance two probers, or three, in different zones if there
// are such.
func (w *world) assign(i *instance) {
	want := 2
	if i.third {
		want = 3
	}
	for round := 0; len(i.visits) < min(want, len(w.probers)); round++ {
		for k := range w.probers {
			p := w.probers[(k+int(i.uid))%len(w.probers)]
			taken := slices.ContainsFunc(i.visits, func(v *visit) bool {
				return v.prober == p || round == 0 && v.prober.Zone == p.Zone
			})
			if !taken && len(i.visits) < want {
				i.visits = append(i.visits, &visit{p, w.now.Add(time.Duration(w.rng.Int64N(int64(probeEvery))))})
			}
		}
	}
}

// add brings a new instance while the world runs.
func (w *world) add(zone string, lease time.Duration) *instance {
	c := w.insert(zone, lease)
	w.change(c)
	return w.byUID[c.UID]
}

// remove takes an instance away for a reason.
func (w *world) remove(i *instance, why registry.Removal) {
	delete(w.byUID, i.uid)
	w.instances = slices.DeleteFunc(w.instances, func(o *instance) bool { return o == i })
	w.change(registry.InstanceChange{UID: i.uid, Removal: why})
}

func (w *world) change(c registry.InstanceChange) { w.changes = append(w.changes, c) }

// set changes how an instance is.
func (w *world) set(i *instance, c condition) {
	i.is, i.since = c, w.now
	if i.healthy() {
		w.seen.repaired(i.uid, w.now)
	} else {
		w.seen.broke(i.uid, w.now)
	}
}

// run goes on until the time, from the start.
func (w *world) run(until time.Duration) {
	for end := w.epoch.Add(until); w.now.Before(end); {
		w.now = w.now.Add(tick)
		w.step()
	}
}

func (w *world) step() {
	for len(w.script) > 0 && !w.now.Before(w.epoch.Add(w.script[0].at)) {
		do := w.script[0].do
		w.script = w.script[1:]
		do(w)
	}
	for _, c := range w.callers {
		for ; !c.next.After(w.now); c.next = c.next.Add(reportEvery) {
			c.report(w)
		}
	}
	if len(w.probers) > 0 || w.profile.Supplies.Has(registry.ClassSelf) {
		w.gather()
	}
	w.judge()
}

// gather collects what probers and instances say in this tick.
func (w *world) gather() {
	w.pending = w.pending[:0]
	for _, i := range w.instances {
		for _, v := range i.visits {
			for ; !v.next.After(w.now); v.next = v.next.Add(w.cadence(i)) {
				r := v.prober.probe(w, i)
				w.pending = append(w.pending, health.Sample{UID: i.uid, Class: registry.ClassProbe, At: v.next, Prober: v.prober.Prober, Result: r})
			}
		}
		if w.profile.Supplies.Has(registry.ClassSelf) && i.is.self != health.NoStatus && !i.is.dark {
			for ; !i.says.After(w.now); i.says = i.says.Add(reportEvery) {
				w.pending = append(w.pending, health.Sample{UID: i.uid, Class: registry.ClassSelf, At: i.says, Status: i.is.self, Degraded: i.is.degraded})
			}
		}
		for ; i.leased && !i.is.dark && !i.renews.After(w.now); i.renews = i.renews.Add(w.contract.Lease / 3) {
			w.eval.Renew(i.renews, i.uid)
		}
	}
	if len(w.pending) == 0 {
		return
	}
	w.eval.Observe(w.now, w.pending)
	for k := range w.pending {
		w.seen.noteSample(&w.pending[k], w.now)
	}
}

// cadence is how often an instance is probed now. A prober that waits for its
// timeout is late by it; the simulation lets it start the next one in time.
func (w *world) cadence(i *instance) time.Duration {
	if i.confirming {
		return confirmOnce
	}
	return probeEvery
}

func (w *world) judge() {
	var change *registry.Change
	if len(w.changes) > 0 {
		w.revision++
		change = &registry.Change{Name: serviceName, Revision: w.revision, Service: w.service(), Contract: w.contract, Instances: w.changes}
		w.changes = nil
		w.eval.Apply(w.now, *change)
	}
	if len(w.probers) > 0 {
		w.observers.Take(w.now, []health.Tally{w.eval.Tally(w.now)})
		if s, changed, _ := w.observers.Judge(w.now); changed {
			w.stance = s
			w.eval.Stand(w.now, s)
		}
	}
	j := w.eval.Judge(w.now)
	for _, p := range j.Probing {
		w.probing(p)
	}
	w.seen.transitions(w, j.Transitions)
	switch {
	case change != nil || len(j.Changed) > 0 || due(w.assemble, w.now):
		c, next := w.assembler.Apply(w.now, views.Input{Change: change, Verdicts: j.Changed})
		w.assemble = next
		w.seen.incidents(w, c.Incidents)
		w.offer(c)
	case due(w.offerAt, w.now):
		w.offer(w.assembler.Candidate())
	}
}

func (w *world) probing(p health.Probing) {
	i := w.byUID[p.UID]
	if i == nil || p.Gone {
		return
	}
	if i.confirming && !p.Confirming {
		for _, v := range i.visits {
			v.next = earlier(v.next, w.now.Add(time.Duration(w.rng.Int64N(int64(probeEvery)))))
		}
	}
	i.confirming = p.Confirming
	if i.third = p.Third; i.third {
		w.assign(i)
	} else if len(i.visits) > 2 {
		i.visits = i.visits[:2]
	}
}

// offer publishes a candidate, or keeps it until its lane lets it go.
func (w *world) offer(c views.Candidate) {
	r := w.publisher.Publish(w.now, c)
	w.assembler.Published(r.Held)
	w.offerAt = time.Time{}
	switch r.Outcome {
	case views.Deferred:
		w.offerAt = r.Until
	case views.Published:
		w.listed = w.listed[:0]
		for _, m := range r.Publication.New.Members {
			if m.Listed {
				w.listed = append(w.listed, m)
			}
		}
		w.seen.published(w, r.Publication.New)
	}
}

func due(at, now time.Time) bool { return !at.IsZero() && !at.After(now) }

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func itoa(n int) string { return strconv.Itoa(n) }
