package health

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

// callersFleet is a table, its instances 1 to n, and the reporters that speak to
// it, by themselves: no evaluator.
type callersFleet struct {
	table     *callers
	instances map[registry.UID]*instance
	touched   map[registry.UID]int
	now       time.Time
}

func newCallersFleet(n int) *callersFleet {
	f := &callersFleet{
		table: newCallers(), instances: map[registry.UID]*instance{}, touched: map[registry.UID]int{}, now: epoch,
	}
	for k := 1; k <= n; k++ {
		uid := registry.UID(k)
		f.instances[uid] = &instance{row: &registry.Instance{UID: uid}}
	}
	return f
}

func (f *callersFleet) find(uid registry.UID) *instance { return f.instances[uid] }

func (f *callersFleet) hear(o *Outcomes) int {
	return f.table.hear(f.now, o, f.find, func(i *instance, _ bool) time.Time {
		f.touched[i.row.UID]++
		return time.Time{}
	})
}

func (f *callersFleet) read(uid registry.UID, q callersQuestion) callersReading {
	f.table.settle(f.now, nil)
	return f.table.read(f.instances[uid], f.now, q)
}

// caller is the k-th reporter.
func caller(k int) Reporter {
	return Reporter{
		Identity: identity.MustParse(fmt.Sprintf("spiffe://shop.example/ns/web/sa/caller-%d", k)),
		Addr:     netip.AddrFrom4([4]byte{10, 0, byte(k >> 8), byte(k)}),
	}
}

// callersReports are one report for each of r reporters on n instances.
func callersReports(n, r int, kind ReporterKind, ok, failed uint32) []*Outcomes {
	reports := make([]*Outcomes, r)
	for k := range reports {
		o := &Outcomes{Reporter: caller(k), Kind: kind, Interval: 2 * time.Second}
		for uid := 1; uid <= n; uid++ {
			o.Entries = append(o.Entries, Outcome{
				UID: registry.UID(uid), Issued: ok + failed, OK: ok, Failed: failed, Weight: 100,
			})
		}
		reports[k] = o
	}
	return reports
}

// cpuTime is what this process has used: on a shared machine, it says more than
// the clock on the wall.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkCallersHear is what one sample costs, finding its instance in a map
// and marking it included: 40 reporters, 200 instances each.
func BenchmarkCallersHear(b *testing.B) {
	for _, kind := range []ReporterKind{FromLibrary, FromEnvoy, FromGRPC} {
		b.Run([...]string{"library", "envoy", "grpc"}[kind], func(b *testing.B) {
			f := newCallersFleet(200)
			reports := callersReports(200, 40, kind, 9, 1)
			touch := func(i *instance, _ bool) (quiet time.Time) { i.touched = true; return quiet }
			var find = f.find
			feed := func(k int) {
				o := reports[k%len(reports)]
				f.now = epoch.Add(time.Duration(k) * 50 * time.Millisecond)
				o.At = f.now
				if f.table.hear(f.now, o, find, touch) != 0 {
					b.Fatal("refused")
				}
			}
			for k := range 2 * len(reports) {
				feed(k)
			}
			b.ReportAllocs()
			start := cpuTime()
			k := 2 * len(reports)
			for b.Loop() {
				feed(k)
				k++
			}
			b.ReportMetric(float64(cpuTime()-start)/float64(b.N)/200, "cpu-ns/sample")
		})
	}
}

// BenchmarkCallersRead is one judgement of 133 instances with 133 reporters; %core is
// what four of them a second cost.
func BenchmarkCallersRead(b *testing.B) {
	for _, load := range []struct {
		name       string
		reports    func(round int) []*Outcomes
		reporters  int
		ok, failed uint32
	}{
		{name: "healthy", ok: 40},
		{name: "background", ok: 36, failed: 4},
		{name: "small", ok: 2},
		{name: "smallBackground", ok: 2, failed: 0},
	} {
		b.Run(load.name, func(b *testing.B) {
			f := newCallersFleet(133)
			reports := callersReports(133, 133, FromEnvoy, load.ok, load.failed)
			for round := range 5 {
				f.now = epoch.Add(time.Duration(round) * 2 * time.Second)
				for k, o := range reports {
					o.At = f.now
					if load.name == "smallBackground" {
						for n := range o.Entries {
							// Some just above, some just below the line of a small reporter.
							o.Entries[n].OK = uint32(1 + (k*7+n*13+round)%4/2)
							o.Entries[n].Failed = uint32((k*31+n*17+round*5)%11) / 10
							o.Entries[n].Issued = o.Entries[n].OK + o.Entries[n].Failed
						}
					}
					f.hear(o)
				}
			}
			b.ReportAllocs()
			start := cpuTime()
			for b.Loop() {
				f.table.settle(f.now, nil)
				for _, i := range f.instances {
					f.table.read(i, f.now, callersQuestion{})
				}
			}
			b.ReportMetric(4*float64(cpuTime()-start)/float64(b.N)/1e9*100, "%core")
		})
	}
}
