package health

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/registry"
)

// probed is an instance's probes on a timeline: seconds since the epoch.
type probed struct {
	t      *testing.T
	p      probes
	terms  probeTerms
	stance *Stance
	slow   bool // confirmation cadence
}

func newProbed(t *testing.T) *probed {
	return &probed{t: t, terms: termsOf(registry.Contract{}).probes}
}

func sec(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }

// say records one result of a prober that is called by its zone.
func (p *probed) say(at float64, zone string, r ProbeResult) {
	p.p.hear(&Sample{UID: 1, Class: registry.ClassProbe, At: sec(at), Prober: Prober{Name: "p-" + zone, Zone: zone}, Result: r}, &p.terms)
}

// run gives a result every 2 s, from the first second to the last, and reads at each.
func (p *probed) run(from, to float64, results map[string]ProbeResult) {
	for at := from; at <= to; at += 2 {
		for _, zone := range []string{"z1", "z2", "z3"} {
			if r := results[zone]; r != NoResult {
				p.say(at, zone, r)
			}
		}
		p.read(at)
	}
}

func (p *probed) read(at float64) probeReading {
	return p.p.read(sec(at), &p.terms, p.stance, p.slow)
}

func (p *probed) want(at float64, what string, got, want any) {
	p.t.Helper()
	if got != want {
		p.t.Errorf("at %vs: %s is %v, want %v", at, what, got, want)
	}
}

func (p *probed) wantOver(at float64, want bool) {
	p.t.Helper()
	p.want(at, "over", p.read(at).over, want)
}

type results = map[string]ProbeResult

var both = results{"z1": ProbeOK, "z2": ProbeOK}

func TestProbesOverTheLine(t *testing.T) {
	t.Run("third failure of both", func(t *testing.T) {
		for _, bad := range []ProbeResult{ProbeFailed, ProbeRefused, ProbeTimeout, ProbeUnreachable, ProbeWrongIdentity} {
			p := newProbed(t)
			p.run(0, 30, both)
			p.run(32, 34, results{"z1": bad, "z2": bad})
			p.wantOver(34, false)
			p.say(36, "z1", bad)
			p.wantOver(36, false)
			p.say(36, "z2", bad)
			p.wantOver(36, true)
			p.want(36, "good", p.read(36).good, false)
		}
	})
	t.Run("three failures are not enough below the score", func(t *testing.T) {
		p := newProbed(t)
		p.run(0, 30, both)
		for at := 32.0; at < 64; at += 8 { // one of four
			p.run(at, at, results{"z1": ProbeFailed, "z2": ProbeFailed})
			p.run(at+2, at+6, both)
			p.wantOver(at+6, false)
		}
	})
	t.Run("the score is not enough below three failures", func(t *testing.T) {
		p := newProbed(t)
		p.run(0, 2, results{"z1": ProbeFailed})
		got := p.read(2)
		p.want(2, "score", got.score, 1.0)
		p.want(2, "over", got.over, false)
	})
	t.Run("failures older than 40 s do not count", func(t *testing.T) {
		p := newProbed(t)
		p.slow = true
		for _, at := range []float64{0, 15, 41} {
			p.say(at, "z1", ProbeFailed)
		}
		p.wantOver(41, false)
		p.say(50, "z1", ProbeFailed)
		p.wantOver(50, true)
		got := p.read(54)
		p.want(54, "over", got.over, true)
		p.want(54, "next", got.next.Before(sec(55.01)) && got.next.After(sec(55)), true)
		p.wantOver(56, false)
	})
	t.Run("four intervals where they are longer", func(t *testing.T) {
		p := newProbed(t)
		p.terms.interval, p.terms.halfLife = 30*time.Second, time.Minute
		for _, at := range []float64{0, 60, 110} {
			p.say(at, "z1", ProbeTimeout)
		}
		p.wantOver(119, true)
		p.wantOver(121, false)
	})
}

func TestProbesDisagree(t *testing.T) {
	p := newProbed(t)
	p.run(0, 10, both)
	p.run(12, 30, results{"z1": ProbeTimeout, "z2": ProbeOK})
	got := p.read(30)
	p.want(30, "over", got.over, false)
	p.want(30, "disagree", got.disagree, sec(16)) // its third failure
	p.want(30, "anyBad", got.anyBad, true)
	p.want(30, "live", got.live, 2)
	// A third one decides, either way.
	p.run(32, 36, results{"z1": ProbeTimeout, "z2": ProbeOK, "z3": ProbeOK})
	p.wantOver(36, false)
	p.run(38, 60, results{"z1": ProbeTimeout, "z2": ProbeOK, "z3": ProbeTimeout})
	p.wantOver(60, true)
	p.want(60, "disagree", p.read(60).disagree, sec(16))
	p.run(62, 80, results{"z1": ProbeTimeout, "z2": ProbeTimeout, "z3": ProbeTimeout})
	p.want(80, "disagree", p.read(80).disagree, time.Time{})
}

func TestProbesSilence(t *testing.T) {
	t.Run("who is silent does not decide", func(t *testing.T) {
		p := newProbed(t)
		p.run(0, 10, both)
		p.run(12, 16, results{"z1": ProbeTimeout})
		got := p.read(16.9)
		p.want(16.9, "live", got.live, 2)
		p.want(16.9, "next", got.next, sec(17)) // 7 s after z2's last
		p.want(16.9, "over", got.over, false)
		got = p.read(17)
		p.want(17, "live", got.live, 1)
		p.want(17, "over", got.over, true)
		p.run(18, 18, results{"z1": ProbeTimeout})
		p.want(18, "silentAt", p.read(18).silentAt, sec(25))
		got = p.read(25)
		p.want(25, "over", got.over, false)
		p.want(25, "silentAt", got.silentAt, time.Time{})
		p.want(25, "next", got.next, time.Time{})
		p.want(25, "newest", got.newest, sec(18))
	})
	t.Run("31 s at the confirmation cadence", func(t *testing.T) {
		p := newProbed(t)
		p.slow = true
		p.say(0, "z1", ProbeOK)
		p.want(1, "silentAt", p.read(1).silentAt, sec(31))
		p.want(27, "live", p.read(27).live, 1)
		p.slow = false
		p.want(27, "live", p.read(27).live, 0)
		p.slow = true // what fell silent stays so until it speaks
		p.want(28, "live", p.read(28).live, 0)
		p.say(28.5, "z1", ProbeOK)
		p.want(29, "silentAt", p.read(29).silentAt, sec(59.5))
	})
	t.Run("three intervals and the timeout of the contract", func(t *testing.T) {
		p := newProbed(t)
		p.terms.interval, p.terms.timeout = 20*time.Second, 3*time.Second
		p.say(0, "z1", ProbeOK)
		for _, p.slow = range []bool{false, true} {
			p.want(1, "silentAt", p.read(1).silentAt, sec(63))
		}
	})
	t.Run("after an own gap silence is counted anew", func(t *testing.T) {
		p := newProbed(t)
		p.run(0, 20, both)
		p.p.gap(sec(100))
		got := p.read(100)
		p.want(100, "live", got.live, 2)
		p.want(100, "silentAt", got.silentAt, sec(107))
		p.want(107, "live", p.read(107).live, 0)
	})
}

func TestProbesReturn(t *testing.T) {
	t.Run("a run of good", func(t *testing.T) {
		p := newProbed(t)
		p.run(0, 20, results{"z1": ProbeTimeout, "z2": ProbeTimeout})
		p.run(22, 60, both)
		got := p.read(60)
		p.want(60, "good", got.good, true)
		// The score halves every 8 s: in line 26 s after the last failure.
		p.want(60, "goodSince", got.goodSince, sec(46))
		p.say(62, "z2", ProbeTimeout)
		p.want(62, "goodSince", p.read(62).goodSince, time.Time{})
	})
	t.Run("broken by silence", func(t *testing.T) {
		p := newProbed(t)
		p.run(0, 20, both)
		p.want(20, "goodSince", p.read(20).goodSince, sec(0))
		p.read(27)
		p.run(40, 50, both)
		p.want(50, "goodSince", p.read(50).goodSince, sec(40))
	})
	t.Run("broken by silence that nobody read", func(t *testing.T) {
		p := newProbed(t)
		p.run(0, 20, both)
		p.run(40, 50, both)
		p.want(50, "goodSince", p.read(50).goodSince, sec(40))
	})
	t.Run("broken by an own gap", func(t *testing.T) {
		p := newProbed(t)
		p.run(0, 20, both)
		p.p.gap(sec(25))
		p.want(25, "goodSince", p.read(25).goodSince, time.Time{})
		p.want(25, "good", p.read(25).good, true)
		p.run(26, 30, both)
		p.want(30, "goodSince", p.read(30).goodSince, sec(26))
	})
	t.Run("one prober falls silent", func(t *testing.T) {
		p := newProbed(t)
		p.run(0, 20, both)
		p.run(22, 50, results{"z1": ProbeOK})
		got := p.read(50)
		p.want(50, "live", got.live, 1)
		p.want(50, "goodSince", got.goodSince, sec(0))
	})
	t.Run("cleared", func(t *testing.T) {
		p := newProbed(t)
		p.run(0, 20, both)
		p.p.clear()
		p.want(20, "reading", fmt.Sprint(p.read(20)), fmt.Sprint(probeReading{}))
		p.run(22, 24, both)
		p.want(24, "goodSince", p.read(24).goodSince, sec(22))
	})
}

func TestProbesRefused(t *testing.T) {
	p := newProbed(t)
	p.run(0, 10, both)
	p.run(12, 12, results{"z1": ProbeRefused, "z2": ProbeRefused})
	p.want(12, "refusedBy", p.read(12).refusedBy, 2)
	p.say(14, "z1", ProbeTimeout)
	p.want(14, "refusedBy", p.read(14).refusedBy, 1)
	p.want(21, "refusedBy", p.read(21).refusedBy, 0) // silent
}

func TestProbesBlind(t *testing.T) {
	p := newProbed(t)
	p.run(0, 10, both)
	p.run(12, 16, results{"z1": ProbeTimeout, "z2": ProbeOK})
	p.stance = &Stance{Blind: map[string]bool{"p-z1": true}}
	p.run(18, 30, results{"z1": ProbeTimeout, "z2": ProbeOK})
	got := p.read(30)
	p.want(30, "live", got.live, 1)
	p.want(30, "good", got.good, true)
	p.want(30, "disagree", got.disagree, time.Time{})
	scores := p.p.scores(sec(30), &p.terms, p.stance)
	p.want(30, "scores", len(scores) == 2 && scores[0].Blind && !scores[0].Live && scores[0].Over && scores[1].Live && scores[1].Score == 0, true)

	// It was right: what it said stands.
	right := *p
	right.p.slots = slices.Clone(p.p.slots)
	right.stance = nil
	right.want(30, "samples stand", right.read(30).anyBad, true)
	right.want(30, "live", right.read(30).live, 2)

	// It sees again: what it said stays silence, late words of then included.
	p.stance = &Stance{Silenced: map[string]time.Time{"p-z1": sec(31)}}
	p.say(30.5, "z1", ProbeTimeout)
	p.want(31, "live", p.read(31).live, 1)
	p.say(32, "z1", ProbeOK)
	got = p.read(32)
	p.want(32, "live", got.live, 2)
	p.want(32, "score", got.score, 0.0)
	p.say(30.8, "z1", ProbeTimeout)
	got = p.read(32.5)
	p.want(32.5, "score", got.score, 0.0)
	p.run(34, 36, results{"z1": ProbeTimeout, "z2": ProbeTimeout})
	p.wantOver(36, false) // it takes three again
	p.run(38, 38, results{"z1": ProbeTimeout, "z2": ProbeTimeout})
	p.wantOver(38, true)
}

func TestProbesAreBounded(t *testing.T) {
	p := newProbed(t)
	for k := range 10 {
		p.say(float64(k), fmt.Sprintf("z%d", k), ProbeOK)
	}
	p.say(5, "z0", ProbeFailed) // older than all that are kept
	got := p.read(9)
	p.want(9, "kept", len(p.p.slots), maxProbers)
	p.want(9, "oldest kept", p.p.slots[0].prober.Zone, "z6")
	p.want(9, "anyBad", got.anyBad, false)
	p.read(9 + 5*60)
	p.want(309, "kept", len(p.p.slots), 1)
}

// What probes say depends on the samples, not on the order in which those of
// one tick came.
func TestProbesOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		terms := termsOf(registry.Contract{}).probes
		var a, b probes
		stance := &Stance{}
		now := epoch
		slow := false
		for range rapid.IntRange(1, 40).Draw(rt, "ticks") {
			now = now.Add(time.Duration(rapid.IntRange(1, 16).Draw(rt, "quarters")) * tick)
			var batch []Sample
			for range rapid.IntRange(0, 6).Draw(rt, "samples") {
				zone := rapid.SampledFrom([]string{"z1", "z2", "z3"}).Draw(rt, "zone")
				batch = append(batch, Sample{
					At:     now.Add(-time.Duration(rapid.IntRange(0, 40).Draw(rt, "age")) * 100 * time.Millisecond),
					Prober: Prober{Name: "p-" + zone, Zone: zone},
					Result: rapid.SampledFrom([]ProbeResult{ProbeOK, ProbeOK, ProbeTimeout, ProbeRefused, ProbeFailed}).Draw(rt, "result"),
				})
			}
			for k := range batch {
				a.hear(&batch[k], &terms)
			}
			batch = rapid.Permutation(batch).Draw(rt, "order")
			for k := range batch {
				b.hear(&batch[k], &terms)
			}
			switch rapid.IntRange(0, 12).Draw(rt, "event") {
			case 0:
				slow = !slow
			case 1:
				a.gap(now)
				b.gap(now)
			case 2:
				stance = &Stance{Blind: map[string]bool{"p-z1": true}}
			case 3:
				stance = &Stance{Silenced: map[string]time.Time{"p-z1": now.Add(-time.Second)}}
			}
			x, y := a.read(now, &terms, stance, slow), b.read(now, &terms, stance, slow)
			if math.Abs(x.score-y.score) > 1e-9 || math.Abs(x.samples-y.samples) > 1e-9 {
				rt.Fatalf("scores %v and %v of %v and %v samples", x.score, y.score, x.samples, y.samples)
			}
			x.score, x.samples = y.score, y.samples
			if x != y {
				rt.Fatalf("one order says %+v, another %+v", x, y)
			}
			if x.over && x.good || x.good && x.live == 0 || x.over && x.live == 0 || !x.goodSince.IsZero() && !x.good {
				rt.Fatalf("contradiction: %+v", x)
			}
		}
	})
}

// A reading costs no allocation: every instance is read twice a second or more.
func TestProbesAllocateNothing(t *testing.T) {
	p := newProbed(t)
	p.run(0, 20, both)
	at := 20.0
	got := testing.AllocsPerRun(100, func() {
		at += 2
		p.say(at, "z1", ProbeOK)
		p.say(at, "z2", ProbeTimeout)
		p.read(at)
	})
	if got > 2 { // the names that this test makes
		t.Errorf("%v allocations a sample and reading", got)
	}
}
