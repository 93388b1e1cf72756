package report

import (
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// applying is a stream of 200 instances whose counts go straight to the
// evaluator of their service, on the same goroutine.
func applying(tb testing.TB) (*outcomeStream, func()) {
	st, c := ingest(tb), Codec()
	name := registry.Name{Namespace: "shop", Service: "cart"}
	start := time.Now()
	e := health.New(name, start, health.Memory{})
	change := registry.Change{Name: name, Service: &registry.Service{Name: name}, Contract: registry.Contract{}.WithDefaults()}
	supplies := registry.ClassSet(0).With(registry.ClassCallers)
	for u := registry.UID(1); u <= 200; u++ {
		change.Instances = append(change.Instances, registry.InstanceChange{UID: u, Profile: registry.Profile{Supplies: supplies},
			Row: &registry.Instance{UID: u, Service: name, Proof: registry.ByAuthority}})
	}
	e.Load(change)
	e.Judge(start)
	st.service.cfg.SubmitOutcomes = func(_ registry.Name, o *health.Outcomes) { e.ObserveOutcomes(o.At, o) }
	data := mem.BufferSlice{mem.SliceBuffer(marshal(tb, batchOf(200)))}
	at := start
	return st, func() {
		at = at.Add(reportInterval)
		if err := c.Unmarshal(data, &st.frame); err != nil {
			tb.Fatal(err)
		}
		if err := st.take(at, false); err != nil {
			tb.Fatal(err)
		}
	}
}

// TestApplyAllocatesNothing: from a frame's bytes to the evaluator's scores, the
// memory of the report before is used again.
func TestApplyAllocatesNothing(t *testing.T) {
	st, one := applying(t)
	for range 3 {
		one()
	}
	if n := testing.AllocsPerRun(100, one); n != 0 {
		t.Errorf("%v allocations for 200 counts", n)
	}
	if got := st.tally.GetAccepted(); got == 0 || got%200 != 0 {
		t.Errorf("%d accepted", got)
	}
}

// BenchmarkDecodeAndApply is one frame of 200 counts, from its bytes to the
// evaluator's scores.
func BenchmarkDecodeAndApply(b *testing.B) {
	_, one := applying(b)
	one()
	b.ReportAllocs()
	for b.Loop() {
		one()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/200, "ns/sample")
}
