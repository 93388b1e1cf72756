package report

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	"github.com/sightlinedev/sightline/registry"
)

// batchOf is a report of n counts, as callers send them: small numbers.
func batchOf(n int) *healthv1.ReportOutcomesRequest {
	r := rand.New(rand.NewPCG(1, 2))
	b := &healthv1.OutcomeBatch{Interval: durationpb.New(2 * time.Second)}
	for i := range n {
		b.Instance = append(b.Instance, uint32(i))
		issued := 1 + r.Uint32N(400)
		b.Issued, b.Ok, b.Failed = append(b.Issued, issued), append(b.Ok, issued-issued/10), append(b.Failed, issued/10)
	}
	return &healthv1.ReportOutcomesRequest{Frame: &healthv1.ReportOutcomesRequest_Batch{Batch: b}}
}

func marshal(tb testing.TB, m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// sameAs reports whether the frame holds what the generated code read.
func (f *outcomeFrame) sameAs(m *healthv1.ReportOutcomesRequest) bool {
	switch x := m.GetFrame().(type) {
	case nil:
		return f.kind == 0
	case *healthv1.ReportOutcomesRequest_Bind:
		return f.kind == frameBind && proto.Equal(&f.bind, x.Bind)
	}
	b := m.GetBatch()
	d := b.GetInterval()
	return f.kind == frameBatch && f.given == (d != nil) && f.seconds == d.GetSeconds() && f.nanos == d.GetNanos() &&
		slices.Equal(f.column[columnInstance], b.GetInstance()) && slices.Equal(f.column[columnReporter], b.GetReporter()) &&
		slices.Equal(f.column[columnIssued], b.GetIssued()) && slices.Equal(f.column[columnOK], b.GetOk()) &&
		slices.Equal(f.column[columnFailed], b.GetFailed()) && slices.Equal(f.column[columnRefused], b.GetRefused()) &&
		slices.Equal(f.column[columnInProgress], b.GetInProgress())
}

// FuzzOutcomeFrame: whatever the bytes, ours and the generated code agree about
// whether they are a frame, and about what is in it, also when the memory was
// used before.
func FuzzOutcomeFrame(f *testing.F) {
	f.Add(marshal(f, batchOf(3)), marshal(f, batchOf(1)))
	bind := marshal(f, &healthv1.ReportOutcomesRequest{Frame: &healthv1.ReportOutcomesRequest_Bind{
		Bind: &healthv1.OutcomeBind{Instances: []string{"i1", "i2"}, Reporters: []string{"i3"}}}})
	f.Add(bind, marshal(f, batchOf(2)))
	f.Add(append(slices.Clone(bind), bind...), append(marshal(f, batchOf(1)), bind...))
	// A list that is not packed, a field of another type, one that is not known.
	odd := protowire.AppendVarint(protowire.AppendTag(nil, columnIssued, protowire.VarintType), 1<<40|7)
	odd = protowire.AppendFixed32(protowire.AppendTag(odd, columnOK, protowire.Fixed32Type), 9)
	odd = protowire.AppendBytes(protowire.AppendTag(odd, 99, protowire.BytesType), []byte("x"))
	odd = protowire.AppendBytes(protowire.AppendTag(odd, columnOK, protowire.BytesType), protowire.AppendVarint([]byte{0x80, 0x80, 0}, 1<<63))
	f.Add(protowire.AppendBytes(protowire.AppendTag(nil, frameBatch, protowire.BytesType), odd), []byte{})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		frame := outcomeFrame{limit: 1 << 20}
		for _, b := range [][]byte{first, second} {
			want := &healthv1.ReportOutcomesRequest{}
			expected := proto.Unmarshal(b, want)
			err := frame.decode(b)
			if (err == nil) != (expected == nil) {
				t.Fatalf("%x: %v, the generated code says %v", b, err, expected)
			}
			if err == nil && !frame.sameAs(want) {
				t.Fatalf("%x: %+v, the generated code reads %v", b, &frame, want)
			}
		}
	})
}

// TestALongColumnIsNotKept: the memory of one odd frame goes with it.
func TestALongColumnIsNotKept(t *testing.T) {
	frame := outcomeFrame{limit: 1 << 20}
	for _, n := range []int{100_000, 10} {
		if err := frame.decode(marshal(t, batchOf(n))); err != nil || len(frame.column[columnIssued]) != n {
			t.Fatalf("%v, %d entries", err, len(frame.column[columnIssued]))
		}
	}
	for i, c := range frame.column {
		if cap(c) > keptEntries {
			t.Errorf("column %d keeps room for %d", i, cap(c))
		}
	}
}

// TestPartsOfLargeBatchesAreNotKept: one large batch on each of many services
// leaves room for as much as usual batches need, and those keep theirs.
func TestPartsOfLargeBatchesAreNotKept(t *testing.T) {
	policy := &authz.Policy{TrustDomain: "prod.example", Default: authz.WholeTrustDomain}
	s := New(Config{
		Lookup: func(u registry.UID) (*registry.Instance, bool) {
			return &registry.Instance{UID: u, Service: registry.Name{Namespace: "shop", Service: u.String()}}, true
		},
		SubmitOutcomes: func(registry.Name, *health.Outcomes) {},
		Policy:         func() *authz.Policy { return policy },
	})
	st := s.newOutcomeStream(identity.Principal{ID: identity.MustParse("spiffe://prod.example/ns/shop/sa/web")})
	const services, large = 50, 3000
	bind := &healthv1.OutcomeBind{}
	for u := range registry.UID(services) {
		bind.Instances = append(bind.Instances, (u + 1).String())
	}
	if err := st.bind(bind); err != nil {
		t.Fatal(err)
	}
	kept := func() (n int) {
		for _, sl := range st.slots {
			n += cap(sl.out.Entries)
		}
		return n
	}
	report := func(k uint32, n int) {
		b := batchOf(n)
		for i := range b.GetBatch().Instance {
			b.GetBatch().Instance[i] = k
		}
		if err := st.frame.decode(marshal(t, b)); err != nil {
			t.Fatal(err)
		}
		if err := st.take(time.Now(), false); err != nil {
			t.Fatal(err)
		}
		if n := kept(); n > keptCounts {
			t.Fatalf("after a batch on service %d there is room for %d entries", k, n)
		}
	}
	for k := range uint32(services) {
		report(k, large)
	}
	report(0, 10)
	if got := st.tally.GetAccepted(); got != services*large+10 || kept() < 10 {
		t.Errorf("%d accepted, room for %d kept", got, kept())
	}
}

// ingest is a stream that has bound 200 instances of one service.
func ingest(tb testing.TB) *outcomeStream {
	cart := registry.Name{Namespace: "shop", Service: "cart"}
	policy := &authz.Policy{TrustDomain: "prod.example"}
	s := New(Config{
		Lookup: func(u registry.UID) (*registry.Instance, bool) {
			return &registry.Instance{UID: u, Service: cart}, true
		},
		SubmitOutcomes: func(registry.Name, *health.Outcomes) {},
		Policy:         func() *authz.Policy { return policy },
	})
	st := s.newOutcomeStream(identity.Principal{ID: identity.MustParse("spiffe://prod.example/ns/shop/sa/web")})
	st.budget.SetLimit(1e12)
	st.budget.SetBurst(1 << 30)
	bind := &healthv1.OutcomeBind{}
	for u := range registry.UID(200) {
		bind.Instances = append(bind.Instances, (u + 1).String())
	}
	if err := st.bind(bind); err != nil {
		tb.Fatal(err)
	}
	return st
}

// TestIngestAllocatesNothing: decoding a frame and cutting it by service uses
// the stream's memory again.
func TestIngestAllocatesNothing(t *testing.T) {
	st, c := ingest(t), Codec()
	data := mem.BufferSlice{mem.SliceBuffer(marshal(t, batchOf(200)))}
	one := func() {
		if err := c.Unmarshal(data, &st.frame); err != nil {
			t.Fatal(err)
		}
		if err := st.take(time.Now(), false); err != nil {
			t.Fatal(err)
		}
	}
	one()
	if n := testing.AllocsPerRun(100, one); n != 0 {
		t.Errorf("%v allocations for 200 counts", n)
	}
	if got := st.tally.GetAccepted(); got == 0 || got%200 != 0 {
		t.Errorf("%d accepted", got)
	}
}

// BenchmarkIngest is one frame of 200 counts, from its bytes to the shard's door.
func BenchmarkIngest(b *testing.B) {
	st, c := ingest(b), Codec()
	data := mem.BufferSlice{mem.SliceBuffer(marshal(b, batchOf(200)))}
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Unmarshal(data, &st.frame); err != nil {
			b.Fatal(err)
		}
		if err := st.take(time.Now(), false); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/200, "ns/sample")
}

// BenchmarkGenerated is what the generated code takes for the same frame.
func BenchmarkGenerated(b *testing.B) {
	raw := marshal(b, batchOf(200))
	b.ReportAllocs()
	for b.Loop() {
		if err := proto.Unmarshal(raw, &healthv1.ReportOutcomesRequest{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/200, "ns/sample")
}
