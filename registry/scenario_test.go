package registry_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

// TestScenarios runs the timelines of testdata/scenarios. Each line of a
// command's input is one mutation; see world for the commands.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		w := &world{ix: registry.NewIndex(0), dir: &registry.Directory{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return w.run(t, d) })
	})
}

// world is an index and what its owner would keep beside it.
type world struct {
	ix     *registry.Index
	dir    *registry.Directory
	flight *registry.Overlay // a batch that is being written
}

func (w *world) run(t *testing.T, d *datadriven.TestData) string {
	ms := parseMutations(t, d)
	switch d.Cmd {
	case "do": // each line by itself: plan, write, apply
		var out strings.Builder
		for _, m := range ms {
			o := w.ix.Begin()
			r, err := o.Plan(m)
			out.WriteString(outcome(r, err))
			w.apply(&out, o)
		}
		return out.String()
	case "batch": // all or nothing
		o := w.ix.Begin()
		var out strings.Builder
		if rs, err := o.PlanAll(ms); err != nil {
			fmt.Fprintf(&out, "refused: %v\n", err)
		} else {
			for _, r := range rs {
				out.WriteString(outcome(r, nil))
			}
		}
		w.apply(&out, o)
		return out.String()
	case "each": // what can be planned of a list
		o := w.ix.Begin()
		var out strings.Builder
		rs, errs := o.PlanEach(ms)
		for i := range ms {
			out.WriteString(outcome(rs[i], errs[i]))
		}
		w.apply(&out, o)
		return out.String()
	case "write": // plan, and leave the write on its way
		w.flight = w.ix.Begin()
		var out strings.Builder
		for _, m := range ms {
			out.WriteString(outcome(w.flight.Plan(m)))
		}
		for _, r := range w.flight.Rows() {
			fmt.Fprintf(&out, "row %s\n", rowText(r))
		}
		return out.String()
	case "written":
		var out strings.Builder
		w.apply(&out, w.flight)
		w.flight = nil
		return out.String()
	case "fail":
		w.flight = nil
		return ""
	case "show":
		return w.show()
	}
	t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	return ""
}

func (w *world) apply(out *strings.Builder, o *registry.Overlay) {
	a := w.ix.Apply(o)
	w.dir = w.dir.With(a.Changes)
	for _, c := range a.Changes {
		fmt.Fprintf(out, "tell %s\n", changeText(c))
	}
	for _, r := range a.Undo {
		fmt.Fprintf(out, "undo %s\n", rowText(r))
	}
}

func (w *world) show() string {
	var lines []string
	for s := range w.ix.Services() {
		c, _ := w.ix.Full(s.Name)
		lines = append(lines, changeText(c))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + fmt.Sprintf("\ndirectory %d\n", w.dir.Len())
}

func outcome(r registry.Outcome, err error) string {
	if err != nil {
		return fmt.Sprintf("refused: %v\n", err)
	}
	if !r.Changed {
		return "nothing to do\n"
	}
	s := "ok"
	if r.UID != 0 {
		s += " " + r.UID.String()
	}
	if r.Created {
		s += " created"
	}
	if r.Replaced != 0 {
		s += " replaces " + r.Replaced.String()
	}
	if len(r.Taken) > 0 {
		s += fmt.Sprint(" takes from ", r.Taken)
	}
	return s + "\n"
}

var removalNames = map[registry.Removal]string{
	registry.RemovedByList: "by list", registry.Deregistered: "deregistered", registry.RemovedByOperator: "by operator",
	registry.AddressTaken: "address taken", registry.LapsedOut: "lapsed", registry.ServiceDeleted: "service deleted",
}

func changeText(c registry.Change) string {
	s := c.Name.String()
	if c.Service == nil {
		s += " deleted"
	} else {
		s += fmt.Sprintf(" guard=%d", c.Contract.GuardPercent)
	}
	if c.DamagedRows > 0 {
		s += fmt.Sprintf(" damaged=%d", c.DamagedRows)
	}
	for _, i := range c.Instances {
		if i.Row == nil {
			s += fmt.Sprintf(" -%s(%s)", i.UID, removalNames[i.Removal])
			continue
		}
		s += fmt.Sprintf(" +%s(%s@%s", i.UID, i.Row.DisplayName(), i.Row.Endpoint.Addr)
		if i.Profile.Supplies != 0 {
			s += " " + i.Profile.Supplies.String()
		}
		s += ")"
	}
	return s
}

func rowText(r registry.Row) string {
	if r.Delete {
		return "delete " + r.Key.String()
	}
	return r.Key.String()
}

func parseMutations(t *testing.T, d *datadriven.TestData) []registry.Mutation {
	var ms []registry.Mutation
	for line := range strings.Lines(d.Input) {
		f := strings.Fields(line)
		if len(f) < 2 {
			t.Fatalf("%s: %q needs a kind and a name", d.Pos, line)
		}
		args := map[string]string{"source": "api"}
		for _, a := range f[2:] {
			k, v, _ := strings.Cut(a, "=")
			args[k] = v
		}
		ms = append(ms, mutation(t, f[0], f[1], args))
	}
	return ms
}

func mutation(t *testing.T, kind, full string, a map[string]string) registry.Mutation {
	n := name(full)
	num := func(k string) int {
		v, err := strconv.Atoi(cmpOr(a[k], "0"))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	switch kind {
	case "service":
		s := registry.Service{Name: n, Source: a["source"], Contract: a["contract"], Profile: a["profile"]}
		for p := range strings.SplitSeq(cmpOr(a["ports"], "grpc:8080"), ",") {
			pn, number, _ := strings.Cut(p, ":")
			v, _ := strconv.Atoi(number)
			s.Ports = append(s.Ports, registry.Port{Name: pn, Number: uint16(v)})
		}
		return registry.PutService{Row: s, Mode: mode(a)}
	case "instance":
		i := registry.Instance{Service: n, Label: a["label"], Source: a["source"], Profile: a["profile"],
			UID: registry.UID(num("uid")), Weight: uint32(num("weight")), Lease: time.Duration(num("lease")) * time.Second,
			Proof: registry.ByAuthority, Identity: identity.MustParse("spiffe://t.test/ns/" + n.Namespace + "/sa/" + cmpOr(a["id"], n.Service))}
		if v := a["addr"]; v != "" {
			i.Endpoint.Addr = netip.MustParseAddr(v)
		}
		i.Endpoint.Host = a["host"]
		if _, ok := a["unproved"]; ok {
			i.Proof = registry.Unproved
		}
		if v := a["port"]; v != "" {
			i.Ports = []registry.PortNumber{{Name: "grpc", Number: uint16(num("port"))}}
		}
		_, register := a["register"]
		return registry.PutInstance{Row: i, Mode: mode(a), Register: register}
	case "contract":
		c := registry.Contract{Name: n, Source: a["source"], GuardPercent: uint32(num("guard")), Require: classes(a["require"])}
		c.Probe.Port = a["probe-port"]
		if a["silence"] == "ineligible" {
			c.Silence = registry.SilenceIneligible
		}
		return registry.PutContract{Row: c, Mode: mode(a)}
	case "profile":
		_, external := a["external"]
		return registry.PutProfile{Mode: mode(a), Row: registry.Profile{Namespace: n.Namespace, Name: n.Service,
			Source: a["source"], Supplies: classes(a["supplies"]), External: external}}
	case "remove":
		return registry.RemoveInstance{UID: registry.UID(num("uid")), Service: n, Label: a["label"], By: a["source"], Removal: registry.Deregistered}
	case "delete-service":
		return registry.DeleteService{Name: n, By: a["source"]}
	case "delete-contract":
		return registry.DeleteContract{Name: n, By: a["source"]}
	case "delete-profile":
		return registry.DeleteProfile{Name: n, By: a["source"]}
	}
	t.Fatalf("unknown mutation %q", kind)
	return nil
}

func mode(a map[string]string) registry.Mode {
	switch a["mode"] {
	case "create":
		return registry.Create
	case "update":
		return registry.Update
	}
	return registry.Upsert
}

func classes(s string) registry.ClassSet {
	var set registry.ClassSet
	for _, c := range []registry.EvidenceClass{registry.ClassProbe, registry.ClassSelf, registry.ClassCallers} {
		if slices.Contains(strings.Split(s, "+"), c.String()) {
			set = set.With(c)
		}
	}
	return set
}

func name(s string) registry.Name {
	ns, svc, _ := strings.Cut(s, "/")
	return registry.Name{Namespace: ns, Service: svc}
}

func cmpOr(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
