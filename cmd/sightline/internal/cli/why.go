package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

const whyLong = `Explains a verdict: the rule that decided, what each evidence class says with its
score, its lines, its age and its reporters, what is not the cause, when the
instance returns, and everything that holds a change back now with its end.

For a service it says the same of every instance that is not simply eligible.

  GOOD     fresh, and at or under the line to come back (in)
  BETWEEN  fresh, between the two lines: neither takes out nor lets return
  BAD      over the line that takes an instance out (out)
  SILENT   nothing heard within the class's silence limit: never a failure
  -        the runtime does not give this signal (see its capability profile)

-o wide adds each prober and the loudest callers. The page docs/WHY.md explains
rules, states and dampers.`

func (a *app) whyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "why NS/SVC[/INST]", Short: "Why an instance or a service stands as it does", Args: cobra.ExactArgs(1),
		Long:    whyLong,
		Example: "  sightline why shop/checkout/checkout-3\n  sightline why shop/checkout\n  sightline why shop/checkout/checkout-3 -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := a.splitSubject(args[0])
			if err != nil {
				return err
			}
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				e, err := explanation(ctx, conn, of)
				if err != nil {
					return err
				}
				return a.printWhy(e, of)
			})
		},
	}
}

// subject is what NS/SVC or NS/SVC/INST names.
type subject struct{ namespace, service, instance string }

func (s subject) String() string {
	if s.instance == "" {
		return s.namespace + "/" + s.service
	}
	return s.namespace + "/" + s.service + "/" + s.instance
}

// splitSubject reads NS/SVC or NS/SVC/INST; a bare SVC takes the namespace of -n.
func (a *app) splitSubject(arg string) (s subject, err error) {
	kind, rest, typed := strings.Cut(arg, "/")
	if typed && (kind == "service" || kind == "instance") && strings.Contains(rest, "/") {
		arg = rest
	}
	switch strings.Count(arg, "/") {
	case 2:
		s.namespace, s.service, s.instance, err = a.splitInstance(arg)
	default:
		s.namespace, s.service, err = a.splitService(arg)
	}
	return s, err
}

func explanation(ctx context.Context, conn *grpc.ClientConn, of subject) (*adminv1.ServiceExplanation, error) {
	r, err := adminv1.NewAdminServiceClient(conn).Explain(ctx, &adminv1.ExplainRequest{Namespace: of.namespace, Name: of.service, Instance: of.instance})
	return r.GetService(), err
}

func (a *app) printWhy(e *adminv1.ServiceExplanation, of subject) error {
	if !a.printer().human() {
		return a.printer().list(listing{kind: "ExplanationList", rows: []row{{name: of.String(), item: e}}})
	}
	s := whyScreen{app: a, service: e, now: e.GetTime().AsTime()}
	if of.instance != "" {
		for _, x := range e.GetInstances() {
			s.instance(x)
		}
		return nil
	}
	s.whole()
	return nil
}

// whyScreen prints an explanation for a person.
type whyScreen struct {
	*app
	service *adminv1.ServiceExplanation
	now     time.Time // the server's, which ages and times are measured from
}

func (s *whyScreen) say(format string, args ...any) {
	fmt.Fprintln(s.out, plain(strings.TrimRight(fmt.Sprintf(format, args...), " ")))
}

// point prints a fact of a group under its label.
func (s *whyScreen) point(label, format string, args ...any) {
	s.say("  %-11s %s", label, fmt.Sprintf(format, args...))
}

func (s *whyScreen) name() string { return s.service.GetNamespace() + "/" + s.service.GetName() }

// instance is the whole of one instance's explanation.
func (s *whyScreen) instance(x *adminv1.InstanceExplanation) {
	full := s.name() + "/" + shown(x.GetLabel(), x.GetUid())
	s.say("%s  %s for %s     %s", full, strings.ToUpper(stateWord(x)), span(s.now.Sub(x.GetSince().AsTime())), s.held())
	s.say("%s  zone %s  %s", x.GetUid(), cell(x.GetZone()), s.given(x))
	s.say("")
	s.say("because  %s: %s", ruleWords(x), x.GetDetail())
	s.evidence(x)
	s.effects(x)
	if len(x.GetNotTheCause()) > 0 {
		s.say("not the cause")
		for _, aside := range x.GetNotTheCause() {
			s.point(aside.GetWhat(), "%s", aside.GetDetail())
		}
	}
	s.ahead(x)
	s.dampers(x)
	s.say("")
	s.say("history: %[1]s history %[2]s     live samples: %[1]s tap %[2]s", s.self, full)
}

// held says which view callers have, and how many of them.
func (s *whyScreen) held() string {
	e := s.service
	if e.GetEndpointVersion() == "" {
		return "not published yet"
	}
	text := "view " + seqOf(e.GetEndpointVersion(), e.GetEndpointVersion())
	c := e.GetClients()
	switch {
	case c.GetConnected() == 0:
		return text + ", no client subscribes"
	case c.GetNacked() > 0:
		return text + fmt.Sprintf(", held by %d of %d clients, %d reject it", c.GetAtHead(), c.GetConnected(), c.GetNacked())
	}
	return text + fmt.Sprintf(", held by %d of %d clients", c.GetAtHead(), c.GetConnected())
}

// given says what callers make of the instance.
func (s *whyScreen) given(x *adminv1.InstanceExplanation) string {
	switch {
	case !x.GetMember():
		return "not admitted: in no view"
	case !x.GetListed():
		return fmt.Sprintf("callers are not given it (weight %d of %d)", x.GetWeight(), x.GetBaseWeight())
	}
	return fmt.Sprintf("callers are given it at weight %d of %d", x.GetWeight(), x.GetBaseWeight())
}

// ruleWords names the rule that decided, and what it is about.
func ruleWords(x *adminv1.InstanceExplanation) string {
	words := map[string]string{
		"R1": "its authority, its lease or an operator says so", "R2": "its own word, or a dependency's",
		"R3": "connections are refused, by two witnesses", "R4": "callers are primary and over the line",
		"R5": "probes are over the line", "R6": "every supplied class is silent", "R7": "nothing speaks against it",
		"admission": "it has not been admitted yet",
	}[x.GetRule()]
	if out := x.GetOutBy(); out != "" && out != x.GetRule() {
		words += ", out by " + out
	}
	if words == "" {
		return cell(x.GetRule())
	}
	return x.GetRule() + " (" + words + ")"
}

// evidence has a line for each class, the deciding one marked.
func (s *whyScreen) evidence(x *adminv1.InstanceExplanation) {
	s.say("evidence")
	for _, c := range x.GetEvidence() {
		word := standingWord(c.GetStanding())
		parts := []string{}
		if c.GetOut() > 0 {
			parts = append(parts, fmt.Sprintf("score %.2f (out at %.2f, in at %.2f, half-life %s)", c.GetScore(), c.GetOut(), c.GetIn(), c.GetHalfLife().AsDuration()))
		}
		parts = append(parts, c.GetDetail())
		if c.GetNewestAge() != nil {
			parts = append(parts, "newest "+span(c.GetNewestAge().AsDuration())+" ago")
		}
		mark := ""
		switch {
		case c.GetDeciding() && c.GetPrimary():
			mark = "   <- decides (primary)"
		case c.GetDeciding():
			mark = "   <- decides"
		case c.GetPrimary():
			mark = "   <- primary"
		}
		s.point(className(c), "%-8s %s%s", word, strings.Join(parts, ", "), mark)
		if s.format == "wide" {
			s.witnesses(c)
		}
	}
}

func className(c *adminv1.ClassEvidence) string {
	return lower(c.GetEvidenceClass().String(), "EVIDENCE_CLASS_")
}

func standingWord(st adminv1.Standing) string {
	switch st {
	case adminv1.Standing_STANDING_NOT_SUPPLIED, adminv1.Standing_STANDING_UNSPECIFIED:
		return "-"
	case adminv1.Standing_STANDING_NOT_HEARD:
		return "WAITING"
	}
	return strings.ToUpper(lower(st.String(), "STANDING_"))
}

// witnesses has a line for each prober and each caller that is kept.
func (s *whyScreen) witnesses(c *adminv1.ClassEvidence) {
	for _, p := range c.GetProbers() {
		notes := ""
		if p.GetOver() {
			notes += ", over the line"
		}
		if p.GetBlind() {
			notes += ", blind: counts as silence"
		}
		s.say("                prober %s in zone %s: score %.2f, newest %s %s ago%s", p.GetName(), cell(p.GetZone()), p.GetScore(),
			lower(p.GetResult().String(), "PROBE_RESULT_"), span(p.GetNewestAge().AsDuration()), notes)
	}
	for _, r := range c.GetCallers() {
		note := "does not count yet"
		switch {
		case r.GetAgainst():
			note = "against"
		case r.GetCounts():
			note = "not against"
		}
		s.say("                %s %s %s: %.0f of %.0f calls fail, %.2f at its siblings, %s", lower(r.GetKind().String(), "REPORTER_KIND_"),
			r.GetReporter(), r.GetAddress(), r.GetFailures(), r.GetSamples(), r.GetSiblings(), note)
	}
	if n := c.GetCallersOmitted(); n > 0 {
		s.say("                and %d more", n)
	}
}

// effects says what lowers the weight beside the verdict.
func (s *whyScreen) effects(x *adminv1.InstanceExplanation) {
	degraded := slices.ContainsFunc(x.GetDependencies(), (*adminv1.DependencyExplanation).GetDegraded)
	if x.GetRamp() == nil && !degraded {
		return
	}
	s.say("weight")
	for _, d := range x.GetDependencies() {
		if d.GetDegraded() {
			s.point("dependency", "%s is %s", d.GetName(), d.GetDetail())
		}
	}
	if r := x.GetRamp(); r != nil {
		text := fmt.Sprintf("%d %% of the full weight, step %d of %d", r.GetPercent(), r.GetStep(), r.GetSteps())
		if r.GetHeldBy() != "" {
			text += ", the next step waits: " + r.GetHeldBy()
		} else if r.GetNextTime() != nil {
			text += ", the next " + s.in(r.GetNextTime().AsTime())
		}
		if r.GetEndTime() != nil {
			text += ", full weight " + s.in(r.GetEndTime().AsTime())
		}
		s.point("ramp", "%s", text)
	}
}

// ahead says when an instance that is out returns.
func (s *whyScreen) ahead(x *adminv1.InstanceExplanation) {
	q := x.GetQuarantine()
	if len(x.GetReturns()) == 0 && !q.GetActive() {
		return
	}
	s.say("when it returns")
	for _, r := range x.GetReturns() {
		when := "not on this evidence"
		if r.GetTime() != nil {
			when = s.in(r.GetTime().AsTime())
		}
		s.point("from "+r.GetRule(), "%s: %s", when, r.GetDetail())
	}
	if q.GetActive() {
		note := ""
		if q.GetLifted() {
			note = "; lifted by the guard, so callers are given it all the same"
		}
		s.point("quarantine", "not before its end %s: %d changes within %s%s", s.in(q.GetEndTime().AsTime()), q.GetChanges(), span(q.GetWindow().AsDuration()), note)
		s.say("              end it now: %s quarantine release %s/%s --justification WHY", s.self, s.name(), shown(x.GetLabel(), x.GetUid()))
	}
}

// dampers lists what holds a change back now, of the instance and its service.
func (s *whyScreen) dampers(x *adminv1.InstanceExplanation) {
	all := s.service.GetDampers()
	for _, d := range x.GetDampers() {
		switch d.GetKind() {
		case adminv1.DamperKind_DAMPER_KIND_RETURN_HOLD, adminv1.DamperKind_DAMPER_KIND_RAMP: // said above
		default:
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return
	}
	s.say("held back by")
	for _, d := range all {
		s.damper(d)
	}
}

func (s *whyScreen) damper(d *adminv1.Damper) { s.say("  %s", s.damperText(d)) }

// whole is a service with every instance that is not simply eligible.
func (s *whyScreen) whole() {
	e := s.service
	c := e.GetCounts()
	s.say("%s  %d eligible, %d degraded, %d unknown, %d ineligible, %d not admitted     %s", s.name(),
		c.GetEligible(), c.GetDegraded(), c.GetUnknown(), c.GetIneligible(), c.GetUnadmitted(), s.held())
	s.say("")
	if e.GetEndpointVersion() != "" {
		s.point("guard", "%s", guardLine(e.GetGuard()))
		s.point("confidence", "%s", confidenceWords(e))
	}
	s.point("contract", "%s", cell(e.GetContract()))
	if r := e.GetRollout(); r != nil {
		s.point("rollout", "%s, in effect in %d of %d zones: %s", lower(r.GetState().String(), "ROLLOUT_STATE_"), len(r.GetZones()), r.GetZonesTotal(), r.GetDetail())
	}
	if len(e.GetDampers()) > 0 {
		s.say("held back by")
		for _, d := range e.GetDampers() {
			s.damper(d)
		}
	}
	s.instances()
}

// instancesShown bounds what a service's screen says of single instances.
const instancesShown = 20

// instances lists those that are not simply eligible, worst first.
func (s *whyScreen) instances() {
	var notable []*adminv1.InstanceExplanation
	var plainly, ramping int
	for _, state := range [...]viewv1.State{viewv1.State_STATE_INELIGIBLE, viewv1.State_STATE_DEGRADED, viewv1.State_STATE_UNKNOWN, viewv1.State_STATE_ELIGIBLE} {
		for _, x := range s.service.GetInstances() {
			switch {
			case x.GetState() != state:
			case !simply(x):
				notable = append(notable, x)
			case x.GetRamp() != nil:
				ramping++
			default:
				plainly++
			}
		}
	}
	if len(notable) > 0 {
		s.say("instances")
	}
	for _, x := range notable[:min(len(notable), instancesShown)] {
		s.say("  %s  %s for %s, %s", shown(x.GetLabel(), x.GetUid()), strings.ToUpper(stateWord(x)), span(s.now.Sub(x.GetSince().AsTime())), s.given(x))
		s.say("      %s: %s", ruleWords(x), x.GetDetail())
		for _, d := range x.GetDampers() {
			s.say("      %s", s.damperText(d))
		}
	}
	if more := len(notable) - instancesShown; more > 0 {
		s.say("  and %d more: %s service describe %s", more, s.self, s.name())
	}
	s.rest(len(notable), plainly, ramping)
	s.say("")
	if len(notable) > 0 {
		s.say("one of them: %[1]s why %[2]s/%[3]s     changes: %[1]s history %[2]s", s.self, s.name(), shown(notable[0].GetLabel(), notable[0].GetUid()))
		return
	}
	s.say("changes: %[1]s history %[2]s     live samples: %[1]s tap %[2]s", s.self, s.name())
}

// rest counts the instances that there is little to say of.
func (s *whyScreen) rest(notable, plainly, ramping int) {
	if notable+plainly+ramping == 0 {
		s.say("no instances: nothing is registered for this service. See: %s instance register --help", s.self)
	}
	if ramping > 0 {
		s.say("%s eligible, on the ramp to full weight", counted(ramping, "instance"))
	}
	if plainly > 0 {
		s.say("%s eligible at full weight, nothing held back", counted(plainly, "instance"))
	}
}

func (s *whyScreen) damperText(d *adminv1.Damper) string {
	end := ""
	if d.GetEndTime() != nil {
		end = ", ends " + s.in(d.GetEndTime().AsTime())
	}
	return lower(d.GetKind().String(), "DAMPER_KIND_") + end + ": " + d.GetDetail()
}

// simply says whether there is nothing to say of an instance, a ramp aside.
func simply(x *adminv1.InstanceExplanation) bool {
	for _, d := range x.GetDampers() {
		if d.GetKind() != adminv1.DamperKind_DAMPER_KIND_RAMP {
			return false
		}
	}
	return x.GetState() == viewv1.State_STATE_ELIGIBLE && x.GetMember() && x.GetListed() && !x.GetDraining()
}

func confidenceWords(e *adminv1.ServiceExplanation) string {
	word := lower(e.GetConfidence().String(), "CONFIDENCE_")
	switch e.GetConfidence() {
	case viewv1.Confidence_CONFIDENCE_EXISTENCE_ONLY:
		return word + ": no evidence class is supplied, members are eligible because they exist"
	case viewv1.Confidence_CONFIDENCE_SINGLE_CLASS:
		return word + ": one evidence class is supplied, nothing can contradict it"
	case viewv1.Confidence_CONFIDENCE_DEGRADED:
		return word + ": the guard tripped, or only unadmitted instances are left"
	}
	return word
}

// in is a time as people wait for it: in 12s, or now.
func (s *whyScreen) in(at time.Time) string {
	d := at.Sub(s.now)
	if d <= 0 {
		return "any moment"
	}
	return "in " + span(d)
}

// span is a duration as people read it: 0.4s, 12s, 1m12s, 2h05m.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours()/24), int(d.Hours())%24)
}
