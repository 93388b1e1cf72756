package health

import (
	"math"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// notPicked lets one stock gRPC client report that the first of four, all of one
// weight, was not picked while the others were given so many calls in all.
func (f *callersFleet) notPicked(calls uint32, weight uint32) {
	f.after(2 * time.Second)
	f.report(0, FromGRPC,
		Outcome{UID: 1, Weight: weight},
		Outcome{UID: 2, Issued: calls, OK: calls, Weight: 100},
		Outcome{UID: 3, Weight: 100}, Outcome{UID: 4, Weight: 100})
}

func (f *callersFleet) failures(uid registry.UID) float64 {
	return f.read(uid, callersQuestion{}).failures
}

func TestCallersNeverPicked(t *testing.T) {
	f := newCallersFleet(4)
	for range 3 {
		f.notPicked(13, 100) // 3.25 each
	}
	if n := f.failures(1); n != 0 {
		t.Errorf("%v failures at a share of 9.75", n)
	}
	f.notPicked(13, 100)
	if n := f.failures(1); !near(n, 13) {
		t.Errorf("%v failures at a share of 13", n)
	}
	f.notPicked(36, 100)
	if n := f.failures(1); !near(n, 13*math.Exp2(-0.5)) {
		t.Errorf("%v failures: the share starts again", n)
	}
	f.notPicked(4000, 100)
	if n := f.failures(1); !near(n, 13*math.Exp2(-1)+50) {
		t.Errorf("%v failures: no charge is above 50", n)
	}
	if r := f.read(1, callersQuestion{}); !r.newest.Equal(f.now) {
		t.Errorf("a charge is heard: %+v", r)
	}
}

// What breaks the run of reports in which an instance never was picked.
func TestCallersNeverPickedStartsAgain(t *testing.T) {
	for name, between := range map[string]func(*callersFleet){
		"call": func(f *callersFleet) {
			f.after(2 * time.Second)
			f.report(0, FromGRPC, Outcome{UID: 1, Issued: 1, Weight: 100})
		},
		"moved":    func(f *callersFleet) { f.table.moved(f.instances[1]) },
		"clear":    func(f *callersFleet) { f.table.clear(f.instances[1]) },
		"gap":      func(f *callersFleet) { f.after(2 * time.Second) },
		"own gap":  func(f *callersFleet) { f.after(1); f.table.gap(f.now) },
		"unknown":  func(f *callersFleet) { f.notPicked(12, 0) },
		"left out": func(f *callersFleet) { f.after(2 * time.Second); f.report(0, FromGRPC, outcome(2, 12, 0)) },
	} {
		f := newCallersFleet(4)
		f.notPicked(36, 100)
		between(f)
		f.notPicked(36, 100)
		if n := f.failures(1); n != 0 {
			t.Errorf("%s: %v failures, as if nothing were between", name, n)
		}
	}
	f := newCallersFleet(4)
	f.notPicked(36, 100)
	f.after(2 * time.Second)
	f.report(0, FromGRPC) // it called nobody
	f.notPicked(36, 100)
	if n := f.failures(1); !near(n, 18) {
		t.Errorf("%v failures after an idle report between, want 18", n)
	}
}

// Never picked is not for those who can tell a refusal.
func TestCallersNeverPickedIsOfStockClients(t *testing.T) {
	for _, kind := range []ReporterKind{FromLibrary, FromEnvoy} {
		f := newCallersFleet(2)
		for range 5 {
			f.after(2 * time.Second)
			f.report(0, kind, Outcome{UID: 1, Weight: 100}, Outcome{UID: 2, Issued: 100, OK: 100, Weight: 100})
		}
		if n := f.failures(1); n != 0 {
			t.Errorf("kind %d: %v failures", kind, n)
		}
	}
	f := newCallersFleet(4)
	terms := defaultCallersTerms
	terms.ignoreLRS = true
	f.table.configure(terms)
	f.notPicked(400, 100)
	if n := f.failures(1); !near(n, 50) {
		t.Errorf("%v failures where LRS errors are ignored: these are none", n)
	}
}

func TestCallersHiddenByEnvoy(t *testing.T) {
	f := newCallersFleet(1)
	total := 0.0
	step := func(issued, ok, failed, inProgress uint32) float64 {
		f.after(2 * time.Second)
		f.report(0, FromEnvoy, Outcome{UID: 1, Issued: issued, OK: ok, Failed: failed, InProgress: inProgress})
		before := total * math.Exp2(-0.5)
		total = f.failures(1)
		return math.Round((total-before)*1e6) / 1e6
	}
	for _, x := range []struct {
		name                           string
		issued, ok, failed, inProgress uint32
		want                           float64
	}{
		{"all well", 10, 10, 0, 0, 0},
		{"refused", 0, 0, 1, 0, 1},
		{"some in progress", 10, 6, 0, 4, 0},
		{"they end", 10, 14, 0, 0, 0},
		{"a hang: given up", 10, 0, 0, 3, 7},
		{"still", 10, 0, 0, 3, 10},
		{"growth that no call explains", 10, 10, 0, 8, 0},
		{"and its fall", 10, 10, 0, 3, 0},
		{"fewer begun than ended", 0, 3, 0, 3, 0},
	} {
		if got := step(x.issued, x.ok, x.failed, x.inProgress); got != x.want {
			t.Errorf("%s: %v failures, want %v", x.name, got, x.want)
		}
	}
	f.after(20 * time.Second)
	total = f.failures(1)
	f.report(0, FromEnvoy, Outcome{UID: 1, Issued: 10, OK: 0, InProgress: 10})
	if got := f.failures(1); !near(got, total) {
		t.Errorf("%v failures after a gap, where those in progress may be old or new, want %v", got, total)
	}
}

// Two streams of one workload are one reporter, however it names its nodes; and
// two Envoys behind one address do not hide or invent calls.
func TestCallersOfOneWorkloadAreOne(t *testing.T) {
	f := newCallersFleet(2)
	for range 10 {
		for _, inProgress := range []uint32{12, 0} {
			f.after(time.Second)
			f.report(0, FromEnvoy, Outcome{UID: 1, Issued: 5, OK: 5, InProgress: inProgress}, outcome(2, 20, 0))
		}
	}
	r := f.read(1, callersQuestion{})
	if r.counting != 1 || r.failures > 1 {
		t.Errorf("two Envoys with different calls in progress: %+v", r)
	}
}
