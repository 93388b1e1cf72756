package views

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

// world is one service with its Assembler in front of a Publisher, driven by
// the text of a scenario. Its clock starts at the zero point of the scenario.
type world struct {
	now      time.Time
	name     Name
	a        *Assembler
	p        *Publisher
	service  *registry.Service
	contract registry.Contract
	change   *registry.Change
	rows     map[UID]*registry.Instance
	verdicts map[UID]health.Verdict
	touched  map[UID]bool
	raised   map[UID]raisedRamp // as of the last check
}

var scenarioStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(c PublisherConfig) *world {
	w := &world{now: scenarioStart, name: Name{Namespace: "shop", Service: "checkout"}, p: NewPublisher(c)}
	w.fresh(Memory{})
	return w
}

func (w *world) fresh(m Memory) {
	w.a = NewAssembler(w.name, m)
	w.rows, w.verdicts, w.touched = map[UID]*registry.Instance{}, map[UID]health.Verdict{}, map[UID]bool{}
	w.raised = nil
	w.service = &registry.Service{Name: w.name, Ports: []Port{{Name: "grpc", Number: 8080, Protocol: registry.GRPC}}}
	w.contract = registry.Contract{Name: w.name, GuardPercent: 50}
}

// TestScenarios runs every text scenario. A block is one application at a time:
// its lines are what happened since the last one, its output the incidents, the
// publisher's decision and, with "show", the published view.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		w := newWorld(PublisherConfig{Epoch: 7})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "apply":
				return w.apply(t, d)
			case "complete":
				w.p.Complete()
				return ""
			case "fanout":
				return w.fanOut(t, d)
			case "restart":
				return w.restart(d.HasArg("lost"))
			case "restamp":
				c := w.a.Candidate()
				c.Restamp = true
				return w.publish(c)
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

func (w *world) fanOut(t *testing.T, d *datadriven.TestData) string {
	var took string
	w.advance(t, d)
	d.ScanArgs(t, "took", &took)
	dur, err := time.ParseDuration(took)
	if err != nil {
		t.Fatal(err)
	}
	w.p.FanOut(w.now, dur)
	wide, since := w.p.Shedding()
	wide = wide.Round(time.Millisecond)
	if since.IsZero() {
		return fmt.Sprintf("window %v\n", wide)
	}
	return fmt.Sprintf("window %v, shedding since %v\n", wide, since.Sub(scenarioStart))
}

// restart is a new process: the rows and the assembler's memory survive, and
// the view store's hashes; lost: the memory does not.
func (w *world) restart(lost bool) string {
	stored := map[Name]Stored{}
	for v := range w.p.Snapshot().All() {
		stored[v.Name] = Stored{v.Endpoint, v.Config, v.EndpointHash, v.ConfigHash}
	}
	epoch, next := w.p.Reserved()
	recent, _, _ := w.p.Since(Version{epoch, 0})
	memory, rows, verdicts, service, contract := w.a.Memory(), w.rows, w.verdicts, w.service, w.contract
	if lost {
		memory = Memory{}
	}
	w.p = NewPublisher(PublisherConfig{Epoch: epoch + 1, Next: next, Reserved: next + 100, Stored: stored, Recent: recent})
	w.fresh(memory)
	w.rows, w.verdicts, w.service, w.contract = rows, verdicts, service, contract
	w.edit()
	for uid, row := range rows {
		w.change.Instances = append(w.change.Instances, registry.InstanceChange{UID: uid, Row: row})
		w.touched[uid] = true
	}
	return w.offer(false)
}

func (w *world) edit() *registry.Change {
	if w.change == nil {
		w.change = &registry.Change{Name: w.name, Revision: 1}
	}
	w.change.Service, w.change.Contract = w.service, w.contract
	return w.change
}

func (w *world) apply(t *testing.T, d *datadriven.TestData) string {
	w.advance(t, d)
	for line := range strings.Lines(d.Input) {
		if f := strings.Fields(line); len(f) > 0 {
			w.do(t, f)
		}
	}
	out := w.offer(d.HasArg("show"))
	if d.HasArg("forms") {
		v := w.p.Snapshot().Get(w.name)
		out += fmt.Sprintf("%d members:", len(v.Members))
		for class, form := range v.Forms {
			out += " " + []string{"core", "java", "go", "node"}[class] + "=" + []string{"per-endpoint", "grouped", "flat"}[form]
		}
		for _, m := range v.Members {
			if m.OwnLocality {
				out += ", own " + m.UID.String()
			}
		}
		out += "\n"
	}
	return out
}

// advance sets the clock to the block's time, if it gives one.
func (w *world) advance(t *testing.T, d *datadriven.TestData) {
	if !d.HasArg("t") {
		return
	}
	var at string
	d.ScanArgs(t, "t", &at)
	after, err := time.ParseDuration(at)
	if err != nil {
		t.Fatal(err)
	}
	w.now = scenarioStart.Add(after)
}

// do takes one line of a scenario.
func (w *world) do(t *testing.T, f []string) {
	switch f[0] {
	case "service":
		s := *w.service
		for _, arg := range f[1:] {
			w.configure(t, &s, arg)
		}
		w.service = &s
		w.edit()
	case "delete":
		w.service = nil
		w.edit().Removal = registry.ServiceDeleted
	case "add":
		w.add(t, f[1], f[2:])
	case "verdict":
		for _, uid := range uids(t, f[1]) {
			v := w.verdicts[uid]
			for _, arg := range f[2:] {
				set(t, &v, arg)
			}
			w.verdicts[uid], w.touched[uid] = v, true
		}
	case "remove":
		for _, uid := range uids(t, f[1]) {
			delete(w.rows, uid)
			delete(w.verdicts, uid)
			w.edit().Instances = append(w.edit().Instances, registry.InstanceChange{UID: uid, Removal: removalNamed(t, f[2])})
		}
	default:
		t.Fatalf("unknown line %q", f)
	}
}

func (w *world) configure(t *testing.T, s *registry.Service, arg string) {
	switch key, value, _ := strings.Cut(arg, "="); key {
	case "guard":
		w.contract.GuardPercent = uint32(number(t, value))
	case "flat":
		w.contract.GRPC = registry.FormFlat
	case "prefer-zone":
		w.contract.Locality = registry.PreferZone
	case "anonymous":
		s.DNSAnonymous = true
	case "port":
		s.Ports = append(s.Ports[:1:1], Port{Name: "more", Number: uint16(number(t, value))})
	default:
		t.Fatalf("unknown service argument %q", arg)
	}
}

func (w *world) add(t *testing.T, which string, args []string) {
	for _, uid := range uids(t, which) {
		row := &registry.Instance{
			UID: uid, Service: w.name, Weight: 100, Region: "local", Zone: "a", Proof: registry.ByAuthority,
			Identity: identity.MustParse("spiffe://example.org/ns/shop/sa/checkout"),
			Endpoint: Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, byte(uid >> 8), byte(uid)})},
		}
		v := health.Verdict{UID: uid, State: Eligible, Member: true, Weight: 100, Rule: health.R7, Supplied: 3}
		for _, arg := range args {
			switch key, value, _ := strings.Cut(arg, "="); key {
			case "zone":
				row.Zone = value
			case "unproved":
				row.Proof = registry.Unproved
			case "base":
				row.Weight = uint32(number(t, value))
				v.Weight = row.Weight
			default:
				set(t, &v, arg)
			}
		}
		w.rows[uid], w.verdicts[uid], w.touched[uid] = row, v, true
		w.edit().Instances = append(w.edit().Instances, registry.InstanceChange{UID: uid, Row: row})
	}
}

// set changes a verdict by one word.
func set(t *testing.T, v *health.Verdict, arg string) {
	switch key, value, _ := strings.Cut(arg, "="); key {
	case "unknown":
		v.State, v.Rule = Unknown, health.R6
	case "eligible":
		v.State, v.Rule, v.Confirmed, v.DeadZone = Eligible, health.R7, false, false
	case "degraded":
		v.State, v.Rule, v.Weight = Degraded, health.R2, 50
	case "ineligible":
		v.State, v.Rule, v.Confirmed, v.DeadZone = Ineligible, health.R5, false, false
	case "confirmed":
		v.Confirmed = true
	case "dead": // its zone is, by the word of all probers outside
		v.DeadZone = true
	case "quarantined":
		v.Quarantined, v.Flaps = true, int(number(t, value))
	case "free":
		v.Quarantined = false
	case "overridden":
		v.State, v.Rule, v.Overridden = Ineligible, health.R1, true
	case "draining":
		v.Draining = true
	case "weight":
		v.Weight = uint32(number(t, value))
	case "ramping":
		v.Ramping = true
	case "held": // the ramp's next step waits
		v.RampHeld = true
	case "whole":
		v.Full = uint32(number(t, value))
	case "full":
		v.Ramping, v.RampHeld, v.Weight = false, false, 100
	case "unadmitted":
		v.Member, v.State, v.Rule = false, Unknown, health.Admission
	case "admitted":
		v.Member, v.State, v.Rule = true, Eligible, health.R7
	case "supplied":
		v.Supplied = registry.ClassSet(number(t, value))
	default:
		t.Fatalf("unknown verdict word %q", arg)
	}
}

// offer applies what the lines gathered and offers the candidate.
func (w *world) offer(show bool) string {
	in := Input{Change: w.change}
	for uid := range w.touched {
		in.Verdicts = append(in.Verdicts, w.verdicts[uid])
	}
	w.change, w.touched = nil, map[UID]bool{}
	c, next := w.a.Apply(w.now, in)
	var b strings.Builder
	for _, i := range c.Incidents {
		b.WriteString(describeIncident(i))
	}
	b.WriteString(w.publish(c))
	if !next.IsZero() {
		fmt.Fprintf(&b, "next %v\n", next.Sub(scenarioStart))
	}
	if show {
		b.WriteString(describeView(w.p.Snapshot().Get(w.name)))
	}
	return b.String()
}

func (w *world) publish(c Candidate) string {
	r := w.p.Publish(w.now, c)
	w.a.Published(r.Held)
	switch r.Outcome {
	case Published:
		kept := ""
		if r.Kept {
			kept = " kept"
		}
		lane := "withdrawals"
		if r.Publication.Lane == Additions {
			lane = "additions"
		}
		return fmt.Sprintf("published %v%s %s %s\n", r.Publication.Version, kept, lane, describeKinds(r.Publication.Kinds))
	case Deferred:
		return fmt.Sprintf("deferred until %v: %s\n", r.Until.Sub(scenarioStart), r.Reason)
	case Stale:
		return "stale: " + r.Reason + "\n"
	}
	return "unchanged\n"
}

func describeIncident(i Incident) string {
	s := "! " + i.Kind.String()
	if i.Zone != "" {
		s += " zone " + i.Zone
	}
	if i.UID != 0 {
		s += " " + i.UID.String()
	}
	if i.Floor != 0 {
		s += fmt.Sprintf(" %d of %d (floor %d%%)", i.Serving, i.Members, i.Floor)
	}
	if i.Reason != "" {
		s += ": " + i.Reason
	}
	return s + "\n"
}

func describeKinds(k Kinds) string {
	var out []string
	for bit, name := range []string{"withdraw", "admit", "reweight", "weight-cut", "guard", "reconfigure", "restate"} {
		if k&(1<<bit) != 0 {
			out = append(out, name)
		}
	}
	return strings.Join(out, "+")
}

func describeView(v *View) string {
	if v == nil {
		return "no such service\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "endpoint %v config %v listed %d confidence %v", v.Endpoint, v.Config, v.ListedCount, v.Confidence)
	if v.Guard.Tripped {
		fmt.Fprintf(&b, " guard %q", v.Guard.Zones)
	}
	fmt.Fprintf(&b, " serving %d/%d\n", v.Guard.Serving, v.Guard.Members)
	for _, m := range v.Members {
		fmt.Fprintf(&b, "  %v %s %v w%d", m.UID, m.Zone, m.State, m.Weight)
		for _, f := range []struct {
			on   bool
			word string
		}{{m.Draining, "draining"}, {m.LastResort, "last-resort"}, {m.OwnLocality, "own"}, {!m.Listed, "OUT"}} {
			if f.on {
				b.WriteString(" " + f.word)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func uids(t *testing.T, s string) (out []UID) {
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, ranged := strings.Cut(part, "-")
		if !ranged {
			hi = lo
		}
		for n := number(t, lo); n <= number(t, hi); n++ {
			out = append(out, UID(n))
		}
	}
	return out
}

func number(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func removalNamed(t *testing.T, s string) registry.Removal {
	for n, word := range []string{"none", "list", "deregistered", "operator", "taken", "lapsed"} {
		if word == s {
			return registry.Removal(n)
		}
	}
	t.Fatalf("unknown removal %q", s)
	return 0
}
