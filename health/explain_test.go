package health

import (
	"slices"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// explained is what Explain says of one instance of a scenario.
func explained(t *testing.T, s *scenario, uid registry.UID) Explanation {
	t.Helper()
	all := s.e.Explain(s.now)
	k := slices.IndexFunc(all, func(x Explanation) bool { return x.Verdict.UID == uid })
	if k < 0 {
		t.Fatalf("%s is not explained", uid)
	}
	return all[k]
}

// What probers and callers say, with their lines, and when a withdrawal on
// callers' word ends.
func TestExplainGivesProbersAndCallers(t *testing.T) {
	s := newScenario()
	s.do(t, "contract ramp=none", "add i1-i4 zone=z1 supplies=probe,callers", "probers p1@z1 p2@z2",
		"callers r1-r5 rate=4", "run 80s", "probe i2 FAILED by=p1", "run 14s", "errors i1 60%", "run 6s")
	x := explained(t, s, 1)
	c := x.Callers
	if c == nil || c.Out != 0.20 || c.In != 0.05 || c.HalfLife != 4*time.Second || c.Score < 0.2 || c.Counting != 5 ||
		c.Against < 3 || !c.Over || len(c.Reporters) != 5 || c.Omitted != 0 {
		t.Fatalf("callers of i1: %+v", c)
	}
	if r := c.Reporters[0]; !r.Against || !r.Counts || r.Score < 0.2 || r.Reporter.Identity.IsZero() || r.Kind != FromLibrary {
		t.Errorf("first reporter: %+v", r)
	}
	h := x.Holds
	if len(h) != 1 || h[0].Rule != R4 || !h[0].Trial || !h[0].Until.Equal(h[0].Since.Add(15*time.Second)) || h[0].Detail == "" {
		t.Errorf("holds: %+v", h)
	}
	if out := s.e.CallersThird(); out.Out != 1 || out.Most != 1 || out.Members != 4 || out.Kept != nil {
		t.Errorf("third: %+v", out)
	}
	p := explained(t, s, 2).Probe
	if p == nil || p.Out != 0.40 || p.In != 0.10 || p.HalfLife != 8*time.Second || p.Live != 2 || p.Disagree.IsZero() ||
		len(p.Probers) != 2 || p.Probers[0].Result != ProbeFailed || p.Probers[1].Result != ProbeOK || p.Confirming {
		t.Errorf("probes of i2: %+v", p)
	}
	if x := explained(t, s, 3); x.Callers == nil || x.Callers.Over || !x.Callers.Good || x.Callers.GoodSince.IsZero() || !x.Probe.Confirming || x.Ramp != nil {
		t.Errorf("i3: %+v %+v", x.Callers, x.Probe)
	}
}

// The dampers of one instance: ramp, quarantine, what waits, and an admission
// that is tried again.
func TestExplainGivesTheDampers(t *testing.T) {
	s := newScenario()
	s.do(t, "load i1-i3 zone=z1 supplies=probe,self", "keep SERVING i1-i3 every=2s", "probers p1@z1 p2@z2", "run 5s",
		"add i4 zone=z1 supplies=probe", "run 15s")
	r := explained(t, s, 4).Ramp
	if r == nil || r.Percent != 25 || r.Step != 2 || r.Steps != 7 || r.HeldBy != "" || r.Trial || !r.First ||
		!r.Next.Equal(r.Since.Add(20*time.Second)) || !r.Ends.Equal(r.Since.Add(time.Minute)) {
		t.Fatalf("ramp: %+v", r)
	}
	s.do(t, "probe i4 FAILED", "run 10s")
	if y := explained(t, s, 4).Retry; y == nil || y.Rule != R5 || y.Times != 1 || !y.Again.Equal(y.Since.Add(30*time.Second)) || y.Detail == "" {
		t.Errorf("retry: %+v", y)
	}
	for range 3 {
		s.do(t, "keep NOT_SERVING i1 every=2s", "run 4s", "keep SERVING i1 every=2s", "run 20s")
	}
	q := explained(t, s, 1).Quarantine
	if q.Since.IsZero() || !q.Until.Equal(q.Since.Add(time.Minute)) || q.Changes != 5 || q.Window != 10*time.Minute ||
		q.NextHold != 2*time.Minute || len(q.Flaps) != 6 || q.Flaps[0].Serving || q.Flaps[0].Rule != R2 || !q.Flaps[5].Serving {
		t.Errorf("quarantine: %+v", q)
	}
	if held := explained(t, s, 1).Ramp; held == nil || held.HeldBy != rampHolds[heldByQuarantine] || held.First {
		t.Errorf("ramp in quarantine: %+v", held)
	}
	s.do(t, "stance braked", "probe i2 FAILED", "run 10s")
	if w := explained(t, s, 2).Waits; w == nil || w.What != WaitsBrake || w.Rule != R5 || w.Since.IsZero() || w.Detail == "" {
		t.Errorf("waits: %+v", w)
	}
}

func TestExplainGivesDependencies(t *testing.T) {
	s := newScenario()
	s.do(t, "contract deps=db:shared,log:info", "load i1 supplies=self", "keep SERVING i1 every=2s degraded=db,log,mail", "run 5s")
	want := []DependencyEffect{
		{Name: "db", Declared: true, Shared: true, Weight: 50, Degraded: true, Applies: true},
		{Name: "log", Declared: true, Authority: registry.Informational, Weight: 50, Degraded: true},
		{Name: "mail", Weight: 50, Degraded: true, Applies: true},
	}
	if got := explained(t, s, 1).Dependencies; !slices.Equal(got, want) {
		t.Errorf("got %+v", got)
	}
}
