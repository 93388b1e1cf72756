package health

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Many callers, each too small to count, are heard in pools.
func TestCallersPools(t *testing.T) {
	f := newCallersFleet(4)
	for k := range 40 {
		f.report(k, FromEnvoy, outcome(1, 1, 1), outcome(2, 2, 0), outcome(3, 2, 0), outcome(4, 2, 0))
	}
	r := f.read(1, callersQuestion{})
	if !r.over || r.counting != poolCount || r.against != poolCount || !near(r.score, 0.5) || !near(r.samples, 80) {
		t.Errorf("half of the calls of forty small reporters fail: %+v", r)
	}
	if r := f.read(2, callersQuestion{}); r.over || !r.good || r.counting != poolCount {
		t.Errorf("its sibling: %+v", r)
	}
	scores := f.table.scores(f.instances[1], f.now, callersQuestion{})
	if len(scores) != poolCount || scores[0].Pool == 0 || scores[0].Kind != FromEnvoy || scores[0].Reporter != (Reporter{}) {
		t.Errorf("scores: %+v", scores)
	}
}

// No more than maxTrackedReporters are kept apart, the same ones in whatever order
// they come; nothing that the others say is lost.
func TestCallersAreBounded(t *testing.T) {
	const reporters = 3 * maxTrackedReporters
	var first []ReporterScore
	for seed := range uint64(3) {
		f := newCallersFleet(3)
		for _, k := range rand.New(rand.NewPCG(seed, 1)).Perm(reporters) {
			f.report(k, FromLibrary, outcome(1, 4, 6), outcome(2, 10, 0), outcome(3, 10, 0))
		}
		row := f.instances[1].callers
		if len(row.refs) != maxTrackedReporters {
			t.Fatalf("%d reporters are kept apart", len(row.refs))
		}
		r := f.read(1, callersQuestion{})
		if !r.over || r.counting != maxTrackedReporters+poolCount || !near(r.samples, 10*reporters) || !near(r.failures, 6*reporters) {
			t.Errorf("%+v", r)
		}
		scores := f.table.scores(f.instances[1], f.now, callersQuestion{})
		if len(scores) != maxTrackedReporters+poolCount {
			t.Errorf("%d scores", len(scores))
		}
		if seed == 0 {
			first = scores
		} else if !slices.Equal(scores, first) {
			t.Errorf("order %d: the scores differ", seed)
		}
		last := f.now
		f.after(maxExponent * 5 * time.Second)
		r = f.read(1, callersQuestion{})
		if len(row.refs) != 0 || row.rest != nil || r.samples != 0 || !r.newest.Equal(last) {
			t.Errorf("when all of it is stale: %+v", r)
		}
	}
}

func TestCallersOfAServiceAreBounded(t *testing.T) {
	f := newCallersFleet(2)
	for k := range maxReporters + 100 {
		f.report(k, FromLibrary, outcome(1, 1, 0))
	}
	if n := len(f.table.reporters); n != maxReporters {
		t.Errorf("%d reporters are kept", n)
	}
	if r := f.read(1, callersQuestion{}); !near(r.samples, maxReporters+100) {
		t.Errorf("the others are not lost: %+v", r)
	}
}

// A pool that plainly counts does count: whoever asks why is told of as many
// reporters as the verdict was made of, though their medians were not worked out
// for it.
func TestCallersPoolsCountAsTheyAreShown(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newCallersFleet(rapid.IntRange(2, 6).Draw(rt, "instances"))
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		bad := rapid.SampledFrom([]int{0, 1, 3, 8}).Draw(rt, "bad") // of ten calls
		for k := range rapid.SampledFrom([]int{10, 40, 100}).Draw(rt, "reporters") {
			var entries []Outcome
			for uid := range f.instances {
				n := random.IntN(8)
				failed := 0
				for range n {
					if random.IntN(10) < bad {
						failed++
					}
				}
				entries = append(entries, outcome(uid, uint32(n-failed), uint32(failed)))
			}
			f.report(k, FromEnvoy, entries...)
		}
		f.table.settle(f.now, nil)
		for uid, i := range f.instances {
			for _, q := range []callersQuestion{{}, {trial: true}} {
				r := f.table.read(i, f.now, q)
				counting, against := 0, 0
				for _, s := range f.table.scores(i, f.now, q) {
					if s.Counts {
						counting++
					}
					if s.Against {
						against++
					}
				}
				if counting != r.counting || against != r.against {
					rt.Fatalf("instance %d, %+v: %d count and %d are against, read %+v", uid, q, counting, against, r)
				}
			}
		}
	})
}

// A column gives the lower median of all of its scores, and of all but one.
func TestCallersColumns(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		scores := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) float64 {
			return float64(rapid.IntRange(0, 12).Draw(rt, "score")) / 12
		}), 0, 40).Draw(rt, "scores")
		worst := 0.0
		for _, s := range scores {
			worst = max(worst, s)
		}
		column := columnOf(slices.Clone(scores), worst)
		if m, some := column.without(0.5, false); some != (len(scores) > 0) || some && m != lowerMedian(scores) {
			rt.Fatalf("of all: %v, %v", m, some)
		}
		for k, s := range scores {
			others := slices.Delete(slices.Clone(scores), k, k+1)
			if m, some := column.without(s, true); some != (len(others) > 0) || some && m != lowerMedian(others) {
				rt.Fatalf("without number %d: %v, %v, want %v", k, m, some, lowerMedian(others))
			}
		}
	})
}
