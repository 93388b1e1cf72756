package reconcile_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/reconcile"
)

// TestScenarios runs the timelines of testdata. A pass is
//
//	list at=SECONDS [incomplete=NAME]
//	service NAME | contract NAME | instance SERVICE LABEL [addr=N] | SERVICE * COUNT
//
// and prints the decision, applied to a real index.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return w.run(t, d) })
	})
}

const owner = "file:main"

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type world struct {
	ix  *registry.Index
	src *reconcile.Source
}

func newWorld() *world {
	return &world{ix: registry.NewIndex(0), src: reconcile.NewSource(owner, reconcile.DefaultLimits())}
}

func (w *world) run(t *testing.T, d *datadriven.TestData) string {
	list := &reconcile.List{Answer: reconcile.Listed}
	at := 0
	d.MaybeScanArgs(t, "at", &at)
	d.MaybeScanArgs(t, "incomplete", &list.Incomplete)
	switch d.Cmd {
	case "list":
		fill(list, d.Input)
	case "no-answer":
		list.Answer, list.Detail = reconcile.NoAnswer, "the folder is gone"
	case "unreadable":
		list.Answer, list.Detail = reconcile.Unreadable, "not JSON"
	case "confirm":
		return fmt.Sprintf("%d rows\n", w.src.Confirm())
	case "restart":
		w.src = reconcile.NewSource(owner, reconcile.DefaultLimits())
		return ""
	case "other": // rows of another source
		fill(list, d.Input)
		return w.apply(reconcile.NewSource("api", reconcile.DefaultLimits()).Pass(start, list, nil, w.ix.InstanceCount))
	}
	return w.pass(at, list)
}

func (w *world) pass(at int, list *reconcile.List) string {
	dec := w.src.Pass(start.Add(time.Duration(at)*time.Second), list, w.ix.Owned(owner), w.ix.InstanceCount)
	s := fmt.Sprintf("%s: %s\n", dec.Rule, dec.Detail)
	if !dec.Until.IsZero() {
		s += fmt.Sprintf("until %d s\n", int(dec.Until.Sub(start)/time.Second))
	}
	for _, x := range dec.Duplicates {
		s += fmt.Sprintf("twice: %s %s\n", x.Kind, x.Name)
	}
	return s + w.apply(dec)
}

func (w *world) apply(dec reconcile.Decision) string {
	var s strings.Builder
	o := w.ix.Begin()
	_, errs := o.PlanEach(dec.Apply)
	for _, err := range errs {
		if err != nil {
			fmt.Fprintf(&s, "refused: %v\n", err)
		}
	}
	for _, c := range w.ix.Apply(o).Changes {
		if c.Service == nil {
			fmt.Fprintf(&s, "%s deleted", c.Name)
		} else {
			fmt.Fprintf(&s, "%s has %d:", c.Name, w.ix.InstanceCount(c.Name))
		}
		for _, i := range c.Instances {
			fmt.Fprintf(&s, " %s%s", map[bool]string{true: "+", false: "-"}[i.Row != nil], i.UID)
		}
		s.WriteString("\n")
	}
	return s.String()
}

func fill(list *reconcile.List, input string) {
	for line := range strings.Lines(input) {
		f := strings.Fields(line)
		ns, svc, _ := strings.Cut(f[1], "/")
		n := registry.Name{Namespace: ns, Service: svc}
		switch f[0] {
		case "service":
			list.Services = append(list.Services, &registry.Service{Name: n, Ports: []registry.Port{{Name: "main", Number: 80}}})
		case "contract":
			list.Contracts = append(list.Contracts, &registry.Contract{Name: n})
		case "profile":
			list.Profiles = append(list.Profiles, &registry.Profile{Namespace: ns, Name: svc})
		case "instance":
			last := byte(0)
			label := f[2]
			if label == "-" {
				label = ""
			}
			fmt.Sscanf(strings.Join(f[3:], ""), "addr=%d", &last)
			list.Instances = append(list.Instances, instance(n, label, last))
		case "instances": // SERVICE FIRST LAST
			var first, last byte
			fmt.Sscan(f[2], &first)
			fmt.Sscan(f[3], &last)
			for i := first; i <= last; i++ {
				list.Instances = append(list.Instances, instance(n, fmt.Sprintf("n%d", i), i))
			}
		}
	}
}

func instance(n registry.Name, label string, last byte) *registry.Instance {
	var svc byte
	for _, b := range []byte(n.Service) {
		svc += b
	}
	return &registry.Instance{Service: n, Label: label, Identity: identity.MustParse("spiffe://t.test/ns/" + n.Namespace + "/sa/" + n.Service),
		Endpoint: registry.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, svc, last})}}
}

// TestRemovalsNeedAgreement: whatever lists come, what goes against the brake
// was missing from every list of the ten seconds before.
func TestRemovalsNeedAgreement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		limits := reconcile.DefaultLimits()
		n := registry.Name{Namespace: "a", Service: "x"}
		absent := make(map[string]int) // label → second it was first not listed
		for at, pass := 0, 0; pass < 25; pass++ {
			at += rapid.IntRange(1, 6).Draw(t, "gap")
			list := &reconcile.List{Answer: reconcile.Listed, Services: []*registry.Service{{Name: n, Ports: []registry.Port{{Name: "main", Number: 80}}}}}
			if rapid.IntRange(0, 5).Draw(t, "answer") == 0 {
				list = &reconcile.List{Answer: reconcile.NoAnswer}
			}
			for i := byte(1); i <= 8 && list.Answer == reconcile.Listed; i++ {
				label := fmt.Sprintf("n%d", i)
				if rapid.IntRange(0, 2).Draw(t, label) > 0 {
					list.Instances = append(list.Instances, instance(n, label, i))
					delete(absent, label)
				} else if _, seen := absent[label]; !seen {
					absent[label] = at
				}
			}
			held := w.ix.InstanceCount(n)
			dec := w.src.Pass(start.Add(time.Duration(at)*time.Second), list, w.ix.Owned(owner), w.ix.InstanceCount)
			braked := dec.Removing >= limits.Least && 100*dec.Removing > limits.Percent*held || dec.Removing == held && held > 0
			for _, m := range dec.Apply {
				if r, ok := m.(registry.RemoveInstance); ok && braked && at-absent[r.Label] < 10 {
					t.Fatalf("%d s: %s goes, missing since %d s only, among %d of %d", at, r.Label, absent[r.Label], dec.Removing, held)
				}
			}
			if list.Answer != reconcile.Listed && len(dec.Apply) > 0 {
				t.Fatalf("%v changes something: %v", list.Answer, dec.Apply)
			}
			w.apply(dec)
			if !braked && list.Answer == reconcile.Listed && w.ix.InstanceCount(n) != len(list.Instances) {
				t.Fatalf("%d listed, %d held without a brake: %s", len(list.Instances), w.ix.InstanceCount(n), dec.Detail)
			}
		}
	})
}
