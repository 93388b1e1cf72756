package health

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/registry"
)

const allClasses = registry.ClassSet(1<<registry.ClassProbe | 1<<registry.ClassSelf | 1<<registry.ClassCallers)

// witness is a service that is heard of for a while, with its recorded minutes.
type witness struct {
	e       *Evaluator
	now     time.Time
	minutes []Minute
	gone    map[registry.UID]Verdict // first withdrawal of each
	when    map[registry.UID]time.Time
}

func newWitness(n int) *witness {
	w := &witness{e: New(scenarioName, epoch, Memory{}), now: epoch, gone: map[registry.UID]Verdict{}, when: map[registry.UID]time.Time{}}
	w.e.Load(fleet(n, 0, allClasses))
	return w
}

// judge notes who is out for the first time.
func (w *witness) judge() {
	for _, v := range w.e.Judge(w.now).Changed {
		if _, known := w.gone[v.UID]; !known && v.State == Ineligible {
			w.gone[v.UID], w.when[v.UID] = v, w.now
		}
	}
}

// hear lets everybody speak every two seconds: two probers, the instances, and
// three callers of 20 calls each, of which fails says how many fail.
func (w *witness) hear(d time.Duration, fails func(uid registry.UID, now time.Time) uint32, probe func(uid registry.UID, now time.Time) ProbeResult) {
	n := registry.UID(w.e.Len())
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(2 * time.Second)
		var samples []Sample
		for uid := registry.UID(1); uid <= n; uid++ {
			samples = append(samples, selfSample(uid, Serving, w.now))
			for _, zone := range []string{"a", "b"} {
				samples = append(samples, Sample{UID: uid, Class: registry.ClassProbe, At: w.now, Prober: Prober{"p-" + zone, zone}, Result: probe(uid, w.now)})
			}
		}
		w.e.Observe(w.now, samples)
		for k := range byte(3) {
			o := Outcomes{Reporter: Reporter{Addr: netip.AddrFrom4([4]byte{10, 0, 0, k})}, Kind: FromEnvoy, At: w.now, Interval: 2 * time.Second}
			for uid := registry.UID(1); uid <= n; uid++ {
				f := fails(uid, w.now)
				o.Entries = append(o.Entries, Outcome{UID: uid, Issued: 20, OK: 20 - f, Failed: f})
			}
			w.e.ObserveOutcomes(w.now, &o)
		}
		w.judge()
		if w.now.Sub(epoch)%time.Minute == 0 {
			if m, ok := w.e.Minute(w.now); ok {
				w.minutes = append(w.minutes, m)
			}
		}
	}
}

func none(registry.UID, time.Time) uint32          { return 0 }
func probesOK(registry.UID, time.Time) ProbeResult { return ProbeOK }
func after(d time.Duration, now time.Time) bool    { return now.After(epoch.Add(d)) }
func readMinuteAgain(t *testing.T, m Minute) Minute {
	t.Helper()
	got, err := ReadMinute(m.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAMinuteHoldsWhatWasHeard(t *testing.T) {
	w := newWitness(2)
	w.hear(time.Minute, func(uid registry.UID, _ time.Time) uint32 { return uint32(uid) - 1 }, func(uid registry.UID, now time.Time) ProbeResult {
		if uid == 2 && after(40*time.Second, now) {
			return ProbeRefused
		}
		return ProbeOK
	})
	m := readMinuteAgain(t, w.minutes[0])
	if !m.Start.Equal(epoch) || m.Length != time.Minute || len(m.Reporters) != 3 || m.Reporters[0] != (ReporterGroup{FromEnvoy, 1}) ||
		!reflect.DeepEqual(m.Probers, []Prober{{"p-a", "a"}, {"p-b", "b"}}) || !reflect.DeepEqual(m.Zones, []string{"z1", "z2"}) {
		t.Errorf("minute %+v", m)
	}
	two := m.Instances[1]
	if two.UID != 2 || !two.Member || two.Supplies != allClasses || two.Zone != 1 || len(two.Probes) != 2 || len(two.Callers) != 3 {
		t.Fatalf("instance %+v", two)
	}
	if p := two.Probes[0]; p.Counts[ProbeOK] != 20 || p.Counts[ProbeRefused] != 10 || p.Newest != ProbeRefused || p.Turns != 1 || p.Span != (Span{2, 60}) {
		t.Errorf("probes %+v", p)
	}
	if s := two.Self; s.Newest != Serving || s.Counts[Serving] != 30 {
		t.Errorf("self %+v", s)
	}
	if c := two.Callers[1]; c.Samples != 600 || c.Failures != 30 {
		t.Errorf("callers %+v", c)
	}
	// The next minute begins anew, and says also that nothing was heard.
	next, ok := w.e.Minute(w.now.Add(time.Minute))
	quiet := InstanceMinute{UID: 1, Supplies: allClasses, State: Eligible, Member: true}
	if !ok || !next.Start.Equal(epoch.Add(time.Minute)) || len(next.Reporters) != 0 || !reflect.DeepEqual(next.Instances[0], quiet) {
		t.Errorf("a minute of silence: %+v", next)
	}
	if _, ok := New(scenarioName, epoch, Memory{}).Minute(epoch); ok {
		t.Error("a service of which nothing can be heard has a minute")
	}
}

// TestAMinuteIsBounded: however much is said, by however many.
func TestAMinuteIsBounded(t *testing.T) {
	e := New(scenarioName, epoch, Memory{})
	e.Load(fleet(1, 0, allClasses))
	now := epoch.Add(time.Second)
	for k := range 500 {
		s := selfSample(1, Serving, now)
		s.Degraded = []string{fmt.Sprintf("d%03d", k)}
		e.Observe(now, []Sample{s, {UID: 1, Class: registry.ClassProbe, At: now, Prober: Prober{fmt.Sprintf("p%d", k%9), "a"}, Result: ProbeOK}})
		e.ObserveOutcomes(now, &Outcomes{
			Reporter: Reporter{Addr: netip.AddrFrom4([4]byte{10, 0, byte(k >> 8), byte(k)})}, Kind: FromLibrary, At: now, Interval: 2 * time.Second,
			Entries: []Outcome{{UID: 1, Issued: 3, OK: 2, Failed: 1, Refused: 1}},
		})
	}
	m, _ := e.Minute(epoch.Add(time.Minute))
	m = readMinuteAgain(t, m)
	i := m.Instances[0]
	if i.Self.Counts[Serving] != 255 || len(m.Dependencies) != minuteDependencies || len(i.Probes) != minuteProbers {
		t.Errorf("instance %+v", i)
	}
	var samples, failures uint32
	for _, c := range i.Callers {
		samples, failures = samples+c.Samples, failures+c.Failures
	}
	if len(m.Reporters) != minuteGroups || samples != 1500 || failures != 500 || i.RefusedBy != maxTrackedReporters {
		t.Errorf("%d samples, %d failures of %+v, refused by %d", samples, failures, m.Reporters, i.RefusedBy)
	}
}

func genMinute(t *rapid.T) Minute {
	pick := func(name string, of int) int { return rapid.IntRange(0, of-1).Draw(t, name) }
	m := Minute{Start: time.Unix(1_800_000_000+int64(pick("start", 1e6)), 0).UTC(), Length: time.Duration(1+pick("length", 90)) * time.Second}
	for k := range 1 + pick("zones", 3) {
		m.Zones = append(m.Zones, fmt.Sprintf("z%d", k))
	}
	for k := range 1 + pick("probers", 4) {
		m.Probers = append(m.Probers, Prober{fmt.Sprintf("p%d", k), "a"})
	}
	for k := range pick("dependencies", 3) {
		m.Dependencies = append(m.Dependencies, fmt.Sprintf("d%d", k))
	}
	for range 1 + pick("groups", minuteGroups) {
		m.Reporters = append(m.Reporters, ReporterGroup{ReporterKind(pick("kind", 3)), 1 + pick("reporters", 9)})
	}
	uid := registry.UID(0)
	for range pick("instances", 5) {
		uid += registry.UID(1 + pick("gap", 1000))
		i := InstanceMinute{UID: uid, Zone: pick("zone", len(m.Zones)), Supplies: registry.ClassSet(pick("supplies", 8)),
			State: State(pick("state", 4)), Member: pick("member", 2) == 0, Draining: pick("draining", 2) == 0, RefusedBy: pick("refused", 3)}
		for k := range m.Probers {
			if pick("probed", 2) == 0 {
				p := ProbeMinute{Prober: k, Span: genSpan(t, &m), Newest: ProbeResult(1 + pick("result", 6)), Turns: uint8(pick("turns", 9))}
				for r := range p.Counts[1:] {
					p.Counts[1+r] = uint8(max(0, pick("count", 40)-20))
				}
				p.Counts[p.Newest]++
				i.Probes = append(i.Probes, p)
			}
		}
		if pick("spoke", 2) == 0 {
			s := &i.Self
			s.Span, s.Newest, s.Interval = genSpan(t, &m), SelfStatus(1+pick("status", 3)), time.Duration(pick("interval", 10))*time.Second
			s.Counts[s.Newest], s.Degraded = uint8(1+pick("words", 30)), uint8(pick("degraded", 1<<len(m.Dependencies)))
		}
		for g := range m.Reporters {
			if pick("called", 2) == 0 {
				c := CallerMinute{Group: g, Samples: uint32(1 + pick("samples", 5000))}
				c.Failures = uint32(pick("failures", int(c.Samples)+1))
				i.Callers = append(i.Callers, c)
			}
		}
		m.Instances = append(m.Instances, i)
	}
	return m
}

func genSpan(t *rapid.T, m *Minute) Span {
	last := rapid.IntRange(0, int(m.Length/time.Second)).Draw(t, "last")
	return Span{uint8(rapid.IntRange(0, last).Draw(t, "first")), uint8(last)}
}

func TestMinutesComeBackAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := genMinute(t)
		b := m.Append(nil)
		got, err := ReadMinute(b)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%v\n got %+v\nwant %+v", err, got, m)
		}
		if _, err := ReadMinute(b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")]); err == nil {
			t.Fatal("a minute that is cut short is read")
		}
	})
}

func FuzzReadMinute(f *testing.F) {
	w := newWitness(3)
	w.hear(2*time.Minute, none, probesOK)
	for _, m := range w.minutes {
		f.Add(m.Append(nil))
	}
	f.Add([]byte{minuteFormat})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ReadMinute(b)
		if err != nil {
			return
		}
		again, err := ReadMinute(m.Append(nil))
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%v\n read %+v\nagain %+v", err, m, again)
		}
		if len(m.Instances) < 100 && m.Length < 2*time.Minute {
			m.Replay(func(time.Time, []Sample, []Outcomes) {})
		}
	})
}

// TestAReplayHoldsTheSame: what is replayed adds up to what was recorded, in
// ascending steps, no sample of which lies ahead.
func TestAReplayHoldsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := genMinute(t)
		probes := map[string]int{}
		calls := map[registry.UID][2]uint32{}
		last := m.Start
		m.Replay(func(now time.Time, samples []Sample, outcomes []Outcomes) {
			if !now.After(last) || now.After(m.Start.Add(m.Length)) {
				t.Fatalf("step at %v after %v", now, last)
			}
			last = now
			for _, s := range samples {
				if s.At.After(now) || s.At.Before(m.Start) {
					t.Fatalf("sample of %v at %v", s.At, now)
				}
				probes[fmt.Sprint(s.UID, s.Class, s.Prober.Name, s.Result, s.Status)]++
			}
			for _, o := range outcomes {
				for _, e := range o.Entries {
					c := calls[e.UID]
					calls[e.UID] = [2]uint32{c[0] + e.Issued, c[1] + e.Failed}
					if e.OK+e.Failed != e.Issued || e.Refused > e.Failed {
						t.Fatalf("entry %+v", e)
					}
				}
			}
		})
		if !last.Equal(m.Start.Add(m.Length)) {
			t.Fatalf("the last step was at %v", last)
		}
		for _, i := range m.Instances {
			var want [2]uint32
			for _, c := range i.Callers {
				want[0], want[1] = want[0]+c.Samples, want[1]+c.Failures
			}
			if calls[i.UID] != want {
				t.Fatalf("calls to %v: %v, want %v", i.UID, calls[i.UID], want)
			}
			for _, p := range i.Probes {
				for r, n := range p.Counts {
					if got := probes[fmt.Sprint(i.UID, registry.ClassProbe, m.Probers[p.Prober].Name, ProbeResult(r), NoStatus)]; got != int(n) {
						t.Fatalf("probes of %v: %d with %v, want %d", i.UID, got, ProbeResult(r), n)
					}
				}
			}
			for s, n := range i.Self.Counts {
				if got := probes[fmt.Sprint(i.UID, registry.ClassSelf, "", NoResult, SelfStatus(s))]; got != int(n) {
					t.Fatalf("words of %v: %d with %v, want %d", i.UID, got, SelfStatus(s), n)
				}
			}
		}
	})
}

// TestAReplayJudgesAlike: the minutes of a fault, replayed, lead to the same
// withdrawal by the same rule within a minute, and those of a healthy fleet to none.
func TestAReplayJudgesAlike(t *testing.T) {
	grey := func(uid registry.UID, now time.Time) uint32 {
		if uid == 2 && after(3*time.Minute+10*time.Second, now) {
			return 9
		}
		return 0
	}
	probeDown := func(uid registry.UID, now time.Time) ProbeResult {
		if uid == 3 && after(4*time.Minute+30*time.Second, now) {
			return ProbeTimeout
		}
		return ProbeOK
	}
	for name, test := range map[string]struct {
		fails func(registry.UID, time.Time) uint32
		probe func(registry.UID, time.Time) ProbeResult
		out   map[registry.UID]Rule
	}{
		"healthy": {none, probesOK, nil},
		"grey":    {grey, probesOK, map[registry.UID]Rule{2: R4}},
		"one prober's word is softened by callers": {none, probeDown, nil},
	} {
		t.Run(name, func(t *testing.T) {
			live := newWitness(4)
			live.hear(6*time.Minute, test.fails, test.probe)
			again := newWitness(4)
			for _, m := range live.minutes {
				m.Replay(func(now time.Time, samples []Sample, outcomes []Outcomes) {
					again.now = now
					again.e.Observe(now, samples)
					for k := range outcomes {
						again.e.ObserveOutcomes(now, &outcomes[k])
					}
					again.judge()
				})
			}
			for _, w := range []*witness{live, again} {
				if len(w.gone) != len(test.out) {
					t.Errorf("out: %+v", w.gone)
				}
				for uid, rule := range test.out {
					if v := w.gone[uid]; v.Rule != rule {
						t.Errorf("%v is out by %v", uid, v.Rule)
					}
				}
			}
			for uid, at := range live.when {
				if d := again.when[uid].Sub(at).Abs(); d > time.Minute {
					t.Errorf("%v: out at %v, in the replay at %v", uid, at, again.when[uid])
				}
			}
		})
	}
}

// TestAShadowIsJudgedByItsContract: it starts from the same verdicts, and goes
// its own way on the same evidence.
func TestAShadowIsJudgedByItsContract(t *testing.T) {
	w := newWitness(4)
	w.hear(2*time.Minute, none, probesOK)
	draft := registry.Contract{ProbeOut: 0.05, ProbeIn: 0.02}
	draft.Silence = registry.SilenceIneligible
	shadow := w.e.Shadow(w.now, draft)
	if got := shadow.Rows(); !reflect.DeepEqual(got, w.e.Rows()) || len(got) != 4 {
		t.Errorf("rows %+v", got)
	}
	shadow.Judge(w.now)
	for _, v := range shadow.Verdicts() {
		if v.State != Eligible || !v.Member {
			t.Errorf("at its start: %+v", v)
		}
	}
	now := w.now.Add(time.Minute) // nothing is heard
	w.e.Judge(now)
	shadow.Judge(now)
	for k, v := range shadow.Verdicts() {
		if live := w.e.Verdicts()[k]; v.State != Ineligible || live.State != Unknown {
			t.Errorf("after a minute of silence: %+v, live %+v", v, live)
		}
	}
}

// TestASequenceTurnsAsOften: what was counted comes back, with the newest last,
// and as many turns as there were.
func TestASequenceTurnsAsOften(t *testing.T) {
	isOK := func(v int) bool { return v == int(ProbeOK) }
	rapid.Check(t, func(t *rapid.T) {
		heard := rapid.SliceOfN(rapid.IntRange(int(ProbeOK), int(ProbeTimeout)), 1, 30).Draw(t, "heard")
		var counts [ProbeWrongIdentity + 1]uint8
		turns := func(values []int) (n int) {
			for k := 1; k < len(values); k++ {
				if isOK(values[k]) != isOK(values[k-1]) {
					n++
				}
			}
			return n
		}
		for _, v := range heard {
			counts[v]++
		}
		newest := heard[len(heard)-1]
		got := sequence(counts[:], newest, isOK, turns(heard))
		var again [ProbeWrongIdentity + 1]uint8
		for _, v := range got {
			again[v]++
		}
		if again != counts || got[len(got)-1] != newest || turns(got) != turns(heard) {
			t.Fatalf("heard %v, replayed %v", heard, got)
		}
	})
	if got := sequence([]uint8{0, 4, 0, 2}, 1, isOK, 4); fmt.Sprint(got) != "[1 3 1 3 1 1]" {
		t.Errorf("%v", got)
	}
}

// TestCallersLinesHoldByZone: a stricter line judges the zone that has it.
func TestCallersLinesHoldByZone(t *testing.T) {
	w := newWitness(8)
	seven := func(uid registry.UID, _ time.Time) uint32 {
		if uid == 3 || uid == 4 { // zones z0 and z1
			return 7
		}
		return 0
	}
	lax := registry.Contract{CallersOut: 0.9, CallersIn: 0.4}
	w.e.SetContract(w.now, lax, "")
	w.hear(2*time.Minute, seven, probesOK)
	if len(w.gone) != 0 {
		t.Fatalf("out by a line of 90 %%: %+v", w.gone)
	}
	w.e.SetContract(w.now, registry.Contract{}, "z0")
	w.hear(30*time.Second, seven, probesOK)
	if w.gone[3].Rule != R4 || len(w.gone) != 1 {
		t.Errorf("out in the zone of the stricter line: %+v", w.gone)
	}
}
