package health

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// One sample must cost the same in a service of ten thousand as in one of ten
// (STORE.md §6).
func BenchmarkJudgeOneSample(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e := New(scenarioName, epoch, Memory{})
			e.Apply(epoch, fleet(n, 25*time.Second, registry.ClassSet(0).With(registry.ClassSelf)))
			now := epoch.Add(time.Second)
			for uid := registry.UID(1); uid <= registry.UID(n); uid++ {
				e.Renew(now, uid)
				e.Observe(now, []Sample{selfSample(uid, Serving, now)})
			}
			e.Judge(now)
			batch := make([]Sample, 1)
			b.ReportAllocs()
			k := 0
			for b.Loop() {
				k++
				now = now.Add(time.Microsecond)
				batch[0] = selfSample(registry.UID(k%n+1), Serving, now)
				e.Observe(now, batch)
				e.Judge(now)
			}
		})
	}
}

func BenchmarkJudgeFullRound(b *testing.B) {
	const n = 10_000
	e := New(scenarioName, epoch, Memory{})
	e.Apply(epoch, fleet(n, 25*time.Second, registry.ClassSet(0).With(registry.ClassSelf)))
	now := epoch.Add(time.Second)
	batch := make([]Sample, n)
	for b.Loop() {
		now = now.Add(2 * time.Second)
		for k := range batch {
			batch[k] = selfSample(registry.UID(k+1), Serving, now)
		}
		e.Observe(now, batch)
		e.Judge(now)
	}
}

// A service of the usual size, all of whose callers report every 2 s: what one
// tick costs, and that judging whom nothing changed for allocates nothing.
func BenchmarkTickWithCallers(b *testing.B) {
	const n, callers = 133, 40
	e := New(scenarioName, epoch, Memory{})
	e.Load(fleet(n, 0, registry.AllClasses))
	parts := reporters(callers)
	entries := make([]Outcome, n)
	for k := range entries {
		entries[k] = Outcome{UID: registry.UID(k + 1), Issued: 5, OK: 5}
	}
	now, next := epoch, 0
	step := func() {
		now = now.Add(tick)
		for range callers / 8 {
			c := parts[next%callers]
			next++
			e.ObserveOutcomes(now, &Outcomes{Reporter: c.who, Kind: c.kind, At: now, Interval: reportEvery, Entries: entries})
		}
		e.Judge(now)
	}
	for range 400 {
		step()
	}
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
}
