package report_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/report"
	"github.com/sightlinedev/sightline/server/status"
)

var (
	front  = identity.MustParse("spiffe://prod.example/ns/shop/sa/front")
	bank   = identity.MustParse("spiffe://prod.example/ns/bank/sa/ledger")
	agent  = identity.MustParse("spiffe://prod.example/sightline/agent/n1")
	ledger = registry.Name{Namespace: "bank", Service: "ledger"}
)

func (w *world) outcomes(who identity.ID, frames ...any) (*healthv1.Tally, error) {
	s := &outcomeStream{ctx: caller(who, "127.0.0.9"), codec: report.Codec(), frames: frames}
	err := w.service.ReportOutcomes(s)
	return s.tally, err
}

func callees(ids ...string) *healthv1.OutcomeBind { return &healthv1.OutcomeBind{Instances: ids} }

// counts is a batch of one issued and one good call to each position.
func counts(at ...uint32) *healthv1.OutcomeBatch {
	b := &healthv1.OutcomeBatch{Interval: durationpb.New(2 * time.Second), Instance: at}
	for range at {
		b.Issued, b.Ok = append(b.Issued, 1), append(b.Ok, 1)
	}
	return b
}

// TestOutcomesArriveByService: one batch on two services becomes one report for
// each, with every column, of the stream's own identity and address.
func TestOutcomesArriveByService(t *testing.T) {
	w := newWorld(limits.Reports{})
	w.rows[7] = &registry.Instance{UID: 7, Service: registry.Name{Namespace: "shop", Service: "pay"}}
	b := &healthv1.OutcomeBatch{Interval: durationpb.New(1900 * time.Millisecond), Instance: []uint32{0, 2, 1},
		Issued: []uint32{300, 20000, 3_000_000_000}, Ok: []uint32{1, 2, 3}, Failed: []uint32{4, 5, 6}, Refused: []uint32{7, 8, 9}, InProgress: []uint32{10, 11, 12}}
	tally, err := w.outcomes(front, callees("i1", "i2"), callees("i7"), b, counts(1))
	if err != nil || tally.GetAccepted() != 4 || w.results[report.Accepted] != 4 {
		t.Fatalf("%v, tally %v", err, tally)
	}
	if len(w.reports) != 3 {
		t.Fatalf("%d reports: %+v", len(w.reports), w.reports)
	}
	first, second, last := w.reports[0], w.reports[1], w.reports[2]
	if first.name != cart || !slices.Equal(first.Entries, []health.Outcome{
		{UID: 1, Issued: 300, OK: 1, Failed: 4, Refused: 7, InProgress: 10}, {UID: 2, Issued: 3_000_000_000, OK: 3, Failed: 6, Refused: 9, InProgress: 12}}) {
		t.Errorf("%s: %+v", first.name, first.Entries)
	}
	if second.name.Service != "pay" || !slices.Equal(second.Entries, []health.Outcome{{UID: 7, Issued: 20000, OK: 2, Failed: 5, Refused: 8, InProgress: 11}}) {
		t.Errorf("%s: %+v", second.name, second.Entries)
	}
	if !slices.Equal(last.Entries, []health.Outcome{{UID: 2, Issued: 1, OK: 1}}) {
		t.Errorf("columns that are left out: %+v", last.Entries)
	}
	if r := first.Reporter; r.Identity != front || r.Addr.String() != "127.0.0.9" || r.Instance != 0 || first.Kind != health.FromLibrary || first.Interval != 1900*time.Millisecond {
		t.Errorf("%+v, %v, %s", r, first.Kind, first.Interval)
	}
	if age := time.Since(first.At); age < 0 || age > 10*time.Second {
		t.Errorf("ended %s ago", age)
	}
}

// TestOutcomesOnlyWhereTheCallerMayResolve: a service that is out of scope and
// an instance that never was look alike to the reporter, and apart to us.
func TestOutcomesOnlyWhereTheCallerMayResolve(t *testing.T) {
	w := newWorld(limits.Reports{})
	w.rows[8] = &registry.Instance{UID: 8, Service: ledger}
	tally, err := w.outcomes(front, callees("i8", "i99", "i1"), counts(0), counts(1), counts(5), counts(2))
	if err != nil || tally.GetAccepted() != 1 || tally.GetOutOfScope() != 3 || tally.GetUnattributed() != 0 {
		t.Errorf("%v, tally %v", err, tally)
	}
	if w.results[report.OutOfScope] != 1 || w.results[report.Unattributed] != 2 || w.results[report.Accepted] != 1 {
		t.Errorf("counted %v", w.results)
	}
	if len(w.reports) != 1 || w.reports[0].name != cart || !slices.Equal(w.hidden, []string{front.String() + " bank/ledger"}) {
		t.Errorf("delivered %+v, told of %q", w.reports, w.hidden)
	}
}

// TestScopeFollowsThePolicy: a permission that is given or withdrawn holds from
// the next batch on.
func TestScopeFollowsThePolicy(t *testing.T) {
	w := newWorld(limits.Reports{})
	strict := w.policy
	open := &authz.Policy{Generation: 2, TrustDomain: "prod.example", Grants: []authz.Grant{
		{Caller: identity.Pattern{ID: bank}, Callee: authz.Callee{Namespace: "shop", Name: "cart"}}}}
	tally, err := w.outcomes(bank, callees("i1"), counts(0), counts(0), func() { w.policy = open }, counts(0), func() { w.policy = strict }, counts(0), counts(0, 0))
	if err != nil || tally.GetAccepted() != 1 || tally.GetOutOfScope() != 5 || len(w.hidden) != 2 {
		t.Errorf("%v, tally %v, told of %q", err, tally, w.hidden)
	}
}

// TestReportersOfAnAgent: an agent speaks for what it attested, in runs; a
// workload for nobody, not even its own copies.
func TestReportersOfAnAgent(t *testing.T) {
	w := newWorld(limits.Reports{})
	w.rows[8] = &registry.Instance{UID: 8, Service: ledger}
	cfg := w.config(limits.Reports{})
	cfg.Attested = func(who identity.Principal, uid registry.UID) (identity.ID, bool) {
		return map[registry.UID]identity.ID{1: web, 8: bank}[uid], who.ID == agent && (uid == 1 || uid == 8)
	}
	w.service = report.New(cfg)
	binding := &healthv1.OutcomeBind{Instances: []string{"i2"}, Reporters: []string{"i1", "i8", "i2"}}
	by := counts(0, 0, 0, 0, 0)
	by.Reporter = []uint32{0, 0, 1, 2, 9}
	tally, err := w.outcomes(agent, binding, by)
	if err != nil || tally.GetAccepted() != 2 || tally.GetOutOfScope() != 1 || tally.GetUnattributed() != 2 {
		t.Errorf("%v, tally %v", err, tally)
	}
	if len(w.reports) != 1 || w.reports[0].Reporter != (health.Reporter{Identity: web, Instance: 1}) || len(w.reports[0].Entries) != 2 {
		t.Errorf("delivered %+v", w.reports)
	}
	if !slices.Equal(w.hidden, []string{bank.String() + " shop/cart"}) {
		t.Errorf("told of %q", w.hidden)
	}
	w.reports = nil
	tally, err = w.outcomes(web, binding, by, counts(0))
	if err != nil || tally.GetAccepted() != 1 || tally.GetUnattributed() != 5 || len(w.reports) != 1 || w.reports[0].Reporter.Instance != 0 {
		t.Errorf("a workload: %v, tally %v, delivered %+v", err, tally, w.reports)
	}
}

// TestAForeignReporterLearnsNoIds: what is said for somebody else comes back
// alike, whether or not it is about an instance that there is.
func TestAForeignReporterLearnsNoIds(t *testing.T) {
	told := map[string]bool{}
	for _, id := range []string{"i1", "i8", "i99"} { // one's own service's, another's, nobody's
		w := newWorld(limits.Reports{})
		w.rows[8] = &registry.Instance{UID: 8, Service: ledger}
		by := counts(0)
		by.Reporter = []uint32{0}
		tally, err := w.outcomes(front, &healthv1.OutcomeBind{Instances: []string{id}, Reporters: []string{"i2"}}, by)
		if err != nil || len(w.reports) != 0 || w.results[report.Unattributed] != 1 {
			t.Errorf("%s: %v, delivered %+v, counted %v", id, err, w.reports, w.results)
		}
		told[tally.String()] = true
	}
	if len(told) != 1 {
		t.Errorf("three answers where one was due: %v", told)
	}
}

// TestNobodyIsAttestedByDefault: an agent whose instances are not known speaks
// for none of them.
func TestNobodyIsAttestedByDefault(t *testing.T) {
	w := newWorld(limits.Reports{})
	by := counts(0)
	by.Reporter = []uint32{0}
	tally, err := w.outcomes(agent, &healthv1.OutcomeBind{Instances: []string{"i2"}, Reporters: []string{"i1"}}, by)
	if err != nil || tally.GetUnattributed() != 1 || len(w.reports) != 0 || len(w.rules) != 1 {
		t.Errorf("%v, tally %v, delivered %+v, told %q", err, tally, w.reports, w.rules)
	}
}

// TestBacklogsAndFloodsOfOutcomes: what covers too long is stale, what comes too
// fast is over the limit.
func TestBacklogsAndFloodsOfOutcomes(t *testing.T) {
	l := limits.Default().Reports
	l.Rate, l.Burst = 0.001, 2
	w := newWorld(l)
	backlog := counts(0, 0)
	backlog.Interval = durationpb.New(5*time.Second + 1)
	tally, err := w.outcomes(front, callees("i1"), backlog, counts(0), counts(0), counts(0, 0, 0))
	if err != nil || tally.GetStale() != 2 || tally.GetAccepted() != 2 || tally.GetLimited() != 3 || len(w.reports) != 2 {
		t.Errorf("%v, tally %v", err, tally)
	}
}

// TestOutcomeFramesThatEndTheStream: each with its code, and nothing of the
// frame counts.
func TestOutcomeFramesThatEndTheStream(t *testing.T) {
	l := limits.Default().Reports
	l.Callees, l.MaxMessageBytes = 2, 100
	with := func(change func(*healthv1.OutcomeBatch)) *healthv1.OutcomeBatch {
		b := counts(0)
		change(b)
		return b
	}
	for name, row := range map[string]struct {
		frames []any
		want   codes.Code
	}{
		"batch first":    {[]any{counts(0)}, codes.InvalidArgument},
		"empty frame":    {[]any{nil}, codes.InvalidArgument},
		"not a uid":      {[]any{callees("17")}, codes.InvalidArgument},
		"not a reporter": {[]any{&healthv1.OutcomeBind{Reporters: []string{"x"}}}, codes.InvalidArgument},
		"too many ids":   {[]any{callees("i1", "i2"), callees("i3")}, codes.ResourceExhausted},
		"too many reporters": {[]any{&healthv1.OutcomeBind{Reporters: []string{"i1", "i2", "i3"}}},
			codes.ResourceExhausted},
		"too large":     {[]any{callees("i1"), counts(make([]uint32, 100)...)}, codes.ResourceExhausted},
		"issued short":  {[]any{callees("i1"), with(func(b *healthv1.OutcomeBatch) { b.Issued = nil })}, codes.InvalidArgument},
		"ok long":       {[]any{callees("i1"), with(func(b *healthv1.OutcomeBatch) { b.Ok = []uint32{1, 1} })}, codes.InvalidArgument},
		"refused long":  {[]any{callees("i1"), with(func(b *healthv1.OutcomeBatch) { b.Refused = []uint32{1, 1} })}, codes.InvalidArgument},
		"reporter long": {[]any{callees("i1"), with(func(b *healthv1.OutcomeBatch) { b.Reporter = []uint32{0, 0} })}, codes.InvalidArgument},
		"no interval":   {[]any{callees("i1"), with(func(b *healthv1.OutcomeBatch) { b.Interval = nil })}, codes.InvalidArgument},
		"below zero":    {[]any{callees("i1"), with(func(b *healthv1.OutcomeBatch) { b.Interval = durationpb.New(-1) })}, codes.InvalidArgument},
		"no duration": {[]any{callees("i1"), with(func(b *healthv1.OutcomeBatch) { b.Interval = &durationpb.Duration{Seconds: 1 << 62} })},
			codes.InvalidArgument},
		"too many nanos": {[]any{callees("i1"), with(func(b *healthv1.OutcomeBatch) { b.Interval = &durationpb.Duration{Nanos: 1e9} })},
			codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(l)
			_, err := w.outcomes(front, row.frames...)
			if _, coded := status.CodeOf(err); grpcstatus.Code(err) != row.want || !coded || len(w.reports) != 0 {
				t.Errorf("%v, delivered %+v", err, w.reports)
			}
		})
	}
}

// TestSubmittedOutcomes: what comes on another way is held to the same rules.
func TestSubmittedOutcomes(t *testing.T) {
	w := newWorld(limits.Reports{})
	who := identity.Principal{ID: front}
	batch := func(every time.Duration) *health.Outcomes {
		return &health.Outcomes{Kind: health.FromEnvoy, Interval: every, Entries: []health.Outcome{{UID: 1, Issued: 3, OK: 3}}}
	}
	for _, row := range []struct {
		who   identity.Principal
		n     registry.Name
		every time.Duration
		want  report.Result
	}{
		{who, cart, 2 * time.Second, report.Accepted},
		{who, ledger, 2 * time.Second, report.OutOfScope},
		{who, cart, 6 * time.Second, report.Stale},
		{identity.Principal{}, cart, 2 * time.Second, report.Unattributed},
	} {
		if got := w.service.SubmitOutcomes(row.who, row.n, batch(row.every)); got != row.want {
			t.Errorf("%v on %s over %s: %s, want %s", row.who, row.n, row.every, got, row.want)
		}
	}
	if len(w.reports) != 1 || w.reports[0].Kind != health.FromEnvoy || w.reports[0].Reporter.Identity != front || w.reports[0].At.IsZero() {
		t.Errorf("delivered %+v", w.reports)
	}
	if w.results[report.Accepted] != 1 || w.results[report.OutOfScope] != 1 || w.results[report.Stale] != 1 || w.results[report.Unattributed] != 1 {
		t.Errorf("counted %v", w.results)
	}
}
