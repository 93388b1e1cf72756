package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

// moment is when the screens of this file were taken.
func moment() time.Time { return time.Date(2026, 3, 1, 14, 2, 0, 0, time.UTC) }

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(moment().Add(-d)) }
func after(d time.Duration) *timestamppb.Timestamp  { return timestamppb.New(moment().Add(d)) }

// grey is a grey failure: callers fail, and probe and self are content.
func grey() *adminv1.ServiceExplanation {
	ago := func(d time.Duration) *durationpb.Duration { return durationpb.New(d) }
	x := &adminv1.InstanceExplanation{
		Uid: "i1883252405043203", Label: "checkout-3", Zone: "a", State: viewv1.State_STATE_INELIGIBLE, Member: true, Rule: "R4", OutBy: "R4",
		Detail: "callers: score 0.37 ≥ 0.20, 0.36 above its siblings, 4 of 4 reporters against, 412 samples; returns by a trial 15s after it",
		Since:  before(3 * time.Second), Weight: 100, BaseWeight: 100, Primary: registryv1.EvidenceClass_EVIDENCE_CLASS_CALLERS,
		Evidence: []*adminv1.ClassEvidence{
			{EvidenceClass: registryv1.EvidenceClass_EVIDENCE_CLASS_PROBE, Supplied: true, Fresh: true, Standing: adminv1.Standing_STANDING_GOOD, Out: 0.4, In: 0.1,
				HalfLife: ago(8 * time.Second), Samples: 18, Reporters: 2, NewestAge: ago(800 * time.Millisecond), Detail: "0 of 2 probers over the line",
				Probers: []*adminv1.ProberEvidence{
					{Name: "p1", Zone: "a", NewestAge: ago(800 * time.Millisecond), Result: healthv1.ProbeResult_PROBE_RESULT_OK},
					{Name: "p2", Zone: "b", NewestAge: ago(time.Second), Result: healthv1.ProbeResult_PROBE_RESULT_TIMEOUT, Score: 0.5, Over: true, Blind: true}}},
			{EvidenceClass: registryv1.EvidenceClass_EVIDENCE_CLASS_SELF, Supplied: true, Fresh: true, Standing: adminv1.Standing_STANDING_GOOD, Reporters: 1,
				NewestAge: ago(1100 * time.Millisecond), Detail: "SERVING"},
			{EvidenceClass: registryv1.EvidenceClass_EVIDENCE_CLASS_CALLERS, Supplied: true, Fresh: true, Primary: true, Deciding: true, Standing: adminv1.Standing_STANDING_BAD,
				Score: 0.37, Out: 0.2, In: 0.05, HalfLife: ago(4 * time.Second), Samples: 412, Reporters: 4, Against: 4, NewestAge: ago(400 * time.Millisecond),
				Detail: "37 % of 412 calls fail, 4 of 4 reporters against, 1 % at its siblings", CallersOmitted: 3,
				Callers: []*adminv1.ReporterEvidence{{Reporter: "spiffe://demo.test/ns/shop/sa/web", Address: "127.0.0.9", Kind: adminv1.ReporterKind_REPORTER_KIND_ENVOY,
					Samples: 110, Failures: 41, Score: 0.37, Siblings: 0.01, Counts: true, Against: true}}},
		},
		NotTheCause: []*adminv1.Aside{{What: "guard", Detail: "not tripped: 3 of 4 serve, the floor is 50 %"}, {What: "quarantine", Detail: "no: 1 change within 10m0s, 5 start one"},
			{What: "override", Detail: "none"}, {What: "lease", Detail: "none: source file:demo lists it"}},
		Returns:    []*adminv1.ReturnExplanation{{Rule: "R4", Since: before(3 * time.Second), Time: after(12 * time.Second), Trial: true, Detail: "a trial at the first step of its ramp, then the ramp over 1m0s"}},
		Quarantine: &adminv1.QuarantineExplanation{},
		Dampers:    []*adminv1.Damper{{Kind: adminv1.DamperKind_DAMPER_KIND_RETURN_HOLD, Detail: "out by R4", EndTime: after(12 * time.Second)}},
	}
	return &adminv1.ServiceExplanation{
		Namespace: "shop", Name: "checkout", EndpointVersion: "1772373720.119", ConfigVersion: "1772373720.7", Confidence: viewv1.Confidence_CONFIDENCE_FULL,
		Guard: &viewv1.Guard{Serving: 3, Members: 4, FloorPercent: 50}, Contract: "shop/checkout", Time: timestamppb.New(moment()),
		Counts: &adminv1.InstanceCounts{Eligible: 3, Ineligible: 1}, Clients: &adminv1.ClientCounts{Connected: 4, AtHead: 4},
		Instances: []*adminv1.InstanceExplanation{x},
	}
}

// flapping is the same instance in quarantine, with a dependency down, while the
// brake holds and a contract is rolled out.
func flapping() *adminv1.ServiceExplanation {
	e := grey()
	x := e.Instances[0]
	x.Quarantine = &adminv1.QuarantineExplanation{Active: true, Since: before(20 * time.Second), EndTime: after(40 * time.Second), Changes: 5, Limit: 5, Window: durationpb.New(10 * time.Minute)}
	x.Dampers = append(x.Dampers, &adminv1.Damper{Kind: adminv1.DamperKind_DAMPER_KIND_QUARANTINE, Detail: "5 changes within 10m0s", EndTime: after(40 * time.Second)})
	x.Dependencies = []*adminv1.DependencyExplanation{{Name: "payments", Degraded: true, Detail: "degraded, without effect now: another rule decides"}, {Name: "db", Detail: "not degraded"}}
	x.NotTheCause = x.NotTheCause[2:]
	e.Dampers = []*adminv1.Damper{{Kind: adminv1.DamperKind_DAMPER_KIND_BRAKE, Detail: "61 of 300 members of 4 services within a minute"},
		{Kind: adminv1.DamperKind_DAMPER_KIND_CONTRACT_ROLLOUT, Detail: "contract shop/checkout: 1 of 3 zones", EndTime: after(30 * time.Second)}}
	e.Rollout = &adminv1.RolloutExplanation{State: adminv1.RolloutState_ROLLOUT_STATE_ZONES, Zones: []string{"a"}, ZonesTotal: 3, Detail: "2 members out by it alone"}
	e.Clients = &adminv1.ClientCounts{Connected: 4, AtHead: 2, Nacked: 1}
	e.Instances = append(e.Instances,
		&adminv1.InstanceExplanation{Uid: "i1883252405043204", Label: "checkout-4", State: viewv1.State_STATE_ELIGIBLE, Member: true, Listed: true, Rule: "R7", Weight: 25, BaseWeight: 100,
			Since: before(30 * time.Second), Detail: "probe not over its line",
			Ramp:    &adminv1.RampExplanation{Percent: 25, Step: 2, Steps: 7, NextTime: after(4 * time.Second), EndTime: after(44 * time.Second)},
			Dampers: []*adminv1.Damper{{Kind: adminv1.DamperKind_DAMPER_KIND_RAMP, EndTime: after(44 * time.Second)}}},
		&adminv1.InstanceExplanation{Uid: "i1883252405043205", State: viewv1.State_STATE_ELIGIBLE, Member: true, Listed: true, Rule: "R7", Since: before(time.Hour)})
	return e
}

// screens are what each screen of testdata/screens.txt is printed from.
func screens() map[string]func(*app) error {
	only := func(e *adminv1.ServiceExplanation, i int) *adminv1.ServiceExplanation {
		e.Instances = e.Instances[i : i+1]
		return e
	}
	three, all := subject{"shop", "checkout", "checkout-3"}, subject{"shop", "checkout", ""}
	return map[string]func(*app) error{
		"grey":     func(a *app) error { return a.printWhy(grey(), three) },
		"flapping": func(a *app) error { return a.printWhy(only(flapping(), 0), three) },
		"ramping":  func(a *app) error { return a.printWhy(only(flapping(), 1), subject{"shop", "checkout", "checkout-4"}) },
		"service":  func(a *app) error { return a.printWhy(flapping(), all) },
		"nothing": func(a *app) error {
			return a.printWhy(&adminv1.ServiceExplanation{Namespace: "shop", Name: "checkout", Counts: &adminv1.InstanceCounts{}}, all)
		},
		"history": func(a *app) error {
			return a.printHistory(changesOfADay(), all, history{moment().Add(-time.Hour), moment(), time.Hour, true})
		},
		"no-change": func(a *app) error { return a.printHistory(nil, all, history{since: time.Hour}) },
		"quarantines": func(a *app) error {
			return a.printer().list(quarantineListing(quarantines(), &adminv1.ListQuarantinesRequest{}, moment()))
		},
		"no-quarantine": func(a *app) error {
			return a.printer().list(quarantineListing(nil, &adminv1.ListQuarantinesRequest{Namespace: "shop"}, moment()))
		},
		"trial":    func(a *app) error { return a.printTrial(trialOfADay(), "shop/checkout") },
		"no-trial": func(a *app) error { return a.printTrial(&adminv1.ContractTrial{}, "shop/checkout") },
		"no-differ": func(a *app) error {
			return a.printTrial(&adminv1.ContractTrial{Minutes: 60, Instances: 1, FromTime: before(time.Hour), ToTime: before(0)}, "shop/checkout")
		},
	}
}

// TestScreens prints explanations as a person sees them, line for line. The
// directive is `screen NAME [format=wide]`.
func TestScreens(t *testing.T) {
	here := time.Local
	time.Local = time.UTC
	defer func() { time.Local = here }()
	all := screens()
	datadriven.RunTest(t, "testdata/screens.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out bytes.Buffer
		a := &app{self: "sightline", out: &out, err: &out, format: "table"}
		d.MaybeScanArgs(t, "format", &a.format)
		show := all[d.CmdArgs[0].Key]
		if d.Cmd != "screen" || show == nil {
			d.Fatalf(t, "no screen %s", d.CmdArgs[0].Key)
		}
		if err := show(a); err != nil {
			fmt.Fprintf(&out, "[exit %d]\n", report(&out, err))
		}
		for line := range strings.Lines(out.String()) {
			if strings.TrimRight(line, " \n")+"\n" != line {
				t.Errorf("spaces at the end of %q", line)
			}
		}
		return out.String()
	})
}

// changesOfADay has an instance that went out for a while, and one that is new.
func changesOfADay() []*adminv1.Transition {
	one := func(ago time.Duration, label string, from, to viewv1.State, rule, detail, version string) *adminv1.Transition {
		return &adminv1.Transition{Time: before(ago), Service: "shop/checkout", Uid: "i17", Label: label, From: from, To: to, Rule: rule, Detail: detail, Version: version}
	}
	const in, out, unknown, degraded = viewv1.State_STATE_ELIGIBLE, viewv1.State_STATE_INELIGIBLE, viewv1.State_STATE_UNKNOWN, viewv1.State_STATE_DEGRADED
	gone := one(2*time.Minute, "checkout-1", in, viewv1.State_STATE_UNSPECIFIED, "R1", "its authority's complete list no longer has it", "1772373720.121")
	gone.Event = "removal"
	return []*adminv1.Transition{
		one(90*time.Second, "checkout-3", out, in, "R7", "probe not over its line", "1772373720.122"), gone,
		one(3*time.Minute, "checkout-3", degraded, out, "R4", "callers: score 0.37 ≥ 0.20", "1772373720.119"),
		one(10*time.Minute, "checkout-3", in, degraded, "R5", "probe: score 0.50 ≥ 0.40", "1772370000.9"),
		one(30*time.Minute, "checkout-4", unknown, in, "R7", "self reports SERVING", ""),
	}
}

func quarantines() []*adminv1.QuarantinedInstance {
	return []*adminv1.QuarantinedInstance{
		{Service: "shop/checkout", Uid: "i17", Label: "checkout-3", State: viewv1.State_STATE_ELIGIBLE, Quarantine: &adminv1.QuarantineExplanation{Active: true, Changes: 5,
			Since: before(20 * time.Second), EndTime: after(40 * time.Second), NextHold: durationpb.New(2 * time.Minute)}},
		{Service: "shop/pay", Uid: "i18", State: viewv1.State_STATE_INELIGIBLE, Quarantine: &adminv1.QuarantineExplanation{Active: true, Changes: 11, Lifted: true,
			Since: before(10 * time.Minute), EndTime: after(20 * time.Minute)}},
	}
}

func trialOfADay() *adminv1.ContractTrial {
	return &adminv1.ContractTrial{
		FromTime: before(time.Hour), ToTime: before(0), Minutes: 58, MissingMinutes: 2, Instances: 4,
		Changes: []*adminv1.TrialChange{
			{Uid: "i17", Label: "checkout-3", StartTime: before(40 * time.Minute), EndTime: before(36 * time.Minute), Live: viewv1.State_STATE_ELIGIBLE, LiveRule: "R7",
				Draft: viewv1.State_STATE_INELIGIBLE, DraftRule: "R5", Detail: "probe: score 0.30 ≥ 0.20"},
			{Uid: "i18", StartTime: before(5 * time.Minute), Live: viewv1.State_STATE_INELIGIBLE, LiveRule: "R4", Draft: viewv1.State_STATE_DEGRADED, DraftRule: "R4", Detail: "LRS errors are ignored"},
		},
		ChangesOmitted: 7, Peak: &adminv1.TrialPeak{Time: before(38 * time.Minute), DraftOut: 3, LiveOut: 1, Members: 4},
		Guards:  []*adminv1.TrialGuard{{Time: before(38 * time.Minute), Zone: "a", Serving: 1, Members: 4, FloorPercent: 50}},
		Caveats: []string{"within a minute the order of samples is not known"},
	}
}

// TestListsOfQuarantines have every format, as all lists do.
func TestListsOfQuarantines(t *testing.T) {
	for _, format := range formats {
		var out bytes.Buffer
		p := printer{out: &out, err: &out, format: format}
		if err := p.list(quarantineListing(quarantines(), &adminv1.ListQuarantinesRequest{}, moment())); err != nil {
			t.Fatal(err)
		}
		switch format {
		case "json":
			checkEnvelope(t, format, out.Bytes(), "QuarantineList")
		case "yaml":
			checkEnvelope(t, format, yamlToJSON(t, out.String()), "QuarantineList")
		case "name":
			if out.String() != "shop/checkout/checkout-3\nshop/pay/i18\n" {
				t.Errorf("names %q", out.String())
			}
		case "jsonl":
			if strings.Count(out.String(), "\n") != 2 {
				t.Errorf("jsonl %q", out.String())
			}
		default:
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			for _, l := range lines {
				if len(strings.Fields(l)) != len(strings.Fields(lines[0])) {
					t.Errorf("%s: %q has other columns than %q", format, l, lines[0])
				}
			}
		}
	}
}

// TestSampleTexts says what a sample says, by class.
func TestSampleTexts(t *testing.T) {
	for want, s := range map[string]*adminv1.Sample{
		"SERVING":                              {Detail: "SERVING", Count: 1},
		"entries of a load report (7 samples)": {Detail: "entries of a load report", Count: 7},
		"8 of 20 calls failed within 2s, 3 refused, 1 not ended": {Detail: "issued 21", Count: 21, Outcome: &adminv1.OutcomeSample{
			Issued: 21, Ok: 12, Failed: 8, Refused: 3, InProgress: 1, Interval: durationpb.New(2001 * time.Millisecond)}},
		"OK in 3ms": {Detail: "OK", Count: 1, Latency: durationpb.New(3 * time.Millisecond)},
	} {
		if got := sampleText(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	s := &adminv1.Sample{Reporter: "spiffe://demo.test/sightline/prober/p1", Zone: "b", Address: "127.0.0.1"}
	if got := reporterText(s); got != "spiffe://demo.test/sightline/prober/p1 zone b at 127.0.0.1" {
		t.Errorf("%q", got)
	}
}

// TestDiffLines shows a service that is new, one that is gone, and every way in
// which a member can differ.
func TestDiffLines(t *testing.T) {
	v := func(seq string) *viewv1.View {
		return &viewv1.View{Namespace: "shop", Name: "cart", EndpointVersion: "7." + seq, ConfigVersion: "7.1", Confidence: viewv1.Confidence_CONFIDENCE_FULL,
			Guard: &viewv1.Guard{Serving: 1, Members: 2, FloorPercent: 50}, Contract: "shop/cart"}
	}
	m := func(label string, change func(*viewv1.Member)) *viewv1.Member {
		m := &viewv1.Member{Uid: "i17", Label: label, Endpoint: &viewv1.Member_Address{Address: "10.0.0.1"}, State: viewv1.State_STATE_ELIGIBLE, Weight: 100, BaseWeight: 100,
			Listed: true, Zone: "a", Evidence: &viewv1.Evidence{Rule: "R7", Detail: "self reports SERVING"}}
		if change != nil {
			change(m)
		}
		return m
	}
	out := func(m *viewv1.Member) {
		m.State, m.Listed, m.LastResort, m.Weight = viewv1.State_STATE_INELIGIBLE, false, true, 1
		m.Evidence = &viewv1.Evidence{Rule: "R4", Detail: "callers: score 0.37"}
	}
	changed := &adminv1.ViewDiff{Before: v("8"), After: v("9"), Members: []*adminv1.MemberDiff{
		{After: m("new", nil)}, {Before: m("old", func(m *viewv1.Member) { m.Draining = true })}, {Before: m("c", nil), After: m("c", out)},
		{Before: m("d", nil), After: m("d", func(m *viewv1.Member) { m.OwnLocality = true })},
	}}
	changed.After.Guard = &viewv1.Guard{Tripped: true, Serving: 0, Members: 2, FloorPercent: 50}
	changed.After.Ports = []*registryv1.Port{{Name: "grpc", Number: 1, Protocol: registryv1.Protocol_PROTOCOL_GRPC}}
	for _, c := range []struct {
		diff *adminv1.ViewDiff
		want string
	}{
		{changed, `  shop/cart  view 8 -> 9  config 1 -> 1
  ~ guard not tripped: 1 of 2 serving, floor 50% -> TRIPPED, all are listed: 0 of 2 serving, floor 50%
  ~ ports <none> -> grpc:1/grpc
  + new  10.0.0.1  eligible, weight 100, listed yes   R7: self reports SERVING
  - old  10.0.0.1  eligible,draining, weight 100, listed yes
  ~ c  state eligible -> ineligible, listed yes -> no, weight 100 -> 1, last resort no -> yes   R4: callers: score 0.37
  ~ d  something that is not shown here; see -o json   R7: self reports SERVING`},
		{&adminv1.ViewDiff{After: v("9"), Members: []*adminv1.MemberDiff{{After: m("new", nil)}}},
			"+ shop/cart  the service is new\n  + new  10.0.0.1  eligible, weight 100, listed yes   R7: self reports SERVING"},
		{&adminv1.ViewDiff{Before: v("9")}, "- shop/cart  the service is gone"},
	} {
		if got := strings.Join(diffLines(c.diff), "\n"); got != c.want {
			t.Errorf("it prints\n%s\nwant\n%s", got, c.want)
		}
	}
}
