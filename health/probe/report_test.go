package probe_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/health/probe"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

// TestReports: ids are bound once, results arrive soon and with their true age,
// and the stream is never silent.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		list := many(300)
		w.listen(list[0].GetAddress()+":80", func(net.Conn) {})
		w.plane.assign(full(5, list...))
		p, stop := w.run(w.config())
		time.Sleep(30 * time.Second)
		stop()
		results, _, bad := w.plane.heard()
		if len(bad) > 0 {
			t.Fatal(bad[0])
		}
		asked := map[string][]time.Time{}
		for _, m := range list {
			asked[m.GetUid()] = w.dials(m.GetAddress() + ":80")
		}
		for _, r := range results {
			near := slices.ContainsFunc(asked[r.uid], func(d time.Time) bool {
				diff := r.at.Sub(d)
				return diff > -time.Millisecond && diff < 2*time.Millisecond
			})
			if want := map[bool]healthv1.ProbeResult{true: healthv1.ProbeResult_PROBE_RESULT_OK, false: healthv1.ProbeResult_PROBE_RESULT_REFUSED}[r.uid == "i0"]; r.result != want || !near {
				t.Errorf("%s: %v at %v, want %v when it was asked", r.uid, r.result, r.at, want)
			}
		}
		frames := w.plane.frames()
		if len(frames) != 1 || len(results) < 300*13 {
			t.Errorf("%d streams, %d results", len(frames), len(results))
		}
		binds := 0
		for i, f := range frames[0] {
			binds += len(f.m.GetBind().GetInstances())
			if i > 0 && f.at.Sub(frames[0][i-1].at) > time.Second {
				t.Errorf("nothing was sent for %v, and results were waiting", f.at.Sub(frames[0][i-1].at))
			}
			if b := f.m.GetBatch(); b != nil && b.GetGeneration() != 5 && i > 3 {
				t.Errorf("a batch of generation %d", b.GetGeneration())
			}
		}
		if binds != 300 {
			t.Errorf("%d ids were bound for 300 targets", binds)
		}
		if n := p.Counts(); n.Sent != int64(len(results)) || n.Dropped != 0 {
			t.Errorf("counts %+v after %d results", n, len(results))
		}
	})
}

// TestNewsTravelsFast: a change is not kept for the next batch, and many changes
// do not make many batches.
func TestNewsTravelsFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		list := many(400)
		w.plane.assign(full(1, list...))
		_, stop := w.run(w.config())
		time.Sleep(20 * time.Second)
		fell := time.Now()
		for _, m := range list {
			w.set(w.unreachable, m.GetAddress()+":80")
		}
		time.Sleep(5 * time.Second)
		stop()
		results, _, _ := w.plane.heard()
		frames := w.plane.frames()[0]
		told := map[string]bool{}
		for _, r := range results {
			if r.result != healthv1.ProbeResult_PROBE_RESULT_UNREACHABLE || told[r.uid] {
				continue
			}
			told[r.uid] = true
			i := slices.IndexFunc(frames, func(f frame) bool { return !f.at.Before(r.at) && f.m.GetBatch() != nil })
			if wait := frames[i].at.Sub(r.at); wait > 101*time.Millisecond {
				t.Errorf("news of %s waited %v", r.uid, wait)
			}
		}
		batches := 0
		for _, f := range frames {
			if f.at.After(fell) {
				batches++
			}
		}
		if len(told) != 400 || batches > 51 {
			t.Errorf("%d of 400 were told of, in %d batches over 5 s", len(told), batches)
		}
	})
}

// TestEmptyBatches: a prober without a target speaks at least every 2 s, and
// not in step.
func TestEmptyBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.plane.assign(full(1))
		_, stop := w.run(w.config())
		time.Sleep(60 * time.Second)
		stop()
		gaps := map[time.Duration]bool{}
		frames := w.plane.frames()[0]
		for i, f := range frames[1:] {
			gap := f.at.Sub(frames[i].at)
			gaps[gap] = true
			if gap > 2*time.Second {
				t.Errorf("silent for %v", gap)
			}
		}
		if len(frames) < 30 || len(frames) > 60 || len(gaps) < 10 {
			t.Errorf("%d frames with %d different gaps in a minute", len(frames), len(gaps))
		}
	})
}

// TestBrokenStream: the next stream binds again, results of the gap arrive while
// they are fresh, and older ones are dropped.
func TestBrokenStream(t *testing.T) {
	for name, row := range map[string]struct {
		away time.Duration
		gap  bool // in what arrives
	}{"short": {3 * time.Second, false}, "long": {60 * time.Second, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.plane.assign(full(1, target("i1", at, every(time.Second, 500*time.Millisecond))))
				var lost, opened atomic.Int32 // events come from both streams
				c := w.config()
				c.Events.Opened = func(probe.Stream) { opened.Add(1) }
				c.Events.Lost = func(s probe.Stream, err error) {
					lost.Add(1)
					if status.Code(err) != codes.Unavailable {
						t.Errorf("%s: %v", s, err)
					}
				}
				p, stop := w.run(c)
				time.Sleep(20 * time.Second)
				w.plane.goAway(true)
				time.Sleep(row.away)
				w.plane.comeBack()
				back := time.Now()
				time.Sleep(20 * time.Second)
				stop()
				results, _, bad := w.plane.heard()
				if len(bad) > 0 {
					t.Fatal(bad[0])
				}
				var longest time.Duration
				for i, r := range results[1:] {
					longest = max(longest, r.at.Sub(results[i].at))
				}
				streams := w.plane.frames()
				if first := streams[len(streams)-1][0].at.Sub(back); first > 6*time.Second {
					t.Errorf("the stream was back %v after the control plane", first)
				}
				switch {
				case !row.gap && longest > 2*time.Second:
					t.Errorf("%v without a result over an absence of %v", longest, row.away)
				case row.gap && (longest < row.away-17*time.Second || p.Counts().Dropped == 0):
					t.Errorf("%v without a result over an absence of %v, %d dropped", longest, row.away, p.Counts().Dropped)
				}
				for _, r := range results {
					if r.stream > 0 && streams[r.stream][0].at.Sub(r.at) > 11*time.Second {
						t.Errorf("a result of %v before its stream arrived", streams[r.stream][0].at.Sub(r.at))
					}
				}
				if n := lost.Load(); n < 2 || opened.Load() != 4 || n > 6 {
					t.Errorf("%d streams opened, %d lost were told of", opened.Load(), n)
				}
			})
		})
	}
}

// TestAwayForLong: the assignment is kept for a while, and then given up.
func TestAwayForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.plane.assign(full(7, target("i1", at)))
		p, stop := w.run(w.config())
		time.Sleep(20 * time.Second)
		w.plane.goAway(true)
		time.Sleep(4 * time.Minute)
		if n := len(w.dials(at)); n < 115 || p.Counts().Targets != 1 {
			t.Errorf("asked %d times while the control plane was away", n)
		}
		time.Sleep(2 * time.Minute)
		n := len(w.dials(at))
		time.Sleep(10 * time.Minute)
		if len(w.dials(at)) != n || p.Counts().Targets != 0 {
			t.Error("an assignment of long ago is still worked by")
		}
		w.plane.comeBack()
		time.Sleep(20 * time.Second)
		stop()
		if len(w.dials(at)) < n+5 {
			t.Error("not asked again after the control plane came back")
		}
		watches := w.plane.watches()
		if first, last := watches[0], watches[len(watches)-1]; first.GetGeneration() != 0 || first.GetZone() != "z1" || last.GetGeneration() != 0 {
			t.Errorf("first watch %v, last %v", first, last)
		}
		if again := watches[1]; again.GetGeneration() != 7 {
			t.Errorf("the watch after a loss offers generation %d", again.GetGeneration())
		}
		if len(watches) > 16*60/2 {
			t.Errorf("%d watches in 16 minutes", len(watches))
		}
	})
}

// TestManyIds: a stream that has bound more than its share is replaced, without
// a word of loss.
func TestManyIds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.config()
		c.Limits.Targets, c.Limits.Bound = 10, 20
		var tallies int
		c.Events.Ended = func(tally *healthv1.Tally) { tallies += int(tally.GetAccepted()) / 7 }
		c.Events.Lost = func(s probe.Stream, err error) { t.Errorf("%s lost: %v", s, err) }
		_, stop := w.run(c)
		for g := range 12 {
			var list []*healthv1.Target
			for i := range 3 {
				list = append(list, target(fmt.Sprintf("i%d", g*3+i), at))
			}
			w.plane.assign(full(uint64(g+1), list...))
			time.Sleep(5 * time.Second)
		}
		stop()
		results, _, bad := w.plane.heard()
		if len(bad) > 0 {
			t.Fatal(bad[0])
		}
		streams := w.plane.frames()
		for _, s := range streams {
			bound := 0
			for _, f := range s {
				bound += len(f.m.GetBind().GetInstances())
			}
			if bound > 20 {
				t.Errorf("%d ids on one stream, the limit is 20", bound)
			}
		}
		if len(streams) < 2 || tallies < len(streams)-1 { // the last one ends with the prober
			t.Errorf("%d streams, %d ended in order", len(streams), tallies)
		}
		seen := map[string]bool{}
		for _, r := range results {
			seen[r.uid] = true
		}
		if len(seen) != 36 {
			t.Errorf("results on %d of 36 instances", len(seen))
		}
	})
}

// TestBigAssignment: frames stay under what a report may have.
func TestBigAssignment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.plane.assign(full(1, many(12000)...))
		_, stop := w.run(w.config())
		time.Sleep(6 * time.Second)
		stop()
		for _, s := range w.plane.frames() {
			for _, f := range s {
				if n := sizeOf(f.m); n > 64<<10 {
					t.Errorf("a frame of %d bytes", n)
				}
			}
		}
		if results, _, _ := w.plane.heard(); len(results) < 20000 {
			t.Errorf("%d results", len(results))
		}
	})
}

// TestMetrics: every counter is on the page, by its name.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.plane.assign(full(1, target("i1", at)))
		p, stop := w.run(w.config())
		time.Sleep(10 * time.Second)
		stop()
		var out bytes.Buffer
		if err := p.Counts().WriteMetrics(&out); err != nil {
			t.Fatal(err)
		}
		n := len(w.dials(at))
		for _, line := range []string{"sightline_prober_targets 1\n",
			fmt.Sprintf("sightline_prober_probes_total{kind=\"tcp\",outcome=\"refused\"} %d\n", n),
			"sightline_prober_probe_bytes_total{kind=\"grpc\",direction=\"sent\"} 0\n", "sightline_prober_gaps_total 0\n"} {
			if !strings.Contains(out.String(), line) {
				t.Errorf("no %q in\n%s", line, out.String())
			}
		}
		if err := p.Counts().WriteMetrics(broken{}); err == nil {
			t.Error("a page that could not be written was")
		}
	})
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("closed") }
