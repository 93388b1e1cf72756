package health

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sightlinedev/sightline/registry"
)

// TestScenarios runs the timelines of testdata. Commands:
//
//	add|load i1-i3 [zone=] [lease=] [supplies=self,probe] [weight=] [unproved] [draining]
//	contract [silence=ineligible] [hold=20s] [ramp=none|2m] [deps=db:shared,cache:unready,log:info,disk:reduce:30] [zone=z1]
//	keep renew|SERVING|NOT_SERVING|DRAINING i1-i3 every=8s [degraded=db]   goes on until stopped
//	stop renew|self|probe|calls i1-i3|p1|r1-r3
//	say NOT_SERVING i1 [age=2s]
//	probers p1@z1 p2@z2 [third=p3@z3]   each probes every 2 s, or as it is told
//	probe i1-i3 FAILED [by=p1]          how probes end from now on; OK at first
//	callers r1-r5 rate=20 [kind=library|envoy|grpc]  each calls the listed members, so
//	        often a second at one of them on average, in relation to their weights
//	errors i1-i3 40% [by=r1-r2] [refused]   share of the calls there that fail; 0%: none
//	stance [braked] [released=z1] [dead=z1] [blind=p1] [sees=p1]   the observers' word
//	release i1       an operator ends a quarantine
//	lift i1          the guard lists it in spite of its quarantine
//	remove i1 deregistered|list|operator
//	run 30s          ticks of 250 ms, printing what changes
//	freeze 30s       no tick: an own gap
//	restart 10s [lost]   the server is away; then loads rows and checkpoint
//	show             the verdicts
//	weights          the members with their weights
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		s := newScenario()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			for _, line := range strings.Split(strings.TrimSpace(d.Cmd+" "+argLine(d)+"\n"+d.Input), "\n") {
				if err := s.command(strings.Fields(line)); err != nil {
					d.Fatalf(t, "%q: %v", line, err)
				}
			}
			return s.out.String()
		})
	})
}

func argLine(d *datadriven.TestData) string {
	var parts []string
	for _, a := range d.CmdArgs {
		part := a.Key
		if len(a.Vals) > 0 {
			part += "=" + strings.Join(a.Vals, ",")
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, " ")
}

const tick = 250 * time.Millisecond

type activity struct {
	what     string // renew, or a self status
	uid      registry.UID
	every    time.Duration
	next     time.Time
	degraded []string
}

type scenario struct {
	e          *Evaluator
	epoch, now time.Time
	tick       time.Duration
	each       func(Judgement) // sees every judgement, where it is set
	rows       map[registry.UID]registry.InstanceChange
	contract   registry.Contract
	activities []*activity
	probers    []*probing
	callers    []*callingPart
	waits      map[registry.UID]Wait
	out        strings.Builder
}

var scenarioName = registry.Name{Namespace: "shop", Service: "checkout"}

func newScenario() *scenario {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := &scenario{
		epoch: epoch, now: epoch, tick: tick, rows: make(map[registry.UID]registry.InstanceChange), waits: make(map[registry.UID]Wait),
	}
	s.e = New(scenarioName, epoch, Memory{})
	return s
}

func (s *scenario) command(f []string) error {
	switch f[0] {
	case "add", "load":
		return s.add(f[0] == "load", f[1:])
	case "contract":
		return s.setContract(f[1:])
	case "keep":
		every, err := time.ParseDuration(strings.TrimPrefix(f[3], "every="))
		for k, uid := range uids(f[2]) {
			// Staggered, as independent processes are.
			phase := every * time.Duration(k) / time.Duration(len(uids(f[2])))
			s.stop(f[1], uid)
			s.activities = append(s.activities, &activity{f[1], uid, every, s.now.Add(phase), degradedOf(f[4:])})
		}
		return err
	case "stop":
		s.stopAll(f[1], f[2])
	case "probers":
		s.setProbers(f[1:])
	case "probe":
		s.setResult(f[1:])
	case "callers":
		return s.setCallers(f[1:])
	case "errors":
		return s.setErrors(f[1:])
	case "stance":
		s.e.Stand(s.now, parseStance(f[1:], s.now))
	case "release":
		fmt.Fprintf(&s.out, "%s released: %v\n", s.stamp(s.now), s.e.ReleaseQuarantine(s.now, uids(f[1])[0]))
	case "lift":
		s.e.LiftQuarantine(s.now, uids(f[1])[0])
	case "weights":
		s.showWeights()
	case "say":
		return s.say(f[1:])
	case "remove":
		return s.remove(f[1:])
	case "run", "freeze":
		d, err := time.ParseDuration(f[1])
		if f[0] == "run" {
			s.run(d)
		} else {
			s.now = s.now.Add(d)
			s.skip()
			s.e.Gap(s.now)
			s.judge()
		}
		return err
	case "restart":
		return s.restart(f[1:])
	case "show":
		s.show()
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

// uids reads i1-i3,i7.
func uids(list string) []registry.UID {
	var all []registry.UID
	for _, part := range strings.Split(list, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		a, err1 := registry.ParseUID(from)
		b, err2 := registry.ParseUID(to)
		if err1 != nil || err2 != nil {
			panic("bad instance list " + list)
		}
		for u := a; u <= b; u++ {
			all = append(all, u)
		}
	}
	return all
}

func (s *scenario) add(load bool, f []string) error {
	row := registry.Instance{Service: scenarioName, Proof: registry.ByAuthority}
	var supplies registry.ClassSet
	for _, arg := range f[1:] {
		key, val, _ := strings.Cut(arg, "=")
		var err error
		switch key {
		case "zone":
			row.Zone = val
		case "lease":
			row.Lease, err = time.ParseDuration(val)
		case "weight":
			var w uint64
			w, err = strconv.ParseUint(val, 10, 32)
			row.Weight = uint32(w)
		case "unproved":
			row.Proof = registry.Unproved
		case "draining":
			row.Draining = true
		case "supplies":
			supplies = parseClasses(val)
		default:
			err = fmt.Errorf("unknown argument %s", key)
		}
		if err != nil {
			return err
		}
	}
	c := s.change()
	for _, uid := range uids(f[0]) {
		r := row
		r.UID = uid
		ic := registry.InstanceChange{UID: uid, Row: &r, Profile: registry.Profile{Supplies: supplies}}
		s.rows[uid] = ic
		c.Instances = append(c.Instances, ic)
	}
	if load {
		s.e.Load(c)
		s.judge()
	} else {
		s.e.Apply(s.now, c)
	}
	return nil
}

func parseClasses(list string) (set registry.ClassSet) {
	for _, c := range classes {
		if slices.Contains(strings.Split(list, ","), className(c)) {
			set = set.With(c)
		}
	}
	return set
}

func (s *scenario) change() registry.Change {
	return registry.Change{Name: scenarioName, Service: &registry.Service{Name: scenarioName}, Contract: s.contract}
}

func (s *scenario) setContract(f []string) error {
	zone := ""
	for _, arg := range f {
		key, val, _ := strings.Cut(arg, "=")
		var err error
		switch key {
		case "silence":
			s.contract.Silence = registry.SilenceUnknown
			if val == "ineligible" {
				s.contract.Silence = registry.SilenceIneligible
			}
		case "hold":
			s.contract.ReturnHold, err = time.ParseDuration(val)
		case "ramp":
			if s.contract.NoRamp = val == "none"; !s.contract.NoRamp {
				s.contract.Ramp, err = time.ParseDuration(val)
			}
		case "deps":
			s.contract.Dependencies, err = parseDependencies(val)
		case "zone":
			zone = val
		default:
			err = fmt.Errorf("unknown field %s", key)
		}
		if err != nil {
			return err
		}
	}
	s.e.SetContract(s.now, s.contract, zone)
	return nil
}

func (s *scenario) stop(what string, uid registry.UID) {
	s.activities = slices.DeleteFunc(s.activities, func(a *activity) bool {
		return a.uid == uid && (a.what == "renew") == (what == "renew")
	})
}

func (s *scenario) say(f []string) error {
	var age time.Duration
	if len(f) > 2 {
		var err error
		if age, err = time.ParseDuration(strings.TrimPrefix(f[2], "age=")); err != nil {
			return err
		}
	}
	for _, uid := range uids(f[1]) {
		if refused := s.observe(&activity{what: f[0], uid: uid}, s.now.Add(-age)); refused > 0 {
			fmt.Fprintf(&s.out, "%s %s refused\n", s.stamp(s.now), uid)
		}
	}
	return nil
}

func (s *scenario) observe(a *activity, at time.Time) int {
	_, refused := s.e.Observe(s.now, []Sample{{
		UID: a.uid, Class: registry.ClassSelf, At: at, Status: SelfStatus(slices.Index(selfStatusNames[:], a.what)),
		Degraded: a.degraded,
	}})
	return refused
}

func (s *scenario) remove(f []string) error {
	why := map[string]registry.Removal{
		"deregistered": registry.Deregistered, "list": registry.RemovedByList,
		"operator": registry.RemovedByOperator, "lapsed": registry.LapsedOut,
	}[f[1]]
	c := s.change()
	for _, uid := range uids(f[0]) {
		delete(s.rows, uid)
		s.stop("renew", uid)
		s.stop("self", uid)
		c.Instances = append(c.Instances, registry.InstanceChange{UID: uid, Removal: why})
	}
	s.e.Apply(s.now, c)
	s.judge()
	return nil
}

func (s *scenario) run(d time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(s.tick)
		for _, a := range s.activities {
			for ; !a.next.After(s.now); a.next = a.next.Add(a.every) {
				if a.what == "renew" {
					s.e.Renew(a.next, a.uid)
				} else {
					s.observe(a, a.next)
				}
			}
		}
		s.probeAll()
		s.callAll()
		s.judge()
	}
}

// restart is the server away for a while; the instances go on.
func (s *scenario) restart(f []string) error {
	d, err := time.ParseDuration(f[0])
	if err != nil {
		return err
	}
	memory, err := ReadMemory(s.e.Checkpoint(s.now))
	if err != nil {
		return err
	}
	if len(f) > 1 {
		memory = Memory{}
	}
	s.now = s.now.Add(d)
	s.e = New(scenarioName, s.now, memory)
	c := s.change()
	for _, ic := range s.rows {
		c.Instances = append(c.Instances, ic)
	}
	s.e.Load(c)
	for _, p := range s.probers {
		clear(p.told) // the contract's cadence, until it is said otherwise
	}
	s.skip()
	s.judge()
	return nil
}

// skip loses what was sent while nobody listened.
func (s *scenario) skip() {
	for _, a := range s.activities {
		for a.next.Before(s.now) {
			a.next = a.next.Add(a.every)
		}
	}
}

func (s *scenario) judge() {
	o := s.e.Judge(s.now)
	if s.each != nil {
		s.each(o)
	}
	for _, tr := range o.Transitions {
		what := ""
		switch {
		case tr.Removal != registry.NotRemoved:
			what = " gone"
		case !tr.Member:
			what = " unadmitted"
		}
		if tr.Draining {
			what += " draining"
		}
		fmt.Fprintf(&s.out, "%s %s %s -> %s%s by %s: %s\n", s.stamp(s.now), tr.UID, tr.From, tr.To, what, tr.Rule, tr.Detail)
	}
	for _, in := range o.Incidents {
		fmt.Fprintf(&s.out, "%s incident %s: %s\n", s.stamp(s.now), in.Kind, in.Detail)
	}
	for _, v := range o.Changed {
		if v.Waits != s.waits[v.UID] {
			s.waits[v.UID] = v.Waits
			fmt.Fprintf(&s.out, "%s %s waits [%s]: %s\n", s.stamp(s.now), v.UID, v.Waits, v.Detail)
		}
	}
	for _, p := range o.Probing {
		s.follow(p)
	}
	if len(o.AgedOut) > 0 {
		fmt.Fprintf(&s.out, "%s aged out: %v\n", s.stamp(s.now), o.AgedOut)
	}
}

func (s *scenario) stamp(t time.Time) string {
	return fmt.Sprintf("%7.2fs", t.Sub(s.epoch).Seconds())
}

func (s *scenario) show() {
	for _, v := range s.e.Verdicts() {
		flags := ""
		for _, f := range []struct {
			on   bool
			name string
		}{
			{!v.Member, "unadmitted"}, {v.Draining, "draining"}, {v.Confirmed, "confirmed"},
			{v.DeadZone, "in a dead zone"}, {v.Quarantined, fmt.Sprintf("quarantined after %d changes", v.Flaps)},
			{v.RampHeld, "held"},
		} {
			if f.on {
				flags += " " + f.name
			}
		}
		if v.OutBy != NoRule {
			flags += " out by " + v.OutBy.String()
		}
		if v.Primary != 0 {
			flags += " by " + classNames(v.Primary)
		}
		fmt.Fprintf(&s.out, "%s %s%s weight %d, %s, fresh [%s] of [%s], since %s: %s\n", v.UID, v.State, flags, v.Weight,
			v.Rule, classNames(v.Fresh), classNames(v.Supplied), strings.TrimSpace(s.stamp(v.Since)), v.Detail)
	}
}
