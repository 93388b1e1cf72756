package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

type settings struct {
	run   string
	list  bool
	json  bool
	seeds int
	first uint64
	days  float64
}

// command runs the command line and returns the exit code.
func command(args []string, stdout, stderr io.Writer) int {
	var s settings
	f := flag.NewFlagSet("sim", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&s.run, "run", "", "rows to run, several separated by commas, the beginning of a name for all of its kind, or all")
	f.BoolVar(&s.list, "list", false, "list the rows")
	f.BoolVar(&s.json, "json", false, "print JSON lines instead of text")
	f.IntVar(&s.seeds, "seeds", 0, "runs of each row (0: the row's own number)")
	f.Uint64Var(&s.first, "first-seed", 1, "seed of the first run")
	f.Float64Var(&s.days, "days", 1, "simulated days of a background run")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitOK
	} else if err != nil {
		return exitUsage
	}
	list := append(rows(), fuzzRow())
	if s.list {
		for _, r := range list {
			fmt.Fprintf(stdout, "%-24s %s\n", r.name, r.about)
		}
		return exitOK
	}
	chosen, err := choose(list, s.run)
	if err == nil && (f.NArg() > 0 || s.seeds < 0 || !(s.days > 0)) {
		err = errors.New("no arguments are taken, -seeds is not negative, and -days is above 0")
	}
	if err != nil {
		fmt.Fprintf(stderr, "sim: %v\n", err)
		return exitUsage
	}
	code := exitOK
	for _, r := range chosen {
		result := r.simulate(s, stderr)
		result.print(stdout, s.json)
		if len(result.Missed) > 0 {
			code = exitFailed
		}
	}
	return code
}

func choose(list []row, names string) ([]row, error) {
	if names == "all" {
		return list, nil
	}
	var chosen []row
	for name := range strings.SplitSeq(names, ",") {
		found := false
		for _, r := range list {
			if name != "" && strings.HasPrefix(r.name, name) {
				chosen, found = append(chosen, r), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no row %q: -list shows them, -run takes one", name)
		}
	}
	return chosen, nil
}

// result is what the runs of one row came to. Times are in seconds; a quantile
// of nothing is absent.
type result struct {
	Row       string   `json:"row"`
	Runs      int      `json:"runs"`
	Simulated string   `json:"simulated"` // of each run
	Path      string   `json:"path,omitempty"`
	Faults    int      `json:"faults"`
	Found     int      `json:"found"`
	P50       *float64 `json:"p50_s,omitempty"` // from the fault to the published withdrawal
	P90       *float64 `json:"p90_s,omitempty"`
	P99       *float64 `json:"p99_s,omitempty"`
	Damping   *float64 `json:"damping_p99_s,omitempty"` // from when reports since the fault would have sufficed to the published withdrawal
	Publish   *float64 `json:"publish_p99_s,omitempty"` // from the verdict to the published withdrawal
	Hard      *float64 `json:"hard_p99_s,omitempty"`    // from when the fault was certain to the published withdrawal
	False     int      `json:"false_verdicts"`
	PerDay    float64  `json:"false_verdicts_per_day"`
	Missed    []string `json:"missed,omitempty"` // what did not hold, by seed

	took time.Duration
}

// simulate runs a row with each seed, on all cores.
func (r row) simulate(s settings, progress io.Writer) result {
	began := time.Now()
	n, lasts := r.seeds, r.lasts
	if s.seeds > 0 {
		n = s.seeds
	}
	if lasts == 0 {
		lasts = time.Duration(s.days * float64(24*time.Hour))
	}
	worlds := make([]*world, n)
	missed := make([][]string, n)
	turns := make(chan int)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for k := range turns {
				w := r.build(s.first + uint64(k))
				w.run(lasts)
				missed[k] = r.judge(w)
				worlds[k] = w
			}
		})
	}
	for k := range n {
		turns <- k
	}
	close(turns)
	wg.Wait()
	out := result{Row: r.name, Runs: n, Simulated: lasts.String(), took: time.Since(began)}
	for k, m := range missed {
		for _, text := range m {
			out.Missed = append(out.Missed, fmt.Sprintf("seed %d: %s", s.first+uint64(k), text))
		}
	}
	out.measure(r, worlds, lasts)
	fmt.Fprintf(progress, "%6.1fs %s\n", out.took.Seconds(), r.name)
	return out
}

func (o *result) measure(r row, worlds []*world, lasts time.Duration) {
	var found, damped, published, hard []float64
	for _, w := range worlds {
		o.False += len(w.seen.wrong)
		o.Faults += len(w.seen.detections)
		for _, d := range w.seen.detections {
			if d.published.IsZero() {
				continue
			}
			o.Found++
			found = append(found, d.published.Sub(d.fault).Seconds())
			published = append(published, d.published.Sub(d.verdict).Seconds())
			if !d.hard.IsZero() {
				hard = append(hard, max(0, d.published.Sub(d.hard).Seconds()))
			}
			if !d.provable.IsZero() {
				damped = append(damped, max(0, d.published.Sub(d.provable).Seconds()))
			}
		}
	}
	o.PerDay = float64(o.False) / (float64(len(worlds)) * lasts.Hours() / 24)
	o.P50, o.P99, o.Damping, o.Publish = quantile(found, 0.5), quantile(found, 0.99), quantile(damped, 0.99), quantile(published, 0.99)
	o.Hard = quantile(hard, 0.99)
	if r.bar == 0 {
		return
	}
	if o.Path = "soft"; r.hard {
		o.Path = "hard"
	}
	over := func(what string, got *float64, bar float64) {
		if got != nil && *got > bar {
			o.Missed = append(o.Missed, fmt.Sprintf("%s took %.2f s, the bar is %g s", what, *got, bar))
		}
	}
	if r.most {
		o.P90 = quantile(found, 0.9)
		over("nine of ten detections", o.P90, r.bar.Seconds())
	} else {
		over("99 of 100 detections", o.P99, r.bar.Seconds())
	}
	if r.damped {
		over("99 of 100 added dampings", o.Damping, 5)
	}
	over("99 of 100 publications", o.Publish, 1)
	if r.hard {
		over("99 of 100 certain faults", o.Hard, 1)
	}
}

func quantile(values []float64, q float64) *float64 {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	v := values[min(len(values)-1, max(0, int(math.Ceil(q*float64(len(values))))-1))]
	return &v
}

func (o *result) print(out io.Writer, asJSON bool) {
	if asJSON {
		b, err := json.Marshal(o)
		if err != nil {
			panic(err) // strings and finite numbers
		}
		fmt.Fprintf(out, "%s\n", b)
		return
	}
	text := fmt.Sprintf("%-24s %3d x %-8s", o.Row, o.Runs, o.Simulated)
	if o.Faults > 0 {
		text += fmt.Sprintf("  found %d of %d", o.Found, o.Faults)
	}
	for _, q := range []struct {
		name string
		v    *float64
	}{{"p50", o.P50}, {"p90", o.P90}, {"p99", o.P99}, {"damping", o.Damping}, {"publish", o.Publish}, {"hard", o.Hard}} {
		if q.v != nil {
			text += fmt.Sprintf("  %s %.2fs", q.name, *q.v)
		}
	}
	text += fmt.Sprintf("  false %d", o.False)
	verdict := "ok"
	if len(o.Missed) > 0 {
		verdict = "MISSED"
	}
	fmt.Fprintf(out, "%s  %s\n", text, verdict)
	for _, m := range o.Missed[:min(8, len(o.Missed))] {
		fmt.Fprintf(out, "    %s\n", m)
	}
	if n := len(o.Missed) - 8; n > 0 {
		fmt.Fprintf(out, "    and %d more\n", n)
	}
}
