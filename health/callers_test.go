package health

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/registry"
)

// outcome is a usual entry: so many calls that ended well, and that failed.
func outcome(uid registry.UID, ok, failed uint32) Outcome {
	return Outcome{UID: uid, Issued: ok + failed, OK: ok, Failed: failed}
}

// report tells the fleet's table one report of an interval of 2 s.
func (f *callersFleet) report(k int, kind ReporterKind, entries ...Outcome) int {
	return f.hear(&Outcomes{Reporter: caller(k), Kind: kind, At: f.now, Interval: 2 * time.Second, Entries: entries})
}

func (f *callersFleet) after(d time.Duration) { f.now = f.now.Add(d) }

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// grey is a fleet of four of which the first fails so many of ten calls of each of
// the reporters.
func grey(t *testing.T, reporters int, kind ReporterKind, failed uint32) *callersFleet {
	t.Helper()
	f := newCallersFleet(4)
	for k := range reporters {
		if n := f.report(k, kind, outcome(1, 10-failed, failed), outcome(2, 10, 0), outcome(3, 10, 0), outcome(4, 10, 0)); n != 0 {
			t.Fatalf("%d entries refused", n)
		}
	}
	return f
}

func TestCallersOverTheLine(t *testing.T) {
	f := grey(t, 5, FromEnvoy, 4)
	r := f.read(1, callersQuestion{})
	if !r.over || r.against != 5 || r.counting != 5 || r.good || !r.enough || r.few {
		t.Errorf("four of ten calls of five reporters failed on one of four: %+v", r)
	}
	if !near(r.samples, 50) || !near(r.failures, 20) || !near(r.score, 0.4) || !near(r.excess, 0.4) || r.siblings != 0 {
		t.Errorf("its numbers: %+v", r)
	}
	if !r.newest.Equal(f.now) {
		t.Errorf("newest is %s, want %s", r.newest, f.now)
	}
	for _, uid := range []registry.UID{2, 3, 4} {
		if r := f.read(uid, callersQuestion{}); r.over || r.against != 0 || !r.good || r.counting != 5 {
			t.Errorf("its sibling %d: %+v", uid, r)
		}
	}
}

func TestCallersAloneAreNotEnough(t *testing.T) {
	if r := grey(t, 1, FromEnvoy, 10).read(1, callersQuestion{}); r.over || r.against != 1 || r.enough || !r.few {
		t.Errorf("one reporter, all failing: %+v", r)
	}
	// 2 reporters with 3 failures each are against; together they are under 8.
	if r := grey(t, 2, FromEnvoy, 3).read(1, callersQuestion{}); r.over || r.against != 2 {
		t.Errorf("six failures together: %+v", r)
	}
	if r := grey(t, 2, FromEnvoy, 4).read(1, callersQuestion{}); !r.over {
		t.Errorf("eight failures together: %+v", r)
	}
	// Two against of four that count are not more than half.
	f := grey(t, 2, FromEnvoy, 9)
	for k := 2; k < 4; k++ {
		f.report(k, FromEnvoy, outcome(1, 10, 0), outcome(2, 10, 0))
	}
	if r := f.read(1, callersQuestion{}); r.over || r.against != 2 || r.counting != 4 {
		t.Errorf("two of four against: %+v", r)
	}
}

func TestCallersWhoFareAlikeEverywhereSayNothing(t *testing.T) {
	f := newCallersFleet(4)
	for k := range 5 {
		f.report(k, FromEnvoy, outcome(1, 10, 10), outcome(2, 11, 9), outcome(3, 9, 11), outcome(4, 10, 10))
	}
	for uid := registry.UID(1); uid <= 4; uid++ {
		r := f.read(uid, callersQuestion{})
		if r.over || r.against != 0 || r.counting != 5 || !near(r.score, map[registry.UID]float64{1: .5, 2: .45, 3: .55, 4: .5}[uid]) {
			t.Errorf("a shared dependency fails half of the calls, read %d: %+v", uid, r)
		}
	}
	// Above 0.70 on the siblings, nobody can speak at all.
	for k := range 5 {
		f.report(k, FromEnvoy, outcome(1, 0, 200), outcome(2, 0, 200), outcome(3, 0, 200), outcome(4, 0, 200))
	}
	if r := f.read(1, callersQuestion{}); r.counting != 0 || r.good || r.enough || !r.few {
		t.Errorf("everything fails: %+v", r)
	}
}

// The excess that is needed grows as samples get few.
func TestCallersNoise(t *testing.T) {
	for _, x := range []struct {
		m, n, want float64
	}{{0, 100, 0.20}, {0, 2, 4 * math.Sqrt(0.02*0.98/4)}, {0.1, 5, 4 * math.Sqrt(0.1*0.9/10)}, {0.5, 20, 4 * math.Sqrt(0.25/40)}, {0.69, 20, 4 * math.Sqrt(0.25/40)}} {
		if got := neededExcess(&voice{tally: tally{samples: x.n}, median: x.m}); !near(got, x.want) {
			t.Errorf("median %v, %v samples: an excess of %v is needed, want %v", x.m, x.n, got, x.want)
		}
	}
}

func TestCallersDecay(t *testing.T) {
	f := grey(t, 3, FromEnvoy, 4)
	f.after(4 * time.Second)
	if r := f.read(1, callersQuestion{}); !near(r.samples, 15) || !near(r.failures, 6) || !near(r.score, 0.4) {
		t.Errorf("after a half-life: %+v", r)
	}
	// Another half-life holds from now on.
	c := defaultCallersTerms
	c.halfLife = time.Second
	f.table.configure(c)
	f.after(time.Second)
	if r := f.read(1, callersQuestion{}); !near(r.samples, 7.5) {
		t.Errorf("a second later, at a half-life of one: %+v", r)
	}
	// A sample that comes late is as old as it is.
	f.after(-time.Second)
	late := f.now.Add(-2 * time.Second)
	f.hear(&Outcomes{Reporter: caller(9), Kind: FromEnvoy, At: late, Interval: time.Second, Entries: []Outcome{outcome(2, 40, 0)}})
	for _, s := range f.table.scores(f.instances[2], f.now, callersQuestion{}) {
		if s.Reporter == caller(9) && !near(s.Samples, 10) {
			t.Errorf("40 calls, two half-lives ago: %+v", s)
		}
	}
}

// Scores outlive any number of new bases, and what weighs nothing is forgotten.
func TestCallersForget(t *testing.T) {
	f := grey(t, 5, FromEnvoy, 4)
	for range 3000 {
		f.after(2 * time.Second)
		for k := range 5 {
			f.report(k, FromEnvoy, outcome(1, 6, 4), outcome(2, 10, 0))
		}
	}
	r := f.read(1, callersQuestion{})
	if steady := 50 / (1 - math.Exp2(-0.5)); math.Abs(r.samples-steady) > 1e-6 || !near(r.score, 0.4) {
		t.Errorf("after 100 minutes: %+v, want %v samples", r, steady)
	}
	if n := len(f.instances[3].callers.refs); n != 0 {
		t.Errorf("%d reporters are kept on an instance that was not called for 100 minutes", n)
	}
	last := f.now
	f.after(time.Hour)
	r = f.read(1, callersQuestion{})
	if r.samples != 0 || r.counting != 0 || !r.few || !r.newest.Equal(last) {
		t.Errorf("an hour later: %+v", r)
	}
	if n := len(f.table.reporters); n != 0 {
		t.Errorf("%d reporters are kept after an hour", n)
	}
}

func TestCallersRefuse(t *testing.T) {
	f := newCallersFleet(2)
	good := Outcomes{Reporter: caller(1), Kind: FromEnvoy, At: f.now, Interval: 2 * time.Second, Entries: []Outcome{outcome(1, 9, 1), outcome(2, 10, 0)}}
	for name, change := range map[string]func(*Outcomes){
		"no interval":       func(o *Outcomes) { o.Interval = 0 },
		"negative interval": func(o *Outcomes) { o.Interval = -time.Second },
		"absurd interval":   func(o *Outcomes) { o.Interval = maxOutcomesInterval + 1 },
		"future":            func(o *Outcomes) { o.At = f.now.Add(futureSlack + 1) },
		"past":              func(o *Outcomes) { o.At = f.now.Add(-maxSampleAge - 1) },
		"no time":           func(o *Outcomes) { o.At = time.Time{} },
		"kind":              func(o *Outcomes) { o.Kind = FromGRPC + 1 },
	} {
		o := good
		change(&o)
		if n := f.hear(&o); n != 2 {
			t.Errorf("%s: %d entries were refused, want both", name, n)
		}
	}
	one := good
	one.Entries = []Outcome{outcome(7, 1, 0), {UID: 1, Issued: maxOutcomeCalls}, {UID: 1, OK: math.MaxUint32}, {UID: 2, InProgress: maxOutcomeCalls}, outcome(1, 9, 1)}
	if n := f.hear(&one); n != 4 {
		t.Errorf("%d entries were refused, want the unknown instance and the three absurd counts", n)
	}
	if r := f.read(1, callersQuestion{}); !near(r.samples, 10) {
		t.Errorf("what was right beside them counts: %+v", r)
	}
	soon := good
	soon.At = f.now.Add(futureSlack)
	f.hear(&soon)
	if r := f.read(1, callersQuestion{}); !near(r.samples, 20) || !r.newest.Equal(f.now) {
		t.Errorf("a second ahead is now: %+v", r)
	}
	// More may end than began: it began before.
	if n := f.report(2, FromEnvoy, Outcome{UID: 1, Issued: 1, OK: 30}); n != 0 {
		t.Errorf("calls of earlier intervals are refused")
	}
}

func TestCallersTrial(t *testing.T) {
	f := newCallersFleet(3)
	for k := range 3 {
		f.report(k, FromEnvoy, outcome(1, 0, 2), outcome(2, 20, 0), outcome(3, 20, 0))
	}
	if r := f.read(1, callersQuestion{ramping: true}); r.over || r.against > 1 {
		t.Errorf("two samples each make nobody count: %+v", r)
	}
	r := f.read(1, callersQuestion{trial: true})
	if !r.over || r.counting != 3 || r.against != 3 || !r.enough {
		t.Errorf("during a trial they do: %+v", r)
	}
	// Together they need 5 samples and 3 failures.
	f = newCallersFleet(3)
	for k := range 2 {
		f.report(k, FromEnvoy, outcome(1, 0, 2), outcome(2, 20, 0))
	}
	if r := f.read(1, callersQuestion{trial: true}); r.over || r.against != 2 {
		t.Errorf("four samples together: %+v", r)
	}
}

func TestCallersClear(t *testing.T) {
	f := grey(t, 5, FromLibrary, 8)
	f.table.settle(f.now, nil)
	before := f.table.read(f.instances[2], f.now, callersQuestion{})
	f.table.clear(f.instances[1])
	if r := f.table.read(f.instances[1], f.now, callersQuestion{}); r.samples != 0 || r.counting != 0 || !r.newest.Equal(f.now) {
		t.Errorf("cleared: %+v", r)
	}
	if after := f.table.read(f.instances[2], f.now, callersQuestion{}); after != before {
		t.Errorf("a clearing moves a sibling within the turn: %+v, was %+v", after, before)
	}
	f.report(0, FromLibrary, outcome(1, 7, 0))
	if r := f.read(1, callersQuestion{}); !near(r.samples, 7) || r.failures != 0 {
		t.Errorf("after it, only what is new counts: %+v", r)
	}
}

func TestCallersSiblingsAreWhoSettleSays(t *testing.T) {
	f := newCallersFleet(3)
	for k := range 2 {
		f.report(k, FromEnvoy, outcome(1, 10, 10), outcome(2, 20, 0), outcome(3, 10, 10))
	}
	read := func(sibling func(*instance) bool) callersReading {
		f.table.settle(f.now, sibling)
		return f.table.read(f.instances[1], f.now, callersQuestion{})
	}
	if r := read(func(i *instance) bool { return i.row.UID == 2 }); !r.over || !near(r.excess, 0.5) {
		t.Errorf("beside a good one: %+v", r)
	}
	if r := read(func(i *instance) bool { return i.row.UID != 2 }); r.over || r.counting != 2 || r.excess != 0 {
		t.Errorf("beside one that fares alike: %+v", r)
	}
	if r := read(func(i *instance) bool { return i.row.UID == 1 }); r.counting != 0 {
		t.Errorf("beside nobody: %+v", r)
	}
}

func TestCallersSoften(t *testing.T) {
	f := grey(t, 3, FromGRPC, 8)
	f.report(3, FromEnvoy, outcome(1, 10, 0), outcome(2, 10, 0))
	if r := f.read(1, callersQuestion{}); !r.over || r.application {
		t.Errorf("one other: %+v", r)
	}
	f.report(4, FromLibrary, outcome(1, 10, 0), outcome(2, 10, 0))
	if r := f.read(1, callersQuestion{}); !r.over || !r.application {
		t.Errorf("two others, none of them against: %+v", r)
	}
	f.report(5, FromEnvoy, outcome(1, 0, 10), outcome(2, 10, 0))
	if r := f.read(1, callersQuestion{}); !r.over || r.application {
		t.Errorf("an Envoy against: %+v", r)
	}
}

func TestCallersIgnoreLRSErrors(t *testing.T) {
	f := newCallersFleet(2)
	terms := defaultCallersTerms
	terms.ignoreLRS = true
	f.table.configure(terms)
	f.report(0, FromGRPC, outcome(1, 0, 10))
	f.report(1, FromEnvoy, outcome(1, 0, 10))
	f.report(2, FromLibrary, outcome(1, 0, 10))
	if r := f.read(1, callersQuestion{}); !near(r.samples, 30) || !near(r.failures, 20) {
		t.Errorf("errors of a stock gRPC client count: %+v", r)
	}
}

func TestCallersRefusedConnections(t *testing.T) {
	f := newCallersFleet(2)
	refused := Outcome{UID: 1, Failed: 1, Refused: 1}
	f.report(0, FromLibrary, refused)
	f.report(1, FromEnvoy, refused)
	f.report(2, FromGRPC, refused)
	if r := f.read(1, callersQuestion{}); r.refusedBy != 1 {
		t.Errorf("by %d, only our library can tell", r.refusedBy)
	}
	f.after(10 * time.Second)
	if r := f.read(1, callersQuestion{}); r.refusedBy != 1 {
		t.Errorf("by %d, ten seconds ago", r.refusedBy)
	}
	f.after(1)
	if r := f.read(1, callersQuestion{}); r.refusedBy != 0 {
		t.Errorf("by %d, more than ten seconds ago", r.refusedBy)
	}
}

func TestCallersDrop(t *testing.T) {
	f := grey(t, 5, FromEnvoy, 4)
	for uid := registry.UID(2); uid <= 4; uid++ {
		f.table.drop(f.instances[uid])
		delete(f.instances, uid)
	}
	if r := f.read(1, callersQuestion{}); r.counting != 0 || !near(r.samples, 50) {
		t.Errorf("its siblings are gone: %+v", r)
	}
	if n := f.report(0, FromEnvoy, outcome(1, 1, 0), outcome(2, 1, 0)); n != 1 {
		t.Errorf("%d entries were refused, want that of an instance that is gone", n)
	}
	f.instances[9] = &instance{row: &registry.Instance{UID: 9}}
	for k := range 5 {
		f.report(k, FromEnvoy, outcome(9, 10, 0))
	}
	if r := f.read(1, callersQuestion{}); r.counting != 5 || !r.over {
		t.Errorf("beside a new one: %+v", r)
	}
	f.table.drop(f.instances[1])
	f.table.drop(f.instances[9])
	if len(f.table.rows) != 0 {
		t.Errorf("%d rows are left", len(f.table.rows))
	}
}

// A tick's reports may come in any order, and its instances be read in any.
func TestCallersOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(rt, "instances")
		reporters := rapid.IntRange(1, 12).Draw(rt, "reporters")
		a, b := newCallersFleet(n), newCallersFleet(n)
		for range rapid.IntRange(1, 5).Draw(rt, "ticks") {
			a.after(2 * time.Second)
			b.now = a.now
			reports := callersReports(n, reporters, FromGRPC, 0, 0)
			for k, o := range reports {
				o.Kind, o.At = ReporterKind(k%3), a.now
				for j := range o.Entries {
					e := &o.Entries[j]
					e.OK = uint32(rapid.IntRange(0, 12).Draw(rt, "ok"))
					e.Failed = uint32(rapid.IntRange(0, 6).Draw(rt, "failed"))
					e.Issued = e.OK + e.Failed
				}
				a.hear(o)
			}
			for _, o := range rapid.Permutation(reports).Draw(rt, "order") {
				shuffled := *o
				shuffled.Entries = rapid.Permutation(o.Entries).Draw(rt, "entries")
				b.hear(&shuffled)
			}
			a.table.settle(a.now, nil)
			b.table.settle(b.now, nil)
			for _, uid := range rapid.Permutation(slices.Collect(func(yield func(registry.UID) bool) {
				for uid := registry.UID(1); int(uid) <= n; uid++ {
					if !yield(uid) {
						return
					}
				}
			})).Draw(rt, "reading") {
				q := callersQuestion{trial: rapid.Bool().Draw(rt, "trial")}
				if x, y := a.table.read(a.instances[uid], a.now, q), b.table.read(b.instances[uid], b.now, q); x != y {
					rt.Fatalf("instance %d: %+v, in another order %+v", uid, x, y)
				}
			}
		}
	})
}

// One reporter, whatever it says and however loudly, neither takes an instance out
// nor keeps one in that four others find failing.
func TestCallersOneLoudReporterChangesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newCallersFleet(4)
		for range rapid.IntRange(1, 5).Draw(rt, "ticks") {
			f.after(2 * time.Second)
			for k := 1; k <= 4; k++ {
				f.report(k, FromEnvoy, outcome(1, 3, 7), outcome(2, 10, 0), outcome(3, 10, 0), outcome(4, 39, 1))
			}
			lie := &Outcomes{Reporter: caller(0), Kind: ReporterKind(rapid.IntRange(0, 2).Draw(rt, "kind")), At: f.now, Interval: 2 * time.Second}
			for uid := registry.UID(1); uid <= 4; uid++ {
				calls := rapid.Uint32Range(0, maxOutcomeCalls-1)
				lie.Entries = append(lie.Entries, Outcome{
					UID: uid, Issued: calls.Draw(rt, "issued"), OK: calls.Draw(rt, "ok"), Failed: calls.Draw(rt, "failed"),
					InProgress: calls.Draw(rt, "inProgress"), Weight: 1,
				})
			}
			f.hear(lie)
		}
		for uid := registry.UID(1); uid <= 4; uid++ {
			r := f.read(uid, callersQuestion{trial: rapid.Bool().Draw(rt, "trial")})
			if r.over != (uid == 1) || r.good != (uid != 1) {
				rt.Fatalf("instance %d: %+v", uid, r)
			}
		}
	})
}

func TestCallersScores(t *testing.T) {
	f := grey(t, 3, FromGRPC, 5)
	f.report(3, FromEnvoy, outcome(1, 100, 0), outcome(2, 10, 0))
	f.report(4, FromLibrary, outcome(1, 10, 0)) // without a sibling it does not count
	scores := f.table.scores(f.instances[1], f.now, callersQuestion{})
	if len(scores) != 5 {
		t.Fatalf("%d scores: %+v", len(scores), scores)
	}
	for k, s := range scores {
		against := k < 3
		if s.Against != against || s.Counts == (s.Reporter == caller(4)) || s.Pool != 0 || !s.Newest.Equal(f.now) {
			t.Errorf("score %d: %+v", k, s)
		}
	}
	if s := scores[3]; s.Reporter != caller(3) || s.Kind != FromEnvoy || !near(s.Samples, 100) || s.Score != 0 {
		t.Errorf("the one with most samples comes after those against: %+v", s)
	}
	if s := scores[0]; s.Kind != FromGRPC || !near(s.Failures, 5) || !near(s.Score, 0.5) || s.Siblings != 0 {
		t.Errorf("one against: %+v", s)
	}
	if s := f.table.scores(&instance{}, f.now, callersQuestion{}); s != nil {
		t.Errorf("scores of an instance that nobody spoke of: %+v", s)
	}
}

// Once everybody is known, neither a sample nor a reading allocates.
func TestCallersDoNotAllocate(t *testing.T) {
	f := newCallersFleet(20)
	reports := callersReports(20, 10, FromGRPC, 8, 2)
	touch := func(i *instance, _ bool) (quiet time.Time) { i.touched = true; return quiet }
	find := f.find
	round := func() {
		f.after(2 * time.Second)
		for _, o := range reports {
			o.At = f.now
			f.table.hear(f.now, o, find, touch)
		}
		f.table.settle(f.now, nil)
		for _, i := range f.instances {
			f.table.read(i, f.now, callersQuestion{})
		}
	}
	round()
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("a round of 200 samples and 20 readings makes %v allocations", n)
	}
}
