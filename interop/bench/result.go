package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// line is one result as it is printed. Ratio is ours over the baseline, both of
// them costs: lower is better. It is null where there is no baseline, or where
// the baseline is zero.
type line struct {
	Bench        string   `json:"bench"`
	Metric       string   `json:"metric"`
	Unit         string   `json:"unit"`
	Ours         float64  `json:"ours"`
	Baseline     *float64 `json:"baseline"`
	BaselineName *string  `json:"baseline_name"`
	Ratio        *float64 `json:"ratio"`
	Rounds       int      `json:"rounds"`
	Short        bool     `json:"short"`
}

// report prints a benchmark's progress and results.
type report struct {
	bench       string
	short, json bool
	out         io.Writer
	progress    io.Writer
	began       time.Time
}

// say writes a line of progress.
func (r *report) say(format string, args ...any) {
	fmt.Fprintf(r.progress, "%6.1fs %s: %s\n", time.Since(r.began).Seconds(), r.bench, fmt.Sprintf(format, args...))
}

// alone prints a metric without a baseline, measured once a round.
func (r *report) alone(metric, unit string, ours []float64) {
	r.print(line{Metric: metric, Unit: unit, Ours: round(median(ours)), Rounds: len(ours)})
}

// against prints a metric with a baseline. Both were measured once a round; the
// ratio is the median of the rounds' ratios, since what disturbs a machine
// disturbs both sides of a round alike.
func (r *report) against(metric, unit string, ours []float64, name string, baseline []float64) {
	b := round(median(baseline))
	l := line{Metric: metric, Unit: unit, Ours: round(median(ours)), Baseline: &b, BaselineName: &name, Rounds: len(ours)}
	if ratio, ok := medianRatio(ours, baseline); ok {
		ratio = round(ratio)
		l.Ratio = &ratio
	}
	r.print(l)
}

func (r *report) print(l line) {
	l.Bench, l.Short = r.bench, r.short
	if r.json {
		b, err := json.Marshal(l)
		if err != nil {
			panic(err) // numbers that are no numbers: round lets none through
		}
		fmt.Fprintf(r.out, "%s\n", b)
		return
	}
	against := ""
	if l.Baseline != nil {
		against = fmt.Sprintf("  %s %g", *l.BaselineName, *l.Baseline)
	}
	if l.Ratio != nil {
		against += fmt.Sprintf("  ratio %g", *l.Ratio)
	}
	fmt.Fprintf(r.out, "%-16s %-18s %10g %-5s%s\n", l.Bench, l.Metric, l.Ours, l.Unit, against)
}

// median returns the middle value, or the mean of the two in the middle; NaN of
// nothing.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// medianRatio is the median of the rounds' ratios. Rounds whose baseline is zero
// say nothing; ok is false when none is left.
func medianRatio(ours, baseline []float64) (ratio float64, ok bool) {
	var ratios []float64
	for i := range min(len(ours), len(baseline)) {
		if baseline[i] > 0 {
			ratios = append(ratios, ours[i]/baseline[i])
		}
	}
	return median(ratios), len(ratios) > 0
}

// percentile returns the smallest value that at least p percent of the sorted
// values do not exceed; zero of nothing.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// round keeps four digits, which is more than any of this can tell apart.
func round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	scale := math.Pow(10, 4-math.Ceil(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
