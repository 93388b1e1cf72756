package health

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

// probing is one prober: whom it probes when, and how that ends.
type probing struct {
	who     Prober
	third   bool // only where a third is asked for
	next    map[registry.UID]time.Time
	results map[registry.UID]ProbeResult
	told    map[registry.UID]Probing
}

// callingPart is one reporter: what it has called since its last report.
type callingPart struct {
	name   string
	who    Reporter
	kind   ReporterKind
	rate   float64 // calls a second and listed member
	next   time.Time
	errors map[registry.UID]failing
	counts map[registry.UID]*counting
}

type failing struct {
	share   float64
	refused bool
}

// counting carries fractions of calls over, so that nothing is left to chance.
type counting struct{ calls, failed float64 }

const (
	probeEvery  = 2 * time.Second
	reportEvery = 2 * time.Second
)

func degradedOf(f []string) []string {
	if len(f) == 0 {
		return nil
	}
	return strings.Split(strings.TrimPrefix(f[0], "degraded="), ",")
}

// stopAll ends what is kept up.
func (s *scenario) stopAll(what, who string) {
	switch what {
	case "probe":
		s.probers = slices.DeleteFunc(s.probers, func(p *probing) bool { return slices.Contains(names(who), p.who.Name) })
	case "calls":
		s.callers = slices.DeleteFunc(s.callers, func(c *callingPart) bool { return slices.Contains(names(who), c.name) })
	default:
		for _, uid := range uids(who) {
			s.stop(what, uid)
		}
	}
}

// names reads r1-r3,r7.
func names(list string) (all []string) {
	for _, part := range strings.Split(list, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			all = append(all, from)
			continue
		}
		a, err1 := strconv.Atoi(from[1:])
		b, err2 := strconv.Atoi(to[1:])
		if err1 != nil || err2 != nil {
			panic("bad list " + list)
		}
		for n := a; n <= b; n++ {
			all = append(all, from[:1]+strconv.Itoa(n))
		}
	}
	return all
}

func (s *scenario) setProbers(f []string) {
	for _, arg := range f {
		arg, third := strings.CutPrefix(arg, "third=")
		name, zone, _ := strings.Cut(arg, "@")
		s.probers = append(s.probers, &probing{
			who: Prober{Name: name, Zone: zone}, third: third, next: make(map[registry.UID]time.Time),
			results: make(map[registry.UID]ProbeResult), told: make(map[registry.UID]Probing),
		})
	}
}

func (s *scenario) setResult(f []string) {
	result := ProbeResult(slices.Index(probeResultNames[:], f[1]))
	if result <= NoResult {
		panic("no probe result " + f[1])
	}
	for _, p := range s.probers {
		if len(f) > 2 && !slices.Contains(names(strings.TrimPrefix(f[2], "by=")), p.who.Name) {
			continue
		}
		for _, uid := range uids(f[0]) {
			p.results[uid] = result
		}
	}
}

// follow takes how an instance is to be probed.
func (s *scenario) follow(o Probing) {
	text := "as its contract says"
	switch {
	case o.Gone:
		text = "no more"
	case o.Confirming && o.Third:
		text = "to confirm, by a third"
	case o.Confirming:
		text = "to confirm"
	case o.Third:
		text = "by a third"
	}
	fmt.Fprintf(&s.out, "%s %s is probed %s\n", s.stamp(s.now), o.UID, text)
	for _, p := range s.probers {
		if p.told[o.UID] = o; !o.Confirming && !o.Gone && p.next[o.UID].After(s.now) {
			p.next[o.UID] = s.now.Add(tick)
		}
	}
}

// probeAll sends the results that are due; probers are apart from each other.
func (s *scenario) probeAll() {
	for k, p := range s.probers {
		for uid := range s.rows {
			if s.rows[uid].Profile.Supplies.Has(registry.ClassProbe) && (!p.third || p.told[uid].Third) {
				s.probe(p, uid, time.Duration(k+int(uid))*tick%probeEvery)
			}
		}
	}
}

func (s *scenario) probe(p *probing, uid registry.UID, phase time.Duration) {
	next, known := p.next[uid]
	if !known {
		next = s.now.Add(phase)
	}
	for ; !next.After(s.now); next = next.Add(p.every(uid)) {
		result := p.results[uid]
		if result == NoResult {
			result = ProbeOK
		}
		s.e.Observe(s.now, []Sample{{UID: uid, Class: registry.ClassProbe, At: next, Prober: p.who, Result: result}})
	}
	p.next[uid] = next
}

func (p *probing) every(uid registry.UID) time.Duration {
	if p.told[uid].Confirming {
		return confirmCadence
	}
	return probeEvery
}

func (s *scenario) setCallers(f []string) error {
	rate, kind := 0.0, FromLibrary
	for _, arg := range f[1:] {
		key, val, _ := strings.Cut(arg, "=")
		var err error
		switch key {
		case "rate":
			rate, err = strconv.ParseFloat(val, 64)
		case "kind":
			kind = map[string]ReporterKind{"library": FromLibrary, "envoy": FromEnvoy, "grpc": FromGRPC}[val]
		default:
			err = fmt.Errorf("unknown argument %s", key)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range names(f[0]) {
		n := len(s.callers)
		s.callers = append(s.callers, &callingPart{
			name: name, kind: kind, rate: rate,
			who: Reporter{
				Identity: identity.MustParse("spiffe://shop.example/ns/web/sa/" + name),
				Addr:     netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}),
			},
			next:   s.now.Add(time.Duration(n%8+1) * tick),
			errors: make(map[registry.UID]failing), counts: make(map[registry.UID]*counting),
		})
	}
	return nil
}

func (s *scenario) setErrors(f []string) error {
	percent, err := strconv.ParseFloat(strings.TrimSuffix(f[1], "%"), 64)
	if err != nil {
		return err
	}
	var by []string
	refused := false
	for _, arg := range f[2:] {
		if list, ok := strings.CutPrefix(arg, "by="); ok {
			by = names(list)
		} else {
			refused = arg == "refused"
		}
	}
	for _, c := range s.callers {
		if by == nil || slices.Contains(by, c.name) {
			for _, uid := range uids(f[0]) {
				c.errors[uid] = failing{percent / 100, refused}
			}
		}
	}
	return nil
}

// listed is whom callers are given, with the sum of the weights: the serving
// members, and where there are none all members.
func (s *scenario) listed() (set []Verdict, sum float64) {
	all := s.e.Verdicts()
	set = slices.DeleteFunc(slices.Clone(all), func(v Verdict) bool {
		return !v.Member || v.Draining || !v.State.Serving() || v.Quarantined
	})
	if len(set) == 0 {
		set = slices.DeleteFunc(all, func(v Verdict) bool { return !v.Member })
	}
	for _, v := range set {
		sum += float64(v.Weight)
	}
	return set, sum
}

// callAll lets every caller call for the length of a tick, and report when its
// time has come.
func (s *scenario) callAll() {
	if len(s.callers) == 0 {
		return
	}
	set, sum := s.listed()
	for _, c := range s.callers {
		for _, v := range set {
			n := c.counts[v.UID]
			if n == nil {
				n = &counting{}
				c.counts[v.UID] = n
			}
			n.calls += c.rate * float64(len(set)) * s.tick.Seconds() * float64(v.Weight) / sum
		}
		if !c.next.After(s.now) {
			s.report(c)
			c.next = c.next.Add(reportEvery)
		}
	}
}

func (s *scenario) report(c *callingPart) {
	o := Outcomes{Reporter: c.who, Kind: c.kind, At: s.now, Interval: reportEvery}
	for uid, n := range c.counts {
		calls := uint32(n.calls)
		n.calls -= float64(calls)
		n.failed += float64(calls) * c.errors[uid].share
		failed := uint32(n.failed)
		n.failed -= float64(failed)
		if calls == 0 {
			continue
		}
		out := Outcome{UID: uid, Issued: calls, OK: calls - failed, Failed: failed}
		if c.errors[uid].refused {
			out.Refused = failed
		}
		o.Entries = append(o.Entries, out)
	}
	slices.SortFunc(o.Entries, func(a, b Outcome) int { return int(a.UID) - int(b.UID) })
	s.e.ObserveOutcomes(s.now, &o)
}

func (s *scenario) showWeights() {
	fmt.Fprintf(&s.out, "%s", s.stamp(s.now))
	for _, v := range s.e.Verdicts() {
		if !v.Member {
			continue
		}
		mark := ""
		switch {
		case !v.State.Serving() || v.Quarantined:
			mark = " out"
		case v.RampHeld:
			mark = " held"
		}
		fmt.Fprintf(&s.out, " %s %d%s,", v.UID, v.Weight, mark)
	}
	fmt.Fprintln(&s.out)
}

func parseStance(f []string, now time.Time) *Stance {
	s := &Stance{Blind: map[string]bool{}, Silenced: map[string]time.Time{}, Dead: map[string]time.Time{}, Released: map[string]bool{}}
	for _, arg := range f {
		switch key, val, _ := strings.Cut(arg, "="); key {
		case "braked":
			s.Braked, s.BrakedSince = true, now
		case "released":
			s.Released[val] = true
		case "dead":
			s.Dead[val] = now
		case "blind":
			s.Blind[val] = true
		case "sees":
			s.Silenced[val] = now
		}
	}
	return s
}

// parseDependencies reads db:shared,cache:unready,log:info,disk:reduce:30.
func parseDependencies(list string) (all []registry.Dependency, err error) {
	for _, part := range strings.Split(list, ",") {
		f := strings.Split(part, ":")
		d := registry.Dependency{Name: f[0]}
		for _, word := range f[1:] {
			switch word {
			case "shared":
				d.Shared = true
			case "unready":
				d.Authority = registry.Unreadiness
			case "info":
				d.Authority = registry.Informational
			case "reduce":
				d.Authority = registry.ReduceWeight
			default:
				n, err := strconv.ParseUint(word, 10, 32)
				if err != nil {
					return nil, err
				}
				d.Weight = uint32(n)
			}
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b registry.Dependency) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}
