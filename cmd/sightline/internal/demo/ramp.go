package demo

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"math"
	"strings"
	"time"

	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

const (
	rampTolerance = 0.20 // of a caller's share against the published weight
	rampCalls     = 300  // expected at the ramping instance per step, at least
	rampSettles   = 1500 * time.Millisecond
)

// step is a stretch of time in which weights stood still.
type step struct {
	weight, total uint32
	from          map[string]map[string]int // answered, by caller and instance
}

// ramp starts one more instance and compares what each caller gives it with its
// published weight, step by step.
func (d *director) ramp(ctx context.Context) error {
	callers := []string{grpcName(0)}
	if d.cfg.Envoy != "" {
		callers = append(callers, "envoy")
	}
	if _, err := d.until(ctx, 3*time.Minute, "the ramp of the start to end", func(v *viewv1.View) bool {
		for _, m := range v.GetMembers() {
			if m.GetWeight() != m.GetBaseWeight() {
				return false
			}
		}
		return listedIn(v) == d.cast.services[0].instances
	}); err != nil {
		return err
	}
	at := place{0, d.cast.services[0].instances}
	name := d.label(at)
	conns := make(map[string]int)
	for _, p := range d.cast.seats() {
		for _, c := range callers {
			conns[d.label(p)+" "+c] = d.ledger.connections(d.label(p), c)
		}
	}
	if err := d.startInstance(at, ""); err != nil {
		return err
	}
	d.say("ramp", "%s starts beside %d others; weights and shares of the calls by step:", name, at.index)
	steps, err := d.climb(ctx, name, callers)
	if err != nil {
		return err
	}
	d.check(steps >= 7, "%d steps to full weight", steps)
	again := 0
	for _, p := range d.cast.seats() {
		for _, c := range callers {
			again += d.ledger.connections(d.label(p), c) - conns[d.label(p)+" "+c]
		}
	}
	d.check(again == 0, "no caller reconnected to the others %s", countIf(again, "new connections"))
	d.cast.services[0].instances++ // from here on it belongs to the service
	return nil
}

// climb follows an instance to its full weight and returns how many steps it
// measured.
func (d *director) climb(ctx context.Context, name string, callers []string) (steps int, err error) {
	var now *step
	for end := time.Now().Add(4 * time.Minute); ; wait(ctx, pollEvery) {
		if ctx.Err() != nil {
			return steps, ctx.Err()
		}
		v, err := d.resolve(ctx, d.cast.services[0].name)
		if err != nil {
			return steps, err
		}
		m, total := member(v, name), uint32(0)
		for _, o := range v.GetMembers() {
			if o.GetListed() {
				total += o.GetWeight()
			}
		}
		moved := m.GetListed() && (now == nil || m.GetWeight() != now.weight || total != now.total)
		full := now != nil && now.weight == m.GetBaseWeight()
		if now != nil && (moved || full && d.enough(now, name, callers)) {
			d.measure(now, name, callers)
			steps++
		}
		switch {
		case full && !moved && d.enough(now, name, callers):
			return steps, nil
		case moved:
			wait(ctx, rampSettles) // until every caller has it
			now = &step{weight: m.GetWeight(), total: total, from: d.answeredBy(callers)}
		case time.Now().After(end):
			return steps, fmt.Errorf("waited 4 minutes for the ramp of %s to end", name)
		}
	}
}

func (d *director) answeredBy(callers []string) map[string]map[string]int {
	out := make(map[string]map[string]int)
	for _, c := range callers {
		out[c] = d.ledger.answered(c)
	}
	return out
}

// calls counts what one caller was answered since the step began.
func (d *director) calls(s *step, name, caller string) (here, all int) {
	for instance, n := range d.ledger.answered(caller) {
		delta := n - s.from[caller][instance]
		all += delta
		if instance == name {
			here = delta
		}
	}
	return here, all
}

// enough says that every caller made so many calls that shares mean something.
func (d *director) enough(s *step, name string, callers []string) bool {
	for _, c := range callers {
		if _, all := d.calls(s, name, c); float64(all)*float64(s.weight)/float64(s.total) < 4*rampCalls {
			return false
		}
	}
	return true
}

// measure compares a step's shares with the weight. It runs a moment after the
// weight moved: the newest counts are a quarter of a second old at most, and the
// step is tens of seconds long.
func (d *director) measure(s *step, name string, callers []string) {
	want := float64(s.weight) / float64(s.total)
	var parts []string
	good := true
	for _, c := range callers {
		here, all := d.calls(s, name, c)
		got := float64(here) / math.Max(float64(all), 1)
		good = good && math.Abs(got-want) <= rampTolerance*want && float64(all)*want >= rampCalls
		parts = append(parts, fmt.Sprintf("%s %.1f %% of %d", c, 100*got, all))
	}
	d.check(good, "weight %3d of %d: %.1f %% expected, %s", s.weight, s.total, 100*want, strings.Join(parts, ", "))
}

// lines yields the lines of a text.
func lines(r io.Reader) iter.Seq[string] {
	return func(yield func(string) bool) {
		for s := bufio.NewScanner(r); s.Scan(); {
			if !yield(s.Text()) {
				return
			}
		}
	}
}
