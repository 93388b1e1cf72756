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

	"github.com/sightlinedev/sightline/registry"
)

// TestObservers runs the timelines of testdata/observers: a region of simulated
// instances and probers, whose results go through the evaluators' tallies to the
// observers. Each prober reports every 2 s what it found; a time-out is known a
// second after the probe. Whoever is over the line is withdrawn, unless the
// stance brakes it. Commands:
//
//	region zones=z1,z2,z3 services=2 each=4 [probers=1] [slow=1]
//	        each: instances of a service in a zone; probers: in a zone; slow:
//	        so many services are probed at the confirmation cadence
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
	i         *instance
	out       bool
	fullUntil time.Time
	next      map[*simProber]time.Time
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
	n := map[string]int{"probers": 1}
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
	uid := registry.UID(1)
	for s := range n["services"] {
		svc := &watchedService{name: fmt.Sprintf("svc%d", s+1), slow: s < n["slow"]}
		name := registry.Name{Namespace: "shop", Service: svc.name}
		svc.e = New(name, r.now, Memory{})
		c := registry.Change{Name: name, Service: &registry.Service{Name: name}}
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
			svc.targets = append(svc.targets, r.assign(i, zones))
		}
		r.services = append(r.services, svc)
	}
	return nil
}

// assign gives an instance two probers of different zones, each with a phase.
func (r *region) assign(i *instance, zones []string) *target {
	x := &target{i: i, next: make(map[*simProber]time.Time)}
	u := int(i.row.UID)
	for k := range min(2, len(zones)) {
		var of []*simProber
		for _, p := range r.probers {
			if p.who.Zone == zones[(u/len(zones)+u+k)%len(zones)] {
				of = append(of, p)
			}
		}
		x.next[of[u%len(of)]] = r.now.Add(time.Duration((u*7+k*3)%8) * tick)
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
	for p, at := range x.next {
		full := !s.slow || r.now.Before(x.fullUntil)
		every := 10 * time.Second
		if full {
			every = 2 * time.Second
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
				found = at.Add(time.Second)
			}
			p.pending = append(p.pending, Sample{UID: x.i.row.UID, Class: registry.ClassProbe, At: found, Prober: p.who, Result: result})
		}
		x.next[p] = at
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
		for _, s := range r.services {
			for _, x := range s.targets {
				if x.i.row.UID == sample.UID {
					s.e.hearProbe(x.i, &sample)
					if sample.Result != ProbeOK {
						x.fullUntil = r.now.Add(15 * time.Second)
					}
				}
			}
		}
	}
	p.pending = late
}

// judge is R5 and the brake, as far as observers are concerned.
func (r *region) judge(s *watchedService, x *target) {
	got := x.i.probes.read(r.now, &x.i.terms.probes, r.stance, s.slow && !r.now.Before(x.fullUntil))
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
