package main

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		of   []float64
		want float64
	}{{[]float64{4}, 4}, {[]float64{9, 1, 5}, 5}, {[]float64{1, 2, 3, 10}, 2.5}} {
		if got := median(c.of); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.of, got, c.want)
		}
	}
	if !math.IsNaN(median(nil)) {
		t.Error("nothing has a median")
	}
}

func TestRatioIsTheMedianOfTheRounds(t *testing.T) {
	// The third round met a busy machine: both sides cost three times as much.
	got, ok := medianRatio([]float64{11, 12, 36}, []float64{10, 10, 30})
	if !ok || got != 1.2 {
		t.Errorf("ratio %v, %v", got, ok)
	}
	if got, ok := medianRatio([]float64{1, 3}, []float64{0, 2}); !ok || got != 1.5 {
		t.Errorf("a round without a baseline counts: %v, %v", got, ok)
	}
	if _, ok := medianRatio([]float64{1}, []float64{0}); ok {
		t.Error("there is a ratio to zero")
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, c := range []struct {
		p    float64
		want time.Duration
	}{{0, 1}, {50, 50}, {99, 99}, {99.9, 100}, {100, 100}} {
		if got := percentile(hundred, c.p); got != c.want {
			t.Errorf("p%v of 1..100 is %d, want %d", c.p, got, c.want)
		}
	}
	if percentile(nil, 50) != 0 {
		t.Error("nothing has a percentile")
	}
}

func TestPercentileIsTheLeastThatEnoughDoNotExceed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 1000), func(n int) time.Duration { return time.Duration(n) }), 1, 200).Draw(t, "values")
		p := rapid.Float64Range(0.1, 100).Draw(t, "p")
		slices.Sort(of)
		got := percentile(of, p)
		within := func(limit time.Duration) (n int) {
			for _, v := range of {
				if v <= limit {
					n++
				}
			}
			return n
		}
		need := p / 100 * float64(len(of))
		if float64(within(got)) < need {
			t.Fatalf("only %d of %d are within p%v = %d", within(got), len(of), p, got)
		}
		if float64(within(got-1)) >= need {
			t.Fatalf("p%v = %d is more than it has to be", p, got)
		}
	})
}

func TestRoundKeepsFourDigits(t *testing.T) {
	for v, want := range map[float64]float64{
		1.23456: 1.235, 123456: 123500, 0.000123456: 0.0001235, 0: 0, -1.23456: -1.235, math.Inf(1): 0,
	} {
		if got := round(v); math.Abs(got-want) > math.Abs(want)*1e-12 {
			t.Errorf("round(%v) = %v, want %v", v, got, want)
		}
	}
	if round(math.NaN()) != 0 {
		t.Error("a line with NaN is not JSON")
	}
}

func TestScheduleVisitsEveryServiceBeforeAnyTwice(t *testing.T) {
	for _, services := range []int{1, 2, 7, 450} {
		changes := schedule(5, 2*services, services)
		for from := 0; from+services <= len(changes); from += services {
			seen := make(map[int]bool)
			for i, c := range changes[from : from+services] {
				if c.Number != 5+from+i {
					t.Fatalf("change %d has number %d", from+i, c.Number)
				}
				seen[c.Service] = true
			}
			if len(seen) != services {
				t.Errorf("%d changes of %d services reach %d of them", services, services, len(seen))
			}
		}
	}
}

// Two streams of two subscriptions each over two services: every change is two
// updates.
func TestAccountCountsLateAndLost(t *testing.T) {
	l := load{services: 2, streams: 2, each: 2}
	changes := []change{{Service: 0, Number: 1}, {Service: 1, Number: 2}, {Service: 0, Number: 3}}
	at := []int64{0, 1000, 2000}
	took := func(d time.Duration) int64 { return int64(d) }
	got := account(changes, at, []delivery{
		{Stream: 0, Service: 0, Number: 1, At: took(time.Millisecond)},
		{Stream: 0, Service: 1, Number: 2, At: 1000 + took(3*time.Millisecond)},
		{Stream: 0, Service: 0, Number: 3, At: 2000 + took(lateAfter+1)}, // late
		{Stream: 1, Service: 0, Number: 3, At: 2000 + took(2*time.Millisecond)},
		// Stream 1 missed change 1, which change 3 made good, and lost change 2.
		{Stream: 1, Service: 1, Number: 77, At: 5}, // of another turn
	}, l)
	if got.expected != 6 || got.delivered != 4 || got.late != 1 || got.lost != 1 {
		t.Errorf("expected %d delivered %d late %d lost %d, want 6 4 1 1", got.expected, got.delivered, got.late, got.lost)
	}
	if !slices.IsSorted(got.latencies) || percentile(got.latencies, 50) != 2*time.Millisecond {
		t.Errorf("latencies %v", got.latencies)
	}
	got.cpu = 200 * time.Microsecond
	if got.perDelivery() != 50 {
		t.Errorf("%v us a delivery, want 50", got.perDelivery())
	}
}

func TestShortfallIsBelowNineTenths(t *testing.T) {
	side := func(delivered int) []*pair {
		return []*pair{{name: "x", turns: []turn{{expected: 100, delivered: 100}, {expected: 100, delivered: delivered}}}}
	}
	if err := shortfall(side(90)); err != nil {
		t.Error(err)
	}
	if shortfall(side(89)) == nil {
		t.Error("89 of 100 are enough")
	}
}
