package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/registry"
)

// TestObservers runs the timelines of testdata/observers: a region of simulated
// instances and probers, whose results go through the evaluators' tallies to the
// observers. Each prober reports every 2 s what it found; a time-out is known a
// second after the probe. Whoever is over the line is withdrawn, unless the
// stance brakes it. Commands:
//
//	region zones=z1,z2,z3 services=2 each=4 [probers=1] [slow=1] [interval=1]
//	        each: instances of a service in a zone; probers: in a zone; slow:
//	        so many services are probed at the confirmation cadence; interval:
//	        seconds
//	cut p1@z1 [z2]   the prober reaches nothing, or nothing in that zone
//	mend p1@z1
//	mute p1@z1       it says nothing more
//	down|refuse|fail|up z2|svc1|i1-i3   instances: no answer, refusing, answering badly, good
//	run 30s          printing what changes: the stance, incidents, who is out
//	observe svc1 z1 12   withdrawals by observation, without a cause that is shown
//	wait svc1 z1 3   so many withdrawals wait, until said otherwise
//	release          an operator's release of the brake
//	forget svc1      the service is gone
func TestObservers(t *testing.T) {
	datadriven.Walk(t, "testdata/observers", func(t *testing.T, path string) {
		r := &region{now: epoch, observers: NewObservers(), stance: &Stance{}, cut: make(map[string]bool), down: make(map[registry.UID]ProbeResult)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			r.text.Reset()
			for _, line := range strings.Split(strings.TrimSpace(d.Cmd+" "+argLine(d)+"\n"+d.Input), "\n") {
				if err := r.command(strings.Fields(line)); err != nil {
					d.Fatalf(t, "%q: %v", line, err)
				}
			}
			return r.text.String()
		})
	})
}

// region is a simulated one.
type region struct {
	now       time.Time
	services  []*watchedService
	probers   []*simProber
	targets   map[registry.UID]*target
	interval  time.Duration
	observers *Observers
	stance    *Stance
	cut       map[string]bool // prober, or prober and zone
	down      map[registry.UID]ProbeResult
	text      strings.Builder
	said      string // who is out, last printed
}

type watchedService struct {
	name    string
	e       *Evaluator
	targets []*target
	slow    bool
	hand    map[string]int // waiting by the test's word
}

// target is an instance with the probers that look at it.
type target struct {
	s         *watchedService
	i         *instance
	out       bool
	fullUntil time.Time
	by        []turn
}

// turn is when a prober probes a target next.
type turn struct {
	p    *simProber
	next time.Time
}

type simProber struct {
	who     Prober
	pending []Sample
	flush   time.Time
	mute    bool
}

func (r *region) command(f []string) error {
	switch f[0] {
	case "region":
		return r.build(f[1:])
	case "cut":
		r.cut[strings.Join(f[1:], " ")] = true
	case "mend":
		maps.DeleteFunc(r.cut, func(k string, _ bool) bool { return strings.HasPrefix(k, f[1]) })
	case "mute":
		for _, p := range r.probers {
			p.mute = p.mute || p.who.Name == f[1]
		}
	case "up", "down", "refuse", "fail":
		r.turn(map[string]ProbeResult{"up": ProbeOK, "down": ProbeTimeout, "refuse": ProbeRefused, "fail": ProbeFailed}[f[0]], f[1])
	case "observe":
		n, err := strconv.Atoi(f[3])
		for range n {
			r.service(f[1]).e.noteWithdrawal(&instance{row: &registry.Instance{Zone: f[2]}})
		}
		return err
	case "wait":
		n, err := strconv.Atoi(f[3])
		r.service(f[1]).hand = map[string]int{f[2]: n}
		return err
	case "release":
		fmt.Fprintf(&r.text, "%s released: %v\n", r.stamp(), r.observers.ReleaseBrake(r.now))
	case "forget":
		r.observers.Forget(r.service(f[1]).e.Name())
		r.services = slices.DeleteFunc(r.services, func(s *watchedService) bool { return s.name == f[1] })
	case "run":
		d, err := time.ParseDuration(f[1])
		for end := r.now.Add(d); r.now.Before(end); {
			r.now = r.now.Add(tick)
			r.tick()
		}
		return err
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

func (r *region) service(name string) *watchedService {
	for _, s := range r.services {
		if s.name == name {
			return s
		}
	}
	panic("no service " + name)
}

func (r *region) turn(to ProbeResult, what string) {
	for _, s := range r.services {
		for _, x := range s.targets {
			if s.name == what || x.i.row.Zone == what || strings.HasPrefix(what, "i") && slices.Contains(uids(what), x.i.row.UID) {
				r.down[x.i.row.UID] = to
			}
		}
	}
}

func (r *region) build(args []string) error {
	zones := []string{}
	n := map[string]int{"probers": 1, "interval": 2}
	for _, a := range args {
		key, val, _ := strings.Cut(a, "=")
		if key == "zones" {
			zones = strings.Split(val, ",")
			continue
		}
		v, err := strconv.Atoi(val)
		if err != nil {
			return err
		}
		n[key] = v
	}
	for k := range n["probers"] {
		for z, zone := range zones {
			phase := time.Duration(k*len(zones)+z) * 500 * time.Millisecond
			r.probers = append(r.probers, &simProber{who: Prober{Name: fmt.Sprintf("p%d@%s", k+1, zone), Zone: zone}, flush: r.now.Add(phase)})
		}
	}
	r.interval = time.Duration(n["interval"]) * time.Second
	r.targets = make(map[registry.UID]*target)
	uid := registry.UID(1)
	for s := range n["services"] {
		svc := &watchedService{name: fmt.Sprintf("svc%d", s+1), slow: s < n["slow"]}
		name := registry.Name{Namespace: "shop", Service: svc.name}
		svc.e = New(name, r.now, Memory{})
		c := registry.Change{Name: name, Service: &registry.Service{Name: name}}
		c.Contract.Probe = registry.Probe{Interval: r.interval, Timeout: time.Second / 2}
		if r.interval > time.Second {
			c.Contract.Probe.Timeout = time.Second
		}
		for range n["each"] {
			for _, zone := range zones {
				c.Instances = append(c.Instances, registry.InstanceChange{
					UID: uid, Row: &registry.Instance{UID: uid, Service: name, Zone: zone, Proof: registry.ByAuthority},
					Profile: registry.Profile{Supplies: registry.ClassSet(0).With(registry.ClassProbe)},
				})
				uid++
			}
		}
		svc.e.Load(c)
		for _, i := range svc.e.sorted() {
			x := r.assign(i, zones)
			x.s = svc
			svc.targets = append(svc.targets, x)
			r.targets[i.row.UID] = x
		}
		r.services = append(r.services, svc)
	}
	return nil
}

// assign gives an instance two probers of different zones, each with a phase.
func (r *region) assign(i *instance, zones []string) *target {
	x := &target{i: i}
	u := int(i.row.UID)
	for k := range min(2, len(zones)) {
		var of []*simProber
		for _, p := range r.probers {
			if p.who.Zone == zones[(u/len(zones)+u+k)%len(zones)] {
				of = append(of, p)
			}
		}
		x.by = append(x.by, turn{of[u%len(of)], r.now.Add(time.Duration((u*7+k*3)%8) * tick)})
	}
	return x
}

func (r *region) tick() {
	for _, s := range r.services {
		for _, x := range s.targets {
			r.probe(s, x)
		}
	}
	for _, p := range r.probers {
		for ; !p.flush.After(r.now); p.flush = p.flush.Add(2 * time.Second) {
			r.deliver(p)
		}
	}
	var tallies []Tally
	for _, s := range r.services {
		for _, x := range s.targets {
			r.judge(s, x)
		}
		t := s.e.Tally(r.now)
		if s.hand != nil {
			t.Waiting = s.hand
		}
		tallies = append(tallies, t)
	}
	r.observers.Take(r.now, tallies)
	stance, changed, incidents := r.observers.Judge(r.now)
	for _, in := range incidents {
		over := ""
		if in.Over {
			over = " over"
		}
		fmt.Fprintf(&r.text, "%s incident %s %s%s: %s\n", r.stamp(), in.Kind, cmp.Or(in.Zone, "region"), over, in.Detail)
	}
	if changed {
		r.stance = stance
		fmt.Fprintf(&r.text, "%s stance: %s\n", r.stamp(), r.stanceText())
	}
	r.sayOut()
}

func (r *region) probe(s *watchedService, x *target) {
	for k := range x.by {
		p, at := x.by[k].p, x.by[k].next
		full := !s.slow || r.now.Before(x.fullUntil)
		every := 10 * time.Second
		if full {
			every = r.interval
			if at.After(r.now.Add(every)) {
				at = r.now.Add(every)
			}
		}
		for ; !at.After(r.now); at = at.Add(every) {
			result := cmp.Or(r.down[x.i.row.UID], ProbeOK)
			if r.cut[p.who.Name] || r.cut[p.who.Name+" "+x.i.row.Zone] {
				result = ProbeTimeout
			}
			found := at
			if result == ProbeTimeout {
				found = at.Add(x.i.terms.probes.timeout)
			}
			p.pending = append(p.pending, Sample{UID: x.i.row.UID, Class: registry.ClassProbe, At: found, Prober: p.who, Result: result})
		}
		x.by[k].next = at
	}
}

func (r *region) deliver(p *simProber) {
	late := p.pending[:0:0]
	for k := range p.pending {
		sample := p.pending[k]
		if sample.At.After(r.now) {
			late = append(late, sample)
			continue
		}
		if p.mute {
			continue
		}
		x := r.targets[sample.UID]
		x.s.e.hearProbe(x.i, &sample)
		if sample.Result != ProbeOK {
			x.fullUntil = r.now.Add(15 * time.Second)
		}
	}
	p.pending = late
}

// judge is R5 and the brake, as far as observers are concerned.
func (r *region) judge(s *watchedService, x *target) {
	got := x.i.probes.read(r.now, &x.i.terms.probes, r.stance, s.slow && !r.now.Before(x.fullUntil))
	got.over = got.over || got.alone && !r.stance.dead(x.i.row.Zone).IsZero() // as the evaluator does
	waits := !x.out && got.over && r.stance.brakes(x.i.row.Zone)
	s.e.noteWaiting(x.i, waits)
	switch {
	case got.over && !x.out && !waits:
		x.out = true
		s.e.noteWithdrawal(x.i)
	case got.good && r.now.Sub(got.goodSince) >= 15*time.Second:
		x.out = false
	}
}

func (r *region) sayOut() {
	by := make(map[string]int)
	for _, s := range r.services {
		for _, x := range s.targets {
			if x.out {
				by[x.i.row.Zone]++
			}
			if _, waits := s.e.tally.waiting[x.i.row.UID]; waits {
				by[x.i.row.Zone+" waiting"]++
			}
		}
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, by[k]))
	}
	if text := cmp.Or(strings.Join(parts, ", "), "nobody"); text != r.said && (text != "nobody" || r.said != "") {
		r.said = text
		fmt.Fprintf(&r.text, "%s out: %s\n", r.stamp(), text)
	}
}

func (r *region) stanceText() string {
	s := r.stance
	var parts []string
	list := func(word string, names []string) {
		if len(names) > 0 {
			parts = append(parts, word+" "+strings.Join(names, " "))
		}
	}
	list("blind", slices.Sorted(maps.Keys(s.Blind)))
	list("silenced", slices.Sorted(maps.Keys(s.Silenced)))
	list("dead", slices.Sorted(maps.Keys(s.Dead)))
	list("leaving", slices.Sorted(maps.Keys(s.Leaving)))
	if s.Braked {
		parts = append(parts, "braked")
	}
	list("released", slices.Sorted(maps.Keys(s.Released)))
	return cmp.Or(strings.Join(parts, "; "), "nobody is suspected")
}

func (r *region) stamp() string { return fmt.Sprintf("%7.2fs", r.now.Sub(epoch).Seconds()) }

// The rows beside the instances count what the instances say, and the
// observers' sums are those of the newest tallies, whatever came before.
func TestTalliesAreExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := NewObservers()
		now := epoch
		probers := []Prober{{"a", "z1"}, {"b", "z2"}, {"c", "z2"}}
		var all []*Evaluator
		for k := range 2 {
			e := New(registry.Name{Namespace: "shop", Service: fmt.Sprintf("svc%d", k)}, now, Memory{})
			e.Load(fleet(rapid.IntRange(1, 6).Draw(rt, "instances"), 0, registry.ClassSet(0).With(registry.ClassProbe)))
			all = append(all, e)
		}
		for range rapid.IntRange(1, 60).Draw(rt, "ticks") {
			now = now.Add(time.Duration(rapid.IntRange(1, 12).Draw(rt, "quarters")) * tick)
			e := rapid.SampledFrom(all).Draw(rt, "service")
			for _, i := range e.sorted() {
				switch what := rapid.IntRange(0, 20).Draw(rt, "what"); {
				case what < 8:
					e.hearProbe(i, &Sample{UID: i.row.UID, At: now, Prober: rapid.SampledFrom(probers).Draw(rt, "prober"),
						Result: rapid.SampledFrom([]ProbeResult{ProbeOK, ProbeTimeout, ProbeRefused}).Draw(rt, "result")})
				case what == 20 && e.Len() > 1:
					e.remove(i.row.UID, registry.Deregistered, now)
				}
			}
			e.tally.turned = true
			tally := e.Tally(now)
			if got, want := cellsOf(tally), countedSlowly(e, now); !maps.Equal(got, want) {
				rt.Fatalf("rows say\n%+v\ninstances say\n%+v", got, want)
			}
			o.Take(now, []Tally{tally})
			if rapid.IntRange(0, 9).Draw(rt, "forget") == 0 {
				o.Forget(e.Name())
			}
			o.Judge(now)
			sums, want := make(map[ProbeCell]ProbeCount), make(map[ProbeCell]ProbeCount)
			for cell, s := range o.sights {
				if s.n != (ProbeCount{}) {
					sums[cell] = s.n
				}
			}
			for _, s := range o.services {
				for k, n := range s.probes {
					if n != (ProbeCount{}) {
						sum := want[s.cells[k]]
						sum.add(n, 1)
						want[s.cells[k]] = sum
					}
				}
			}
			if !maps.Equal(sums, want) {
				rt.Fatalf("the sums are\n%+v\nthe tallies are\n%+v", sums, want)
			}
		}
	})
}

func cellsOf(t Tally) map[ProbeCell]ProbeCount {
	all := make(map[ProbeCell]ProbeCount)
	for k, n := range t.Probes {
		if n.Targets > 0 {
			all[t.Cells[k]] = n
		}
	}
	return all
}

// countedSlowly counts what probers see from the instances.
func countedSlowly(e *Evaluator, now time.Time) map[ProbeCell]ProbeCount {
	all := make(map[ProbeCell]ProbeCount)
	for _, i := range e.sorted() {
		scores := i.probes.scores(now, &i.terms.probes, nil)
		for _, s := range scores {
			if !s.Live {
				continue
			}
			var n ProbeCount
			n.Targets = 1
			recent := now.Sub(s.Newest) <= recentSight
			if recent {
				n.Recent = 1
			}
			switch s.Result {
			case ProbeOK:
				n.Good = 1
			case ProbeTimeout:
				n.Failing = 1
				if recent {
					n.RecentFailing = 1
				}
				for _, other := range scores {
					if !other.Live || other.Prober.Zone == s.Prober.Zone {
						continue
					}
					if other.Result == ProbeOK && !other.Newest.Before(s.Newest.Add(-i.terms.probes.timeout)) {
						n.Contested, n.Agreed = 1, 0
						break
					}
					if other.Result == ProbeTimeout {
						n.Agreed = 1
					}
				}
			}
			cell := ProbeCell{Prober: s.Prober, Zone: i.row.Zone}
			sum := all[cell]
			sum.add(n, 1)
			all[cell] = sum
		}
	}
	return all
}
