package health

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/registry"
)

// do runs the lines of a scenario and forgets what they print.
func (s *scenario) do(t fatal, lines ...string) {
	for _, line := range lines {
		if err := s.command(strings.Fields(line)); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	s.out.Reset()
}

// fatal is what a test, and one run of a property, can do.
type fatal interface{ Fatalf(string, ...any) }

// tickOfSamples draws what is heard within one tick: by instance, so that it can
// be fed in any order of the instances.
func tickOfSamples(rt *rapid.T, n int, now time.Time) map[registry.UID][]Sample {
	all := make(map[registry.UID][]Sample)
	for uid := registry.UID(1); uid <= registry.UID(n); uid++ {
		for range rapid.IntRange(0, 2).Draw(rt, "samples") {
			at := now.Add(-time.Duration(rapid.IntRange(0, 2000).Draw(rt, "age")) * time.Millisecond)
			s := selfSample(uid, rapid.SampledFrom([]SelfStatus{Serving, Serving, Serving, Draining, NotServing}).Draw(rt, "status"), at)
			if rapid.Bool().Draw(rt, "probe") {
				p := rapid.IntRange(1, 3).Draw(rt, "prober")
				s = Sample{
					UID: uid, Class: registry.ClassProbe, At: at, Prober: Prober{fmt.Sprintf("p%d", p), fmt.Sprintf("z%d", p)},
					Result: rapid.SampledFrom([]ProbeResult{ProbeOK, ProbeOK, ProbeFailed, ProbeRefused, ProbeTimeout}).Draw(rt, "result"),
				}
			}
			all[uid] = append(all[uid], s)
		}
	}
	return all
}

// tickOfOutcomes draws the reports of one tick, each of another reporter.
func tickOfOutcomes(rt *rapid.T, n int, now time.Time) (all []*Outcomes) {
	for _, c := range reporters(4) {
		if !rapid.Bool().Draw(rt, "reports") {
			continue
		}
		o := &Outcomes{Reporter: c.who, Kind: c.kind, At: now, Interval: reportEvery}
		for uid := registry.UID(1); uid <= registry.UID(n); uid++ {
			calls := uint32(rapid.IntRange(0, 30).Draw(rt, "calls"))
			failed := uint32(rapid.IntRange(0, int(calls)).Draw(rt, "failed")) * uint32(uid%2)
			o.Entries = append(o.Entries, Outcome{UID: uid, Issued: calls, OK: calls - failed, Failed: failed})
		}
		all = append(all, o)
	}
	return all
}

// reporters are callers of all kinds.
func reporters(n int) []*callingPart {
	s := newScenario()
	for k := range n {
		kind := []string{"library", "envoy", "grpc"}[k%3]
		if err := s.setCallers([]string{fmt.Sprintf("r%d", k+1), "rate=1", "kind=" + kind}); err != nil {
			panic(err)
		}
	}
	return s.callers
}

// Samples of different instances may come in any order, and in any batches.
func TestSamplesOfDifferentInstancesCommute(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, b := New(scenarioName, epoch, Memory{}), New(scenarioName, epoch, Memory{})
		n := rapid.IntRange(2, 6).Draw(rt, "instances")
		c := fleet(n, 0, registry.ClassSet(rapid.IntRange(1, 7).Draw(rt, "supplies")))
		c.Contract.NoRamp = rapid.Bool().Draw(rt, "no ramp")
		now := epoch
		a.Apply(now, c)
		b.Apply(now, c)
		for range rapid.IntRange(5, 60).Draw(rt, "ticks") {
			now = now.Add(time.Duration(rapid.IntRange(1, 8).Draw(rt, "quarters")) * tick)
			samples := tickOfSamples(rt, n, now)
			var together []Sample
			for uid := registry.UID(1); uid <= registry.UID(n); uid++ {
				together = append(together, samples[uid]...)
			}
			a.Observe(now, together)
			for _, uid := range rapid.Permutation(uids(fmt.Sprintf("i1-i%d", n))).Draw(rt, "order") {
				b.Observe(now, samples[uid])
			}
			for _, o := range tickOfOutcomes(rt, n, now) {
				a.ObserveOutcomes(now, o)
				turned := *o
				turned.Entries = rapid.Permutation(o.Entries).Draw(rt, "entries")
				b.ObserveOutcomes(now, &turned)
			}
			oa, ob := a.Judge(now), b.Judge(now)
			if fmt.Sprint(oa) != fmt.Sprint(ob) {
				rt.Fatalf("at %s judgements differ:\n%+v\n%+v", now.Sub(epoch), oa, ob)
			}
			if va, vb := a.Verdicts(), b.Verdicts(); !slices.Equal(va, vb) {
				rt.Fatalf("at %s verdicts differ:\n%+v\n%+v", now.Sub(epoch), va, vb)
			}
		}
	})
}

// One reporter among others, however much it says and whatever, and on however
// many streams, changes no state.
func TestOneLoudReporterChangesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		quiet, loud := newScenario(), newScenario()
		n := rapid.IntRange(2, 5).Draw(rt, "instances")
		others := rapid.IntRange(2, 6).Draw(rt, "others")
		for _, s := range []*scenario{quiet, loud} {
			s.tick = 500 * time.Millisecond
			s.do(rt, "contract ramp=none", fmt.Sprintf("add i1-i%d zone=z1 supplies=probe,callers", n),
				"probers p1@z1 p2@z2", fmt.Sprintf("callers r1-r%d rate=4", others), "run 70s",
				fmt.Sprintf("errors i1-i%d 3%%", n))
		}
		liar := reporters(1)[0]
		liar.who.Addr = liar.who.Addr.Next().Next().Next().Next().Next().Next().Next().Next().Next()
		for range rapid.IntRange(1, 40).Draw(rt, "reports") {
			o := Outcomes{
				Reporter: liar.who, Kind: ReporterKind(rapid.IntRange(0, 2).Draw(rt, "kind")),
				At: loud.now, Interval: reportEvery,
			}
			for uid := registry.UID(1); uid <= registry.UID(n); uid++ {
				calls := uint32(rapid.IntRange(0, 100_000).Draw(rt, "calls"))
				failed := uint32(rapid.IntRange(0, int(calls)).Draw(rt, "failed"))
				o.Entries = append(o.Entries, Outcome{UID: uid, Issued: calls, OK: calls - failed, Failed: failed, Refused: failed})
			}
			loud.e.ObserveOutcomes(loud.now, &o)
			quiet.do(rt, "run 1s")
			loud.do(rt, "run 1s")
			a, b := quiet.e.Verdicts(), loud.e.Verdicts()
			for k := range a {
				if a[k].State != b[k].State || a[k].Weight != b[k].Weight {
					rt.Fatalf("without it %+v\nwith it %+v", a[k], b[k])
				}
			}
		}
	})
}

// Whatever took an instance out within so long, it is not back at its full
// weight within as long after it is well again.
func TestRemovalIsNeverSlowerThanReturn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newScenario()
		s.tick = 500 * time.Millisecond
		s.contract.ProbeHalfLife = time.Duration(rapid.IntRange(1, 20).Draw(rt, "probe half-life")) * time.Second
		s.contract.CallersHalfLife = time.Duration(rapid.IntRange(1, 20).Draw(rt, "callers half-life")) * time.Second
		if s.contract.NoRamp = rapid.Bool().Draw(rt, "no ramp"); s.contract.NoRamp {
			s.contract.ReturnHold = time.Minute // the contract must be slower by its hold alone
		}
		s.do(rt, "contract", "add i1-i4 zone=z1 supplies=probe,self,callers lease=5s", "keep renew i1-i4 every=1s",
			"keep SERVING i1-i4 every=2s", "probers p1@z1 p2@z2", "callers r1-r5 rate=10", "run 150s")
		faults := [][2]string{
			{"keep NOT_SERVING i1 every=2s", "keep SERVING i1 every=2s"},
			{"keep SERVING i1 every=2s degraded=own", "keep SERVING i1 every=2s"},
			{"probe i1 REFUSED", "probe i1 OK"},
			{"errors i1 50%", "errors i1 0%"},
		}
		if !s.contract.NoRamp { // one term for the lapse, one for the return: the ramp is what makes it slower
			faults = append(faults, [2]string{"stop renew i1", "keep renew i1 every=1s"})
		}
		fault := rapid.SampledFrom(faults).Draw(rt, "fault")
		s.contract.Dependencies = []registry.Dependency{{Name: "own", Authority: registry.Unreadiness}}
		s.do(rt, "contract")
		began, out := s.now, false
		s.do(rt, fault[0])
		for !out && s.now.Before(began.Add(2*time.Minute)) {
			s.do(rt, "run 500ms")
			out = !verdictIn(s, 1).State.Serving()
		}
		if !out {
			rt.Fatalf("%q took nobody out", fault[0])
		}
		took := s.now.Sub(began)
		s.do(rt, fault[1])
		well := s.now
		for s.now.Before(well.Add(took)) {
			s.do(rt, "run 500ms")
			if v := verdictIn(s, 1); v.State.Serving() && v.Weight == 100 {
				rt.Fatalf("%q: out within %s, back within %s", fault[0], took, s.now.Sub(well))
			}
		}
	})
}

func verdictIn(s *scenario, uid registry.UID) Verdict {
	all := s.e.Verdicts()
	k := slices.IndexFunc(all, func(v Verdict) bool { return v.UID == uid })
	return all[k]
}

// A fleet that is well loses any class, all probers, or all of what is said for
// a while; the server stands still, and starts again with or without its
// memory: nobody becomes ineligible, under the default contract.
func TestLosingEvidenceTakesNobodyOut(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newScenario()
		s.tick = 500 * time.Millisecond
		s.each = func(o Judgement) {
			for _, v := range o.Changed {
				if v.State == Ineligible || v.Quarantined {
					rt.Fatalf("at %s: %+v", s.now.Sub(s.epoch), v)
				}
			}
		}
		supplies := []string{"probe,self,callers", "probe", "self", "callers", "probe,callers", "self,callers", "probe,self"}
		start := []string{"keep SERVING i1-i4 every=2s", "probers p1@z1 p2@z2 third=p3@z3", "callers r1-r4 rate=6", "errors i1-i4 2%"}
		s.do(rt, "add i1-i4 zone=z1 supplies="+rapid.SampledFrom(supplies).Draw(rt, "supplies"))
		s.do(rt, start...)
		for range rapid.IntRange(2, 12).Draw(rt, "events") {
			s.do(rt, fmt.Sprintf("run %ds", rapid.IntRange(1, 100).Draw(rt, "seconds")))
			switch what := rapid.SampledFrom([]string{
				"stop self i1-i4", "stop probe p1,p2,p3", "stop probe p2", "stop calls r1-r4", "stop calls r2",
				"freeze 60s", "restart 60s", "restart 5s lost", "stance blind=p1 blind=p2", "stance blind=p1", "stance", "again",
			}).Draw(rt, "event"); what {
			case "again":
				s.do(rt, "stop self i1-i4", "stop probe p1,p2,p3", "stop calls r1-r4")
				s.do(rt, start...)
			default:
				s.do(rt, what)
			}
		}
		s.do(rt, "run 2m")
	})
}

// Random histories of faults of every kind: 45 minutes after the last nobody is
// out, in quarantine, ramping or not admitted (HEALTH.md §10).
func TestNothingStaysStuck(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 4))
			s := newScenario()
			s.tick = time.Second
			supplies := []string{"probe,self,callers", "probe", "self", "probe,callers", "self,callers"}[seed%5]
			s.do(t, "add i1-i6 zone=z1 lease=25s supplies="+supplies,
				"keep renew i1-i6 every=8s", "keep SERVING i1-i6 every=2s", "probers p1@z1 p2@z2 third=p3@z3", "callers r1-r4 rate=5")
			var history []string
			for range 40 {
				who := fmt.Sprintf("i%d", 1+r.IntN(6))
				line := []string{
					"keep NOT_SERVING " + who + " every=2s", "keep SERVING " + who + " every=2s", "keep DRAINING " + who + " every=2s",
					"keep SERVING " + who + " every=2s degraded=db", "stop self " + who, "stop renew " + who, "keep renew " + who + " every=8s",
					"probe " + who + " FAILED", "probe " + who + " REFUSED", "probe " + who + " TIMEOUT by=p1", "probe " + who + " OK",
					"errors " + who + " 100%", "errors " + who + " 40%", "errors " + who + " 30% by=r1-r2", "errors i1-i6 50%", "errors " + who + " 0%",
					"stance braked", "stance dead=z1", "stance blind=p1", "stance", "freeze 20s", "restart 20s", "restart 2s lost",
				}[r.IntN(23)]
				history = append(history, line, fmt.Sprintf("run %ds", 1+r.IntN(60)))
				s.do(t, history[len(history)-2:]...)
			}
			s.do(t, "keep renew i1-i6 every=8s", "keep SERVING i1-i6 every=2s", "probe i1-i6 OK", "errors i1-i6 0%", "stance", "run 45m")
			for _, v := range s.e.Verdicts() {
				if v.State != Eligible || !v.Member || v.Weight != 100 || v.Quarantined || v.OutBy != NoRule || v.Waits != NoWait {
					t.Fatalf("%s\n%+v", strings.Join(history, "\n"), v)
				}
			}
		})
	}
}

// Judging only who is touched or due decides like judging everybody all the
// time, with probers too. (What callers say moves a little with every report on a
// sibling; who was not called waits for its own.)
func TestJudgingWhoIsDueIsEnoughWithProbers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lazy, eager := newScenario(), newScenario()
		both := [...]*scenario{lazy, eager}
		supplies := []string{"probe,self", "probe", "self"}[rapid.IntRange(0, 2).Draw(rt, "supplies")]
		do := func(lines ...string) {
			for _, s := range both {
				s.do(rt, lines...)
			}
		}
		do("add i1-i4 zone=z1 supplies="+supplies, "keep SERVING i1-i4 every=2s", "probers p1@z1 p2@z2 third=p3@z3")
		for range rapid.IntRange(1, 12).Draw(rt, "events") {
			who := fmt.Sprintf("i%d", rapid.IntRange(1, 4).Draw(rt, "who"))
			do(rapid.SampledFrom([]string{
				"keep NOT_SERVING " + who + " every=2s", "keep SERVING " + who + " every=2s", "stop self " + who,
				"probe " + who + " FAILED", "probe " + who + " TIMEOUT by=p2", "probe " + who + " OK", "stop probe p1",
				"stance braked", "stance", "stance blind=p2",
			}).Draw(rt, "event"))
			for range rapid.IntRange(1, 100).Draw(rt, "ticks") {
				for _, i := range eager.e.instances {
					eager.e.touch(i)
				}
				do("run 250ms")
				for uid, i := range eager.e.instances {
					a, b := lazy.e.instances[uid].verdict, i.verdict
					a.Since, b.Since, a.Detail, b.Detail = time.Time{}, time.Time{}, "", ""
					if a != b {
						rt.Fatalf("%s at %s:\nwhen due %+v\nalways   %+v", uid, eager.now.Sub(epoch), a, b)
					}
				}
			}
		}
	})
}

// That callers decide is remembered in a few bytes, and holds again at once.
func TestCheckpointOfAServiceWhoseCallersDecide(t *testing.T) {
	s := newScenario()
	s.do(t, "load i1-i4 zone=z1 supplies=probe,callers", "probers p1@z1 p2@z2", "callers r1-r5 rate=4", "run 70s")
	if b := string(s.e.Checkpoint(s.now)); b != `{"v":2,"all":true}` {
		t.Errorf("checkpoint: %s", b)
	}
	s.do(t, "restart 5s", "run 3s")
	for _, v := range s.e.Verdicts() {
		if v.Primary != registry.ClassSet(0).With(registry.ClassCallers) {
			t.Errorf("after a start: %+v", v)
		}
	}
	s.do(t, "add i5 zone=z1", "run 1s")
	m, err := ReadMemory(s.e.Checkpoint(s.now))
	if err != nil || m.all || len(m.callers) != 4 {
		t.Errorf("of five: %+v, %v", m, err)
	}
}
