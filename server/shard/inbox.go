package shard

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// inbox is where a shard's input waits. Putting never waits for the shard, and
// memory is bounded by the number of services and instances and by limit.
type inbox struct {
	limit int           // ordinary samples
	wake  chan struct{} // capacity 1: something must not wait for a tick

	mu       sync.Mutex
	mail     map[registry.Name]*mail
	ordinary int // ordinary samples waiting, counts of outcomes among them
	asks     []func()
	ready    bool // every shard has loaded

	// Memory of deliveries that were given back: where evidence flows all the
	// time, nothing is allocated for it.
	emptyMail map[registry.Name]*mail
	spareMail []*mail
	spare     []*health.Outcomes
}

const (
	// keptSpares bounds each list of spare memory, and keptRoom how much each of
	// them has room for: a flood must not be remembered for ever.
	keptSpares = 1024
	keptRoom   = 1024 // counts of a report, samples of a service
)

// mail is what waits for one service. Changes come in the order of their
// revisions: the registry has one writer.
type mail struct {
	// deleted is the service's deletion, when it was deleted and perhaps made
	// anew since; rows that came before it are gone from here.
	deleted *registry.Change
	change  *registry.Change
	rows    map[registry.UID]registry.InstanceChange // of change, newest each

	renewals map[registry.UID]time.Time
	samples  []health.Sample
	outcomes []*health.Outcomes // owned by the mail
	urgent   map[urgentKey]health.Sample
	restamp  bool
}

// pressing reports whether the mail must not wait for a tick.
func (m *mail) pressing() bool {
	return m.deleted != nil || m.change != nil || len(m.urgent) > 0 || m.restamp
}

// urgentKey keeps the newest word of each kind: DRAINING is not undone by the
// NOT_SERVING that follows it, nor one prober's refused connection by another's.
type urgentKey struct {
	uid    registry.UID
	status health.SelfStatus
	prober string
}

func newInbox(limit int) *inbox {
	return &inbox{limit: limit, wake: make(chan struct{}, 1), mail: make(map[registry.Name]*mail)}
}

// to returns the service's mail; the caller holds mu.
func (b *inbox) to(n registry.Name) *mail {
	m := b.mail[n]
	if m == nil {
		if last := len(b.spareMail) - 1; last >= 0 {
			m, b.spareMail = b.spareMail[last], b.spareMail[:last]
		} else {
			m = &mail{}
		}
		b.mail[n] = m
	}
	return m
}

func (b *inbox) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *inbox) putChange(c registry.Change) {
	b.mu.Lock()
	b.to(c.Name).merge(c)
	b.mu.Unlock()
	b.ring()
}

// merge keeps the newest row of the service and of each instance.
func (m *mail) merge(c registry.Change) {
	if c.Service == nil {
		m.deleted, m.change, m.rows = &c, nil, nil
		return
	}
	if m.rows == nil {
		m.rows = make(map[registry.UID]registry.InstanceChange)
	}
	for _, i := range c.Instances {
		m.rows[i.UID] = i
	}
	c.Instances = nil
	m.change = &c
}

// changes returns what is to be applied, in order.
func (m *mail) changes() []registry.Change {
	var all []registry.Change
	if m.deleted != nil {
		all = append(all, *m.deleted)
	}
	if m.change != nil {
		c := *m.change
		c.Instances = slices.SortedFunc(maps.Values(m.rows), func(a, b registry.InstanceChange) int {
			return cmp.Compare(a.UID, b.UID)
		})
		all = append(all, c)
	}
	return all
}

func (b *inbox) putRenewal(n registry.Name, uid registry.UID, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.to(n)
	if m.renewals == nil {
		m.renewals = make(map[registry.UID]time.Time)
	}
	if at.After(m.renewals[uid]) {
		m.renewals[uid] = at
	}
}

// putSamples returns how many samples were dropped because the inbox is full.
func (b *inbox) putSamples(n registry.Name, samples []health.Sample) (dropped int) {
	urgent := false
	b.mu.Lock()
	m := b.to(n)
	for k := range samples {
		s := &samples[k]
		switch {
		case s.Urgent():
			urgent = true
			m.keep(s)
		case b.ordinary >= b.limit:
			dropped++
		default:
			b.ordinary++
			m.samples = append(m.samples, *s)
		}
	}
	full := b.ordinary >= b.limit/2
	b.mu.Unlock()
	if urgent || full {
		b.ring()
	}
	return dropped
}

// putOutcomes copies one report, or returns how many counts were dropped
// because the inbox is full.
func (b *inbox) putOutcomes(n registry.Name, o *health.Outcomes) (dropped int) {
	counts := max(1, len(o.Entries)) // that somebody called nobody takes room as well
	b.mu.Lock()
	if b.ordinary+counts > b.limit {
		b.mu.Unlock()
		return len(o.Entries)
	}
	b.ordinary += counts
	var own *health.Outcomes
	if last := len(b.spare) - 1; last >= 0 {
		own, b.spare = b.spare[last], b.spare[:last]
	} else {
		own = &health.Outcomes{}
	}
	entries := append(own.Entries[:0], o.Entries...)
	*own = *o
	own.Entries = entries
	m := b.to(n)
	m.outcomes = append(m.outcomes, own)
	full := b.ordinary >= b.limit/2
	b.mu.Unlock()
	if full {
		b.ring() // it is taken in before the next tick, and judged then
	}
	return 0
}

func (m *mail) keep(s *health.Sample) {
	if m.urgent == nil {
		m.urgent = make(map[urgentKey]health.Sample)
	}
	k := urgentKey{s.UID, s.Status, s.Prober.Name}
	if last, ok := m.urgent[k]; !ok || s.At.After(last.At) {
		m.urgent[k] = *s
	}
}

func (b *inbox) putRestamp(n registry.Name) {
	b.mu.Lock()
	b.to(n).restamp = true
	b.mu.Unlock()
	b.ring()
}

func (b *inbox) putAsk(f func()) {
	b.mu.Lock()
	b.asks = append(b.asks, f)
	b.mu.Unlock()
	b.ring()
}

func (b *inbox) putReady() {
	b.mu.Lock()
	b.ready = true
	b.mu.Unlock()
	b.ring()
}

// delivery is everything that waited.
type delivery struct {
	mail  map[registry.Name]*mail
	asks  []func()
	ready bool
}

func (b *inbox) take() delivery {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := delivery{b.mail, b.asks, b.ready}
	if len(d.mail) > 0 {
		if b.mail = b.emptyMail; b.mail == nil {
			b.mail = make(map[registry.Name]*mail)
		}
		b.emptyMail = nil
	} else {
		d.mail = nil
	}
	b.ordinary, b.asks, b.ready = 0, nil, false
	return d
}

// giveBack takes the memory of a delivery that was dealt with.
func (b *inbox) giveBack(d delivery) {
	if d.mail == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range d.mail {
		for _, o := range m.outcomes {
			if len(b.spare) < keptSpares && cap(o.Entries) <= keptRoom {
				b.spare = append(b.spare, o)
			}
		}
		m.empty()
		if len(b.spareMail) < keptSpares {
			b.spareMail = append(b.spareMail, m)
		}
	}
	clear(d.mail)
	b.emptyMail = d.mail
}

// empty forgets what the mail held and keeps its memory.
func (m *mail) empty() {
	if len(m.renewals) > keptRoom { // a map never shrinks
		m.renewals = nil
	}
	if len(m.urgent) > keptRoom {
		m.urgent = nil
	}
	clear(m.renewals)
	clear(m.samples)
	clear(m.outcomes)
	clear(m.urgent)
	if cap(m.samples) > keptRoom {
		m.samples = nil
	}
	if cap(m.outcomes) > keptRoom {
		m.outcomes = nil
	}
	*m = mail{renewals: m.renewals, samples: m.samples[:0], outcomes: m.outcomes[:0], urgent: m.urgent}
}
