package probe_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health/probe"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// many are n targets of an own address each, all refusing.
func many(n int, edit ...func(*healthv1.Target)) (out []*healthv1.Target) {
	for i := range n {
		out = append(out, target(fmt.Sprintf("i%d", i), fmt.Sprintf("10.1.%d.%d:80", i/250, i%250+1), edit...))
	}
	return out
}

// TestCadence: each target is asked at its interval, first within one interval,
// never in step with the others, and differently by two probers.
func TestCadence(t *testing.T) {
	const n = 200
	phases := map[string][]time.Duration{}
	for _, name := range []string{"p1", "p2"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.plane.assign(full(1, many(n)...))
			c := w.config()
			c.Name = name
			start := time.Now()
			_, stop := w.run(c)
			time.Sleep(62 * time.Second)
			stop()
			perSlot := map[int]int{}
			for _, m := range many(n) {
				dials := w.dials(fmt.Sprintf("%s:80", m.GetAddress()))
				if len(dials) < 29 || len(dials) > 33 {
					t.Fatalf("%s was asked %d times in 62 s, its interval is 2 s", m.GetUid(), len(dials))
				}
				first := dials[0].Sub(start)
				phases[name] = append(phases[name], first)
				if first > 2100*time.Millisecond {
					t.Errorf("%s was first asked after %v", m.GetUid(), first)
				}
				gaps := map[time.Duration]bool{}
				for i, d := range dials[1:] {
					gap := d.Sub(dials[i])
					gaps[gap] = true
					if gap < 1800*time.Millisecond || gap > 2200*time.Millisecond {
						t.Errorf("%s was asked again after %v", m.GetUid(), gap)
					}
				}
				if len(gaps) < 10 {
					t.Errorf("%s was asked like a clock: %d different gaps", m.GetUid(), len(gaps))
				}
				for _, d := range dials {
					perSlot[int(d.Sub(start)/(100*time.Millisecond))]++
				}
			}
			for slot, count := range perSlot {
				if count > 4*n/20 { // 10 are expected in a slot of 100 ms
					t.Errorf("%d of %d targets were asked within the 100 ms at %d00 ms", count, n, slot)
				}
			}
		})
	}
	alike := 0
	for i, p := range phases["p1"] {
		if d := p - phases["p2"][i]; d > -50*time.Millisecond && d < 50*time.Millisecond {
			alike++
		}
	}
	if alike > n/5 { // one in twenty by chance
		t.Errorf("two probers first asked %d of %d targets at the same moment", alike, n)
	}
}

// TestChangeOfCadence: a confirmation becomes full cadence at once.
func TestChangeOfCadence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.plane.assign(full(1, target("i1", at, every(10*time.Second, time.Second))))
		_, stop := w.run(w.config())
		defer stop()
		time.Sleep(61 * time.Second)
		before := len(w.dials(at))
		if before < 5 || before > 7 {
			t.Errorf("asked %d times in 61 s at 10 s", before)
		}
		w.plane.assign(&healthv1.WatchAssignmentResponse{Generation: 2, Targets: []*healthv1.Target{target("i1", at, every(2*time.Second, time.Second))}})
		time.Sleep(2100 * time.Millisecond)
		if n := len(w.dials(at)); n <= before {
			t.Error("not asked within the new interval")
		}
		time.Sleep(60 * time.Second)
		if n := len(w.dials(at)) - before; n < 28 || n > 34 {
			t.Errorf("asked %d times in 62 s at 2 s", n)
		}
	})
}

// TestAssignmentChanges: what is taken away is not asked, what is changed is
// asked where it is now, what stays keeps its turn.
func TestAssignmentChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var told []string
		c := w.config()
		c.Events.Assigned = func(g uint64, n int) { told = append(told, fmt.Sprintf("%d:%d", g, n)) }
		a, b, moved := "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"
		w.plane.assign(full(1, target("i1", a), target("i2", b)))
		_, stop := w.run(c)
		time.Sleep(10 * time.Second)
		w.plane.assign(&healthv1.WatchAssignmentResponse{Generation: 2, RemovedUids: []string{"i1", "i9"}, Targets: []*healthv1.Target{target("i2", moved)}})
		time.Sleep(10 * time.Millisecond)
		na, nb := len(w.dials(a)), len(w.dials(b))
		time.Sleep(10 * time.Second)
		if na == 0 || nb == 0 || len(w.dials(a)) != na || len(w.dials(b)) != nb {
			t.Errorf("asked after it was taken away: %d→%d, %d→%d", na, len(w.dials(a)), nb, len(w.dials(b)))
		}
		if len(w.dials(moved)) < 4 {
			t.Errorf("the new address was asked %d times in 10 s", len(w.dials(moved)))
		}
		w.plane.assign(full(3))
		time.Sleep(1500 * time.Millisecond) // more parts may follow
		n := len(w.dials(moved))
		time.Sleep(10 * time.Second)
		stop()
		if len(w.dials(moved)) != n {
			t.Error("asked after an assignment of nothing")
		}
		if want := []string{"1:2", "2:1", "3:0", "3:0"}; !slices.Equal(told, want) {
			t.Errorf("told of %v, want %v", told, want)
		}
	})
}

// TestFullAssignmentInParts: what any of them names keeps its schedule and its
// state, and the rest goes.
func TestFullAssignmentInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		changed := map[string]int{}
		c := w.config()
		c.Events.Changed = func(r probe.Result, _ probe.Outcome) { changed[r.UID]++ }
		list := many(30)
		w.plane.assign(full(1, list...))
		p, stop := w.run(c)
		time.Sleep(20 * time.Second)
		for g := uint64(2); g < 22; g += 2 {
			w.plane.assign(full(g, list[:10]...))
			w.plane.assign(&healthv1.WatchAssignmentResponse{Generation: g, Targets: list[10:20]})
			time.Sleep(2 * time.Second)
		}
		stop()
		for i, m := range list {
			n := len(w.dials(m.GetAddress() + ":80"))
			if changed[m.GetUid()] != 1 || i < 20 && n < 18 || i >= 20 && n > 12 {
				t.Errorf("%s: asked %d times, its state was told %d times", m.GetUid(), n, changed[m.GetUid()])
			}
		}
		if n := p.Counts().Targets; n != 20 {
			t.Errorf("%d targets", n)
		}
	})
}

// TestDeadZone: targets that hang take their share of the room and no more; the
// others are asked at their cadence, and the hanging ones often enough not to
// fall silent.
func TestDeadZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const hanging, room = 200, 80
		list := many(hanging + 20)
		for _, m := range list[:hanging] {
			w.set(w.hang, m.GetAddress()+":80")
		}
		c := w.config()
		c.Limits.InFlight = room
		w.plane.assign(full(1, list...))
		p, stop := w.run(c)
		time.Sleep(62 * time.Second)
		stop()
		if w.most > room {
			t.Errorf("%d probes were in flight at once, the limit is %d", w.most, room)
		}
		for i, m := range list {
			n := len(w.dials(m.GetAddress() + ":80"))
			switch {
			case i < hanging && n < 15: // 60 a second for 200
				t.Errorf("%s hangs and was asked %d times in 62 s", m.GetUid(), n)
			case i >= hanging && n < 28:
				t.Errorf("%s answers and was asked %d times in 62 s", m.GetUid(), n)
			}
		}
		if p.Counts().Late == 0 {
			t.Error("nothing says that probes are late")
		}
	})
}

// TestNoGoroutinePerTarget: an assignment costs memory, not goroutines.
func TestNoGoroutinePerTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.plane.assign(full(1, many(5000, every(time.Minute, time.Second))...))
		before := runtime.NumGoroutine()
		_, stop := w.run(w.config())
		defer stop()
		time.Sleep(5 * time.Second)
		if n := runtime.NumGoroutine() - before; n > 20 {
			t.Errorf("%d goroutines for 5000 targets", n)
		}
	})
}

// TestTooManyTargets: what is over the limit is named, and the rest is asked.
func TestTooManyTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var unusable []string
		c := w.config()
		c.Limits.Targets = 3
		c.Events.Unusable = func(uid, _ string) { unusable = append(unusable, uid) }
		w.plane.assign(full(1, many(5)...))
		p, stop := w.run(c)
		time.Sleep(3 * time.Second)
		stop()
		if n := p.Counts(); len(unusable) != 2 || n.Targets != 3 || n.Unusable != 2 {
			t.Errorf("unusable %v, counts %+v", unusable, n)
		}
	})
}

// TestAnUnusableChange: a target that changes into one that cannot be asked is
// no longer asked where it was.
func TestAnUnusableChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.plane.assign(full(1, target("i1", at)))
		_, stop := w.run(w.config())
		defer stop()
		time.Sleep(5 * time.Second)
		w.plane.assign(&healthv1.WatchAssignmentResponse{Generation: 2, Targets: []*healthv1.Target{target("i1", "127.0.0.1:80")}})
		time.Sleep(10 * time.Millisecond)
		n := len(w.dials(at))
		time.Sleep(10 * time.Second)
		if len(w.dials(at)) != n || len(w.dials("127.0.0.1:80")) > 0 {
			t.Error("it is still asked")
		}
	})
}

// TestPausedProber: failures of probes that were in flight while the prober did
// not run are silence.
func TestPausedProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(w.hang, at)
		other := "10.0.0.9:80"
		w.listen(other, func(net.Conn) {})
		c := w.config()
		var paused []time.Duration
		var from time.Time
		c.Events.Paused = func(gap time.Duration) { paused = append(paused, gap) }
		c.Events.Changed = func(r probe.Result, _ probe.Outcome) {
			if r.UID == "i9" { // the loop stands still here, as in a process that is stopped
				from = time.Now()
				time.Sleep(5 * time.Second)
			}
		}
		w.plane.assign(full(1, target("i1", at, every(time.Second, 990*time.Millisecond)), target("i9", other)))
		_, stop := w.run(c)
		time.Sleep(15 * time.Second)
		stop()
		if len(paused) != 1 || paused[0] < 4*time.Second {
			t.Errorf("paused %v", paused)
		}
		after := 0
		results, _, _ := w.plane.heard()
		for _, r := range results {
			switch d := r.at.Sub(from); {
			case r.uid == "i1" && d > 0 && d <= 5*time.Second:
				t.Errorf("a failure %v into the gap was reported", d)
			case r.uid == "i1" && d > 5*time.Second:
				after++
			}
		}
		if after < 5 {
			t.Errorf("%d failures after the gap were reported", after)
		}
	})
}

// TestStarvedProber: a time-out that comes late says that the prober had no
// processor, and is silence.
func TestStarvedProber(t *testing.T) {
	for name, row := range map[string]struct {
		late    time.Duration
		excused bool
	}{"on time": {20 * time.Millisecond, false}, "late": {400 * time.Millisecond, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.set(w.hang, at)
				c := w.config()
				dial := c.Dial
				c.Dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
					conn, err := dial(ctx, to)
					time.Sleep(row.late) // as a goroutine that is not scheduled
					return conn, err
				}
				var paused, changed int
				c.Events.Paused = func(time.Duration) { paused++ }
				c.Events.Changed = func(probe.Result, probe.Outcome) { changed++ }
				w.plane.assign(full(1, target("i1", at)))
				p, stop := w.run(c)
				time.Sleep(25 * time.Second)
				stop()
				results, _, _ := w.plane.heard()
				starved := p.Counts().Starved > 0
				if starved != row.excused || len(results) > 0 == row.excused || changed > 0 == row.excused {
					t.Errorf("%d results, %d changes, counts %+v", len(results), changed, p.Counts())
				}
				if want := map[bool]int{false: 0, true: 3}[row.excused]; paused != want {
					t.Errorf("told of %d pauses in 25 s, want %d", paused, want)
				}
			})
		})
	}
}

// TestLaggingProber: while the loop comes late to results, a time-out may be an
// answer that nobody read; a refusal is one that somebody did.
func TestLaggingProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(w.hang, at)
		c := w.config()
		c.Events.Changed = func(r probe.Result, _ probe.Outcome) {
			if r.Kind == probe.HTTP {
				time.Sleep(70 * time.Millisecond) // what waits meanwhile is taken late
			}
		}
		busy := many(100, asking(registryv1.ProbeKind_PROBE_KIND_HTTP, "", "/"))
		for i, m := range busy { // each changes at each probe
			n := 0
			w.listen(m.GetAddress()+":80", func(c net.Conn) {
				n++
				answering(fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n", 500+(i+n)%90))(c)
			})
		}
		refuses := "10.9.0.1:80"
		w.plane.assign(full(1, append(busy, target("i998", at), target("i999", refuses))...))
		p, stop := w.run(c)
		time.Sleep(20 * time.Second)
		stop()
		heardOf := map[string]int{}
		results, _, _ := w.plane.heard()
		for _, r := range results {
			heardOf[r.uid]++
		}
		if heardOf["i998"] > 0 || heardOf["i999"] == 0 || p.Counts().Starved == 0 || p.Counts().Gaps > 0 {
			t.Errorf("%d results on the one that hangs, %d on the one that refuses, counts %+v", heardOf["i998"], heardOf["i999"], p.Counts())
		}
	})
}

// TestFullRoomLetsGo: with one place, a target that hangs does not stop the
// other from being asked.
func TestFullRoomLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(w.hang, at)
		c := w.config()
		c.Limits.InFlight = 1
		w.plane.assign(full(1, target("i1", at), target("i2", "10.0.0.2:80")))
		_, stop := w.run(c)
		time.Sleep(20 * time.Second)
		stop()
		if n := len(w.dials("10.0.0.2:80")); n < 6 {
			t.Errorf("asked %d times in 20 s", n)
		}
	})
}

// TestBadCadence: numbers out of range are brought into it.
func TestBadCadence(t *testing.T) {
	for name, row := range map[string]struct {
		interval, timeout time.Duration
		asks              int // in 20 s, about
	}{
		"too fast":                  {time.Millisecond, time.Microsecond, 20},
		"negative":                  {-time.Second, -time.Second, 10},
		"timeout over the interval": {2 * time.Second, time.Hour, 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.set(w.hang, at)
				w.plane.assign(full(1, target("i1", at, every(row.interval, row.timeout))))
				_, stop := w.run(w.config())
				time.Sleep(20 * time.Second)
				stop()
				if n := len(w.dials(at)); n < row.asks-3 || n > row.asks+3 {
					t.Errorf("asked %d times in 20 s, want about %d", n, row.asks)
				}
			})
		})
	}
}

// TestProberNeeds: what a prober cannot do without.
func TestProberNeeds(t *testing.T) {
	if _, err := probe.New(probe.Config{}); err == nil {
		t.Error("a prober without a zone was built")
	}
	if _, err := probe.New(probe.Config{Zone: "z1"}); err == nil {
		t.Error("a prober without a control plane was built")
	}
}
