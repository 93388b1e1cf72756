package report_test

import (
	"context"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/report"
	"github.com/sightlinedev/sightline/server/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	serving    = healthv1.SelfStatus_SELF_STATUS_SERVING
	notServing = healthv1.SelfStatus_SELF_STATUS_NOT_SERVING
)

var (
	web  = identity.MustParse("spiffe://prod.example/ns/shop/sa/web")
	db   = identity.MustParse("spiffe://prod.example/ns/shop/sa/db")
	cart = registry.Name{Namespace: "shop", Service: "cart"}
)

// world is a registry of two instances, and what the shards were given.
type world struct {
	rows    map[registry.UID]*registry.Instance
	got     []health.Sample
	reports []delivered
	results map[report.Result]int
	rules   []string
	hidden  []string
	proved  []registry.UID
	probers atomic.Int64
	policy  *authz.Policy
	service *report.Service
}

// delivered is one report as a shard was given it.
type delivered struct {
	name registry.Name
	health.Outcomes
}

func newWorld(l limits.Reports) *world {
	w := &world{results: map[report.Result]int{}, rows: map[registry.UID]*registry.Instance{
		1: {UID: 1, Service: cart, Identity: web},
		2: {UID: 2, Service: cart, Identity: db},
		3: {UID: 3, Service: cart},
	}}
	w.policy = &authz.Policy{Generation: 1, TrustDomain: "prod.example"}
	w.service = report.New(w.config(l))
	return w
}

func (w *world) config(l limits.Reports) report.Config {
	return report.Config{
		Lookup: func(u registry.UID) (*registry.Instance, bool) { i, ok := w.rows[u]; return i, ok },
		Submit: func(_ registry.Name, s []health.Sample) { w.got = append(w.got, s...) },
		SubmitOutcomes: func(n registry.Name, o *health.Outcomes) {
			d := delivered{n, *o}
			d.Entries = slices.Clone(o.Entries)
			w.reports = append(w.reports, d)
		},
		Policy: func() *authz.Policy { return w.policy },
		Proved: func(u registry.UID) { w.proved = append(w.proved, u) },
		Limits: l,
		Events: report.Events{
			Samples:      func(_ registry.EvidenceClass, r report.Result, n int) { w.results[r] += n },
			Unattributed: func(_ identity.Principal, rule string) { w.rules = append(w.rules, rule) },
			OutOfScope: func(who identity.Principal, n registry.Name, _ string) {
				w.hidden = append(w.hidden, who.String()+" "+n.String())
			},
			ProberCame: func(_ registry.Prober, n int) { w.probers.Store(int64(n)) },
			ProberWent: func(_ registry.Prober, n int) { w.probers.Store(int64(n)) },
		},
	}
}

// stream feeds frames to a handler; a func frame runs between two of them.
type stream struct {
	grpc.ServerStream
	ctx    context.Context
	frames []any
	tally  *healthv1.Tally
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) Recv() (*healthv1.ReportSelfRequest, error) {
	for len(s.frames) > 0 {
		f := s.frames[0]
		s.frames = s.frames[1:]
		switch f := f.(type) {
		case func():
			f()
		case *healthv1.SelfBind:
			return &healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Bind{Bind: f}}, nil
		case *healthv1.SelfBatch:
			return &healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Batch{Batch: f}}, nil
		case nil:
			return &healthv1.ReportSelfRequest{}, nil
		}
	}
	return nil, io.EOF
}

func (s *stream) SendAndClose(r *healthv1.ReportSelfResponse) error {
	s.tally = r.GetTally()
	return nil
}

func (w *world) run(who identity.ID, frames ...any) (*healthv1.Tally, error) {
	p := identity.Principal{ID: who, Addr: netip.MustParseAddr("127.0.0.9")}
	s := &stream{ctx: svid.WithPrincipal(context.Background(), p), frames: frames}
	err := w.service.ReportSelf(s)
	return s.tally, err
}

func bind(ids ...string) *healthv1.SelfBind { return &healthv1.SelfBind{Instances: ids} }

func batch(at uint32, s healthv1.SelfStatus) *healthv1.SelfBatch {
	return &healthv1.SelfBatch{Instance: []uint32{at}, Status: []healthv1.SelfStatus{s}}
}

// TestOnlyOnesOwnWordCounts: of what a reporter says about itself, another, an
// instance without identity, an id that never was and a position not bound,
// one sample reaches the shard.
func TestOnlyOnesOwnWordCounts(t *testing.T) {
	w := newWorld(limits.Reports{})
	tally, err := w.run(web, bind("i1", "i2", "i3", "i99"), batch(0, notServing), batch(1, notServing),
		batch(2, notServing), batch(3, notServing), batch(4, notServing))
	if err != nil {
		t.Fatal(err)
	}
	if tally.GetAccepted() != 1 || tally.GetUnattributed() != 4 || w.results[report.Unattributed] != 4 {
		t.Errorf("tally %v, counted %v", tally, w.results)
	}
	if len(w.got) != 1 || w.got[0].UID != 1 || w.got[0].Status != health.NotServing || w.got[0].Class != registry.ClassSelf {
		t.Errorf("submitted %+v", w.got)
	}
	if len(w.rules) != 1 {
		t.Errorf("one bind told %q", w.rules)
	}
}

// TestALateWordHasNoEffect: an instance that is gone is nobody's any more.
func TestALateWordHasNoEffect(t *testing.T) {
	w := newWorld(limits.Reports{})
	tally, err := w.run(web, bind("i1"), batch(0, serving), func() { delete(w.rows, 1) }, batch(0, notServing))
	if err != nil || tally.GetAccepted() != 1 || tally.GetUnattributed() != 1 || len(w.got) != 1 {
		t.Errorf("%v, tally %v, submitted %+v", err, tally, w.got)
	}
}

// TestAgeAndDependencies: a sample carries when it was taken and what is
// degraded, sorted and once.
func TestAgeAndDependencies(t *testing.T) {
	w := newWorld(limits.Reports{})
	b := batch(0, serving)
	b.Age = durationpb.New(3 * time.Second)
	b.DegradedInstance, b.DegradedDependency = []uint32{0, 0, 0}, []uint32{1, 0, 1}
	old := batch(0, notServing)
	old.Age = durationpb.New(31 * time.Second)
	tally, err := w.run(web, &healthv1.SelfBind{Instances: []string{"i1"}, Dependencies: []string{"queue", "db"}}, b, old)
	if err != nil || tally.GetAccepted() != 1 || tally.GetStale() != 1 {
		t.Fatalf("%v, tally %v", err, tally)
	}
	s := w.got[0]
	if age := time.Since(s.At); age < 3*time.Second || age > 13*time.Second || !slices.Equal(s.Degraded, []string{"db", "queue"}) {
		t.Errorf("age %v, degraded %v", age, s.Degraded)
	}
}

// TestAStreamThatIsTooFast loses what is ordinary, never a NOT_SERVING.
func TestAStreamThatIsTooFast(t *testing.T) {
	l := limits.Default().Reports
	l.Rate, l.Burst = 0.001, 2
	w := newWorld(l)
	tally, err := w.run(web, bind("i1"), batch(0, serving), batch(0, serving), batch(0, serving), batch(0, notServing))
	if err != nil || tally.GetAccepted() != 3 || tally.GetLimited() != 1 || w.got[len(w.got)-1].Status != health.NotServing {
		t.Errorf("%v, tally %v, submitted %+v", err, tally, w.got)
	}
}

// TestNobodyPressesForEver: a stream that is too fast gets each word against its
// instance through once, not as often as it repeats or alternates them.
func TestNobodyPressesForEver(t *testing.T) {
	const draining = healthv1.SelfStatus_SELF_STATUS_DRAINING
	l := limits.Default().Reports
	l.Rate, l.Burst = 0.001, 1
	w := newWorld(l)
	frames := []any{bind("i1"), batch(0, notServing)}
	for range 50 {
		frames = append(frames, batch(0, draining), batch(0, notServing), batch(0, serving))
	}
	tally, err := w.run(web, frames...)
	if err != nil || tally.GetAccepted() != 3 || tally.GetLimited() != 148 {
		t.Errorf("%v, tally %v", err, tally)
	}
	var heard []health.SelfStatus
	for _, s := range w.got {
		heard = append(heard, s.Status)
	}
	if !slices.Equal(heard, []health.SelfStatus{health.NotServing, health.Draining, health.NotServing}) {
		t.Errorf("heard %v", heard)
	}
}

// TestFramesThatEndTheStream: each with its code, the rule and no sample.
func TestFramesThatEndTheStream(t *testing.T) {
	l := limits.Default().Reports
	l.Instances, l.Dependencies = 2, 1
	needs := func(names ...string) *healthv1.SelfBind { return &healthv1.SelfBind{Dependencies: names} }
	negative := batch(0, serving)
	negative.Age = durationpb.New(-time.Second)
	for name, row := range map[string]struct {
		frames []any
		want   codes.Code
	}{
		"batch first":        {[]any{batch(0, serving)}, codes.InvalidArgument},
		"empty frame":        {[]any{nil}, codes.InvalidArgument},
		"not a uid":          {[]any{bind("17")}, codes.InvalidArgument},
		"uid zero":           {[]any{bind("i0")}, codes.InvalidArgument},
		"too many ids":       {[]any{bind("i1", "i2", "i3")}, codes.ResourceExhausted},
		"too many over time": {[]any{bind("i1", "i2"), bind("i3")}, codes.ResourceExhausted},
		"too many needs":     {[]any{needs("db"), needs("queue")}, codes.ResourceExhausted},
		"a need of no name":  {[]any{needs("")}, codes.InvalidArgument},
		"a long need":        {[]any{needs(strings.Repeat("d", 60_000))}, codes.InvalidArgument},
		"a need that rings":  {[]any{needs("db\a")}, codes.InvalidArgument},
		"lengths differ":     {[]any{bind("i1"), &healthv1.SelfBatch{Instance: []uint32{0, 0}, Status: []healthv1.SelfStatus{serving}}}, codes.InvalidArgument},
		"no status":          {[]any{bind("i1"), batch(0, 0)}, codes.InvalidArgument},
		"unknown status":     {[]any{bind("i1"), batch(0, 77)}, codes.InvalidArgument},
		"age below zero":     {[]any{bind("i1"), negative}, codes.InvalidArgument},
		"dependency not bound": {[]any{bind("i1"), &healthv1.SelfBatch{Instance: []uint32{0}, Status: []healthv1.SelfStatus{serving},
			DegradedInstance: []uint32{0}, DegradedDependency: []uint32{0}}}, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(l)
			_, err := w.run(web, row.frames...)
			if _, coded := status.CodeOf(err); grpcstatus.Code(err) != row.want || !coded || len(w.got) != 0 {
				t.Errorf("%v, submitted %+v", err, w.got)
			}
		})
	}
}

// TestStreamsOfOneReporterAreBounded: the one over the limit is refused, and
// the place of one that ended is free again.
func TestStreamsOfOneReporterAreBounded(t *testing.T) {
	l := limits.Default().Reports
	l.Streams = 1
	w := newWorld(l)
	var inner error
	if _, err := w.run(web, bind("i1"), func() { _, inner = w.run(web, bind("i1")) }); err != nil {
		t.Error(err)
	}
	if grpcstatus.Code(inner) != codes.ResourceExhausted {
		t.Errorf("a second stream: %v", inner)
	}
	if _, err := w.run(web, bind("i1")); err != nil {
		t.Errorf("after both ended: %v", err)
	}
}

// TestNoCallerNoReport: nothing is taken from a stream without an identity.
func TestNoCallerNoReport(t *testing.T) {
	w := newWorld(limits.Reports{})
	for name, err := range map[string]error{
		"ReportSelf":      w.service.ReportSelf(&stream{ctx: context.Background()}),
		"ReportProbes":    w.service.ReportProbes(&probeStream{ctx: context.Background()}),
		"ReportOutcomes":  w.service.ReportOutcomes(&outcomeStream{ctx: context.Background()}),
		"WatchAssignment": w.service.WatchAssignment(&healthv1.WatchAssignmentRequest{}, &assignmentStream{ctx: context.Background()}),
	} {
		if grpcstatus.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
	}
}
