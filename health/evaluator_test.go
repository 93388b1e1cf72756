package health

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/registry"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// fleet is a change that holds n instances, i1 to in.
func fleet(n int, lease time.Duration, supplies registry.ClassSet) registry.Change {
	c := registry.Change{Name: scenarioName, Service: &registry.Service{Name: scenarioName}}
	for k := 1; k <= n; k++ {
		uid := registry.UID(k)
		c.Instances = append(c.Instances, registry.InstanceChange{
			UID:     uid,
			Row:     &registry.Instance{UID: uid, Lease: lease, Proof: registry.ByAuthority, Zone: fmt.Sprintf("z%d", k%3)},
			Profile: registry.Profile{Supplies: supplies},
		})
	}
	return c
}

func selfSample(uid registry.UID, s SelfStatus, at time.Time) Sample {
	return Sample{UID: uid, Class: registry.ClassSelf, Status: s, At: at}
}

func verdictOf(t *testing.T, e *Evaluator, uid registry.UID) Verdict {
	t.Helper()
	for _, v := range e.Verdicts() {
		if v.UID == uid {
			return v
		}
	}
	t.Fatalf("no verdict on %s", uid)
	return Verdict{}
}

// One tick's input, permuted, must lead to the same verdicts and outcomes.
func TestOrderOfInputDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := New(scenarioName, epoch, Memory{})
		b := New(scenarioName, epoch, Memory{})
		supplies := registry.ClassSet(rapid.IntRange(0, 7).Draw(rt, "supplies"))
		n := rapid.IntRange(1, 8).Draw(rt, "instances")
		now := epoch
		feed := func(c registry.Change) {
			a.Apply(now, c)
			c.Instances = rapid.Permutation(c.Instances).Draw(rt, "rows")
			b.Apply(now, c)
		}
		c := fleet(n, 5*time.Second, supplies)
		c.Contract.ReturnHold = 2 * time.Second
		feed(c)
		for range rapid.IntRange(5, 60).Draw(rt, "ticks") {
			now = now.Add(time.Duration(rapid.IntRange(1, 12).Draw(rt, "quarters")) * tick)
			var uids []registry.UID
			var samples []Sample
			for uid := registry.UID(1); uid <= registry.UID(n); uid++ {
				if rapid.Bool().Draw(rt, "renews") {
					uids = append(uids, uid)
				}
				for range rapid.IntRange(0, 2).Draw(rt, "reports") {
					age := time.Duration(rapid.IntRange(0, 3000).Draw(rt, "age")) * time.Millisecond
					s := rapid.SampledFrom([]SelfStatus{Serving, Serving, Serving, Draining, NotServing}).Draw(rt, "status")
					samples = append(samples, selfSample(uid, s, now.Add(-age)))
				}
			}
			for _, uid := range uids {
				a.Renew(now, uid)
			}
			if len(uids) > 0 {
				for _, uid := range rapid.Permutation(uids).Draw(rt, "renewals") {
					b.Renew(now, uid)
				}
			}
			a.Observe(now, samples)
			if len(samples) > 0 {
				b.Observe(now, rapid.Permutation(samples).Draw(rt, "samples"))
			}
			oa, ob := a.Judge(now), b.Judge(now)
			if fmt.Sprint(oa) != fmt.Sprint(ob) {
				rt.Fatalf("outcomes differ:\n%+v\n%+v", oa, ob)
			}
			if va, vb := a.Verdicts(), b.Verdicts(); !slices.Equal(va, vb) {
				rt.Fatalf("verdicts differ:\n%+v\n%+v", va, vb)
			}
		}
	})
}

// Whatever renews and reports, and whoever freezes or restarts: no lease is
// judged before its term ends or more than its grace and a tick later; nobody
// is out without having said so or lapsed; the last member never ages out; and
// judging at Next alone misses nothing.
func TestLeaseInvariants(t *testing.T) {
	const term = 25 * time.Second
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(rt, "instances")
		e := New(scenarioName, epoch, Memory{})
		c := fleet(n, term, 0)
		now := epoch
		e.Apply(now, c)
		heard := make(map[registry.UID]time.Time) // last renewal or full term granted
		for uid := registry.UID(1); uid <= registry.UID(n); uid++ {
			heard[uid] = now
		}
		grant := func() {
			for uid := range heard {
				heard[uid] = now
			}
		}
		e.Judge(now)
		alive := rapid.SliceOfN(rapid.Bool(), n, n).Draw(rt, "alive")
		for range rapid.IntRange(10, 300).Draw(rt, "ticks") {
			now = now.Add(time.Second)
			switch rapid.IntRange(0, 60).Draw(rt, "fault") {
			case 0:
				now = now.Add(time.Minute)
				e.Gap(now)
				grant()
			case 1:
				m, err := ReadMemory(e.Checkpoint(now))
				if err != nil {
					rt.Fatal(err)
				}
				now = now.Add(time.Minute)
				e = New(scenarioName, now, m)
				e.Load(c)
				grant()
			case 2, 3:
				k := rapid.IntRange(0, n-1).Draw(rt, "who")
				alive[k] = !alive[k]
			}
			for k := range alive {
				if uid := registry.UID(k + 1); alive[k] && now.Second()%8 == k%8 {
					e.Renew(now, uid)
					heard[uid] = now
				}
			}
			o := e.Judge(now)
			if len(o.AgedOut) >= n {
				rt.Fatalf("all %d instances aged out", n)
			}
			for _, tr := range o.Transitions {
				if since := now.Sub(heard[tr.UID]); tr.Rule == R1 && tr.To == Ineligible && since < term {
					rt.Fatalf("%s out %s after its last renewal", tr.UID, since)
				}
			}
			for _, v := range e.Verdicts() {
				if since := now.Sub(heard[v.UID]); since > term+5*time.Second && v.State == Eligible {
					rt.Fatalf("%s still eligible %s after its last renewal", v.UID, since)
				}
			}
			if o.Next.IsZero() {
				rt.Fatal("leases run, and there is no next judgement")
			}
		}
	})
}

// Judging only who is touched or due decides like judging everybody all the
// time. A suspect lapse alone may be looked at a little later.
func TestJudgingWhoIsDueIsEnough(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lazy, eager := New(scenarioName, epoch, Memory{}), New(scenarioName, epoch, Memory{})
		both := [...]*Evaluator{lazy, eager}
		n := rapid.IntRange(1, 6).Draw(rt, "instances")
		c := fleet(n, 6*time.Second, registry.ClassSet(rapid.IntRange(0, 3).Draw(rt, "supplies")))
		c.Contract.Silence = registry.SilencePolicy(rapid.IntRange(0, 1).Draw(rt, "silence"))
		now := epoch
		for _, e := range both {
			e.Apply(now, c)
		}
		for range rapid.IntRange(10, 400).Draw(rt, "ticks") {
			now = now.Add(tick)
			for uid := registry.UID(1); uid <= registry.UID(n); uid++ {
				what := rapid.IntRange(0, 40).Draw(rt, "what")
				for _, e := range both {
					switch {
					case what < 3:
						e.Renew(now, uid)
					case what < 10:
						e.Observe(now, []Sample{selfSample(uid, Serving, now)})
					case what < 12:
						e.Observe(now, []Sample{selfSample(uid, SelfStatus(what-10)+Draining, now)})
					}
				}
			}
			for _, i := range eager.instances {
				eager.touch(i)
			}
			lazy.Judge(now)
			eager.Judge(now)
			for uid, i := range eager.instances {
				a, b := lazy.instances[uid].verdict, i.verdict
				a.Since, b.Since, a.Detail, b.Detail = time.Time{}, time.Time{}, "", ""
				if a != b && !lazy.instances[uid].lease.suspect() {
					rt.Fatalf("%s at %s:\nwhen due %+v\nalways   %+v", uid, now.Sub(epoch), a, b)
				}
			}
		}
	})
}

func TestObserveNamesTheTouchedAndRefusesTheImpossible(t *testing.T) {
	e := New(scenarioName, epoch, Memory{})
	e.Apply(epoch, fleet(3, 0, registry.ClassSet(0).With(registry.ClassSelf)))
	e.Judge(epoch)
	now := epoch.Add(time.Hour)
	probe := selfSample(1, Serving, now)
	probe.Class = registry.ClassProbe
	negative := selfSample(1, Serving, now)
	negative.Interval = -time.Second
	touched, refused := e.Observe(now, []Sample{
		selfSample(2, Serving, now), selfSample(1, NotServing, now), selfSample(2, Serving, now.Add(-time.Second)),
		selfSample(9, Serving, now),                        // no such instance
		selfSample(3, NoStatus, now),                       // says nothing
		selfSample(3, NotServing+1, now),                   // not a status
		selfSample(3, NotServing, now.Add(time.Minute)),    // from the future
		selfSample(3, NotServing, now.Add(-2*time.Minute)), // from before
		selfSample(3, NotServing, time.Time{}),
		probe, negative,
	})
	slices.Sort(touched)
	if want := []registry.UID{1, 2}; !slices.Equal(touched, want) || refused != 8 {
		t.Errorf("touched %v, refused %d; want %v and 8", touched, refused, want)
	}
	e.Judge(now)
	if v := verdictOf(t, e, 3); v.State == Ineligible {
		t.Errorf("an impossible report took i3 out: %+v", v)
	}
}

// A word that arrives late still interrupts the run of SERVING that it belongs
// into, and one that lies before it does not.
func TestLateWordInterruptsTheHold(t *testing.T) {
	for _, tt := range []struct {
		late time.Duration // when it was said
		want time.Duration // when the instance returns
	}{{500 * time.Millisecond, 16 * time.Second}, {3500 * time.Millisecond, 19 * time.Second}} {
		e := New(scenarioName, epoch, Memory{})
		e.Apply(epoch, fleet(2, 0, registry.ClassSet(0).With(registry.ClassSelf)))
		e.Judge(epoch)
		e.Observe(epoch, []Sample{selfSample(1, Serving, epoch)})
		e.Judge(epoch)
		e.Observe(epoch, []Sample{selfSample(1, NotServing, epoch)})
		var back time.Duration
		for s := range 30 {
			now := epoch.Add(time.Duration(s) * time.Second)
			if s > 0 {
				e.Observe(now, []Sample{selfSample(1, Serving, now)})
			}
			if s == 4 {
				e.Observe(now, []Sample{selfSample(1, NotServing, epoch.Add(tt.late))})
			}
			e.Judge(now)
			if back == 0 && verdictOf(t, e, 1).State == Eligible {
				back = now.Sub(epoch)
			}
		}
		if back != tt.want {
			t.Errorf("NOT_SERVING of %s heard at 4s: back at %s, want %s", tt.late, back, tt.want)
		}
	}
}

// A clock that is a little ahead gives an instance no longer freshness.
func TestReportFromTheNearFutureIsOfNow(t *testing.T) {
	e := New(scenarioName, epoch, Memory{})
	e.Apply(epoch, fleet(1, 0, registry.ClassSet(0).With(registry.ClassSelf)))
	e.Observe(epoch, []Sample{selfSample(1, Serving, epoch.Add(900*time.Millisecond))})
	if o := e.Judge(epoch); !o.Next.Equal(epoch.Add(6 * time.Second)) {
		t.Errorf("silent from %s, want 6s", o.Next.Sub(epoch))
	}
}

// Where a probe comes once a minute, 30 s without one are no silence yet.
func TestSilenceAdmitsNobodyWhoIsNotSilent(t *testing.T) {
	e := New(scenarioName, epoch, Memory{})
	c := fleet(1, 0, registry.ClassSet(0).With(registry.ClassProbe))
	c.Contract.Probe = registry.Probe{Interval: time.Minute, Timeout: time.Second}
	e.Apply(epoch, c)
	for s := range 200 {
		e.Judge(epoch.Add(time.Duration(s) * time.Second))
		if v := verdictOf(t, e, 1); v.Member != (s >= 181) || v.State != Unknown {
			t.Fatalf("after %d s: %+v", s, v)
		}
	}
}

func TestExplainGivesTheEvidence(t *testing.T) {
	e := New(scenarioName, epoch, Memory{})
	e.Apply(epoch, fleet(1, 25*time.Second, registry.ClassSet(0).With(registry.ClassSelf)))
	e.Apply(epoch, fleet(2, 0, 0)) // i2, and i1 loses its lease
	e.Apply(epoch, fleet(1, 25*time.Second, registry.ClassSet(0).With(registry.ClassSelf)))
	e.Judge(epoch)
	e.Observe(epoch, []Sample{selfSample(1, Serving, epoch)})
	e.Judge(epoch)
	at := epoch.Add(time.Second)
	bad := selfSample(1, NotServing, at)
	bad.Degraded = []string{"payments"}
	e.Observe(at, []Sample{bad})
	e.Renew(at, 1)
	e.Judge(at)
	back := at.Add(time.Second)
	good := selfSample(1, Serving, back)
	good.Degraded = []string{"payments"}
	e.Observe(back, []Sample{good})
	e.Judge(back)

	xs := e.Explain(back)
	if len(xs) != 2 || xs[1].Self != nil || xs[1].Lease != nil || xs[1].Holds != nil || xs[1].SilentAt != nil {
		t.Fatalf("i2 has no evidence: %+v", xs)
	}
	x := xs[0]
	if x.Self == nil || x.Self.Status != Serving || !x.Self.At.Equal(back) || !slices.Equal(x.Self.Degraded, good.Degraded) {
		t.Errorf("self: %+v", x.Self)
	}
	if x.Lease == nil || !x.Lease.Renewed.Equal(at) || !x.Lease.Ends.Equal(at.Add(25*time.Second)) || !x.Lease.Lapsed.IsZero() {
		t.Errorf("lease: %+v", x.Lease)
	}
	if len(x.Holds) != 1 || x.Holds[0] != (Hold{Rule: R2, Since: at, Until: back.Add(15 * time.Second)}) {
		t.Errorf("holds: %+v", x.Holds)
	}
	if got := x.SilentAt[registry.ClassSelf]; !got.Equal(back.Add(6 * time.Second)) {
		t.Errorf("silent at %s", got)
	}
	if x.Verdict.State != Ineligible || x.Verdict.OutBy != R2 {
		t.Errorf("verdict: %+v", x.Verdict)
	}
}

func TestSilenceLimits(t *testing.T) {
	for _, tt := range []struct {
		class    registry.EvidenceClass
		loaded   bool // at a start of ours
		interval time.Duration
		want     time.Duration
	}{
		{registry.ClassProbe, false, 0, 7 * time.Second},
		{registry.ClassProbe, true, 0, 7 * time.Second},
		{registry.ClassSelf, false, 0, 6 * time.Second},
		{registry.ClassSelf, false, 5 * time.Second, 15 * time.Second},
		{registry.ClassCallers, false, 0, 10 * time.Second},
		{registry.ClassCallers, true, 0, 30 * time.Second},
	} {
		e := New(scenarioName, epoch, Memory{})
		c := fleet(1, 0, registry.ClassSet(0).With(tt.class))
		c.Contract.Probe = registry.Probe{Interval: 2 * time.Second, Timeout: time.Second}
		if tt.loaded {
			e.Load(c)
		} else {
			e.Apply(epoch, c)
		}
		i := e.instances[1]
		i.self.interval = tt.interval
		if got := e.silentAt(i, tt.class).Sub(epoch); got != tt.want {
			t.Errorf("%s, loaded %v, interval %s: silent after %s, want %s", className(tt.class), tt.loaded, tt.interval, got, tt.want)
		}
	}
}

func TestMemoryThatCannotBeReadIsLost(t *testing.T) {
	for _, bad := range []string{
		"{", `{"v":3}`, `{"v":0}`, `[]`, `{"v":1,"i":{"x":{}}}`,
		`{"v":1,"i":{"1":{"state":9,"rule":1,"age":0}}}`,
		`{"v":1,"i":{"1":{"state":3,"rule":200,"age":0}}}`,
		`{"v":1,"i":{"1":{"state":3,"rule":1,"age":0,"outs":[{"rule":7,"age":1}]}}}`,
		`{"v":2,"i":{"1":{"state":1,"rule":7,"age":0,"ramp":{"step":6}}}}`,
		`{"v":2,"i":{"1":{"state":0,"rule":8,"age":0,"retry":{"rule":2,"times":1}}}}`,
		`{"v":2,"i":{"1":{"state":1,"rule":7,"age":0,"quarantine":{"left":-1}}}}`,
	} {
		if _, err := ReadMemory([]byte(bad)); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
	if m, err := ReadMemory(nil); err != nil || len(m.instances) != 0 {
		t.Errorf("no checkpoint: %v, %v", m, err)
	}
}

// An instance that was out by its lease and has none any more is not out for good.
func TestALapseIsForgottenWithItsLease(t *testing.T) {
	e := New(scenarioName, epoch, Memory{})
	e.Apply(epoch, fleet(2, 25*time.Second, 0))
	e.Judge(epoch)
	e.Renew(epoch.Add(20*time.Second), 2)
	at := epoch.Add(30 * time.Second)
	e.Judge(at)
	if v := e.Verdicts()[0]; v.OutBy != R1 {
		t.Fatalf("not lapsed: %+v", v)
	}
	m, err := ReadMemory(e.Checkpoint(at))
	if err != nil {
		t.Fatal(err)
	}
	again := New(scenarioName, at, m)
	again.Load(fleet(2, 0, 0))
	again.Judge(at)
	if v := again.Verdicts()[0]; v.State != Eligible || v.OutBy != NoRule {
		t.Errorf("after a start without a lease: %+v", v)
	}
}

// A checkpoint of healthy members is nothing, so that 60,000 of them cost nothing.
func TestCheckpointHoldsOnlyWhatIsNotable(t *testing.T) {
	e := New(scenarioName, epoch, Memory{})
	c := fleet(100, 25*time.Second, 0)
	c.Contract.NoRamp = true
	e.Apply(epoch, c)
	e.Judge(epoch)
	if b := e.Checkpoint(epoch); b != nil {
		t.Errorf("healthy service: %s", b)
	}
	e.Observe(epoch, []Sample{selfSample(7, NotServing, epoch)})
	e.Judge(epoch)
	m, err := ReadMemory(e.Checkpoint(epoch.Add(time.Second)))
	if err != nil || len(m.instances) != 1 || m.instances[7].State != Ineligible {
		t.Errorf("got %+v, %v; want i7 alone, ineligible", m, err)
	}
}

func FuzzReadMemory(f *testing.F) {
	e := New(scenarioName, epoch, Memory{})
	e.Apply(epoch, fleet(4, 5*time.Second, registry.ClassSet(0).With(registry.ClassSelf)))
	e.Observe(epoch, []Sample{selfSample(1, Serving, epoch), selfSample(2, NotServing, epoch)})
	e.Judge(epoch)
	f.Add(e.Checkpoint(epoch))
	e.Observe(epoch, []Sample{selfSample(1, NotServing, epoch)})
	e.Judge(epoch.Add(time.Minute))
	f.Add(e.Checkpoint(epoch.Add(time.Minute)))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ReadMemory(b)
		if err != nil {
			return
		}
		// Whatever was read, a start with it must work and end.
		e := New(scenarioName, epoch, m)
		e.Load(fleet(4, 5*time.Second, registry.ClassSet(0).With(registry.ClassSelf)))
		for s := range 40 {
			e.Judge(epoch.Add(time.Duration(s) * time.Second))
		}
		if _, err := ReadMemory(e.Checkpoint(epoch.Add(time.Minute))); err != nil {
			t.Fatalf("own checkpoint is not read: %v", err)
		}
	})
}
