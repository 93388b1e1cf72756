package registry_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sightlinedev/sightline/registry"
)

func row(kind registry.RowKind, full string, uid registry.UID) registry.RowKey {
	return registry.RowKey{Kind: kind, Name: name(full), UID: uid}
}

func stored(uid registry.UID, svc, lbl, addr string) registry.Row {
	i := instance()
	i.UID, i.Service, i.Label, i.Proof, i.Revision = uid, name(svc), lbl, registry.ByAuthority, uint64(uid)
	i.Endpoint.Addr = netip.MustParseAddr(addr)
	return registry.Row{Key: row(registry.InstanceRow, svc, uid), Instance: &i}
}

func storedService(full string) registry.Row {
	s := service()
	s.Name = name(full)
	return registry.Row{Key: row(registry.ServiceRow, full, 0), Service: &s}
}

func storedContract(kind registry.RowKind, full string, guard uint32) registry.Row {
	c := contract()
	c.Name, c.GuardPercent = name(full), guard
	return registry.Row{Key: row(kind, full, 0), Contract: &c}
}

// load is Load with a summary of what it found, sorted.
func load(t *testing.T, rows []registry.Row, damaged ...registry.Damaged) (*registry.Index, string) {
	t.Helper()
	l := registry.Load(100, slices.Values(rows), damaged)
	var found []string
	for _, d := range l.Damaged {
		found = append(found, "damaged "+d.Key.String())
	}
	for _, r := range l.Undo {
		found = append(found, "undo "+r.Key.String())
	}
	slices.Sort(found)
	return l.Index, strings.Join(found, ", ")
}

func TestADamagedInstanceKeepsItsUID(t *testing.T) {
	ix, found := load(t, []registry.Row{storedService("a/x"), stored(200, "a/x", "one", "10.0.0.1"), storedService("a/y")},
		registry.Damaged{Key: row(registry.InstanceRow, "a/x", 900), Detail: "checksum"})
	if found != "damaged instance a/x/i900" || ix.Counters().LastUID != 900 {
		t.Errorf("found %q, newest uid %s", found, ix.Counters().LastUID)
	}
	if c, _ := ix.Full(name("a/x")); c.DamagedRows != 1 || len(c.Instances) != 1 {
		t.Errorf("%d damaged, %d instances", c.DamagedRows, len(c.Instances))
	}
	if c, _ := ix.Full(name("a/y")); c.DamagedRows != 0 {
		t.Errorf("another service counts %d damaged rows", c.DamagedRows)
	}
	o := ix.Begin()
	i := instance()
	i.Service, i.Label = name("a/x"), "two"
	if out, err := o.Plan(registry.PutInstance{Row: i}); err != nil || out.UID != 901 {
		t.Errorf("the next uid is %s (%v)", out.UID, err)
	}
	if _, err := o.Plan(registry.RemoveInstance{UID: 900, Service: name("a/x"), By: "api", Removal: registry.RemovedByOperator}); err != nil {
		t.Errorf("a damaged row cannot be given up: %v", err)
	}
	a := ix.Apply(o)
	if len(a.Changes) != 1 || a.Changes[0].DamagedRows != 0 {
		t.Errorf("after giving it up: %+v", a.Changes)
	}
	gone := slices.ContainsFunc(a.Changes[0].Instances, func(c registry.InstanceChange) bool {
		return c.UID == 900 && c.Row == nil && c.Removal == registry.RemovedByOperator
	})
	if !gone {
		t.Errorf("its shard is not told who went: %+v", a.Changes)
	}
}

func TestADamagedServiceKeepsItsInstances(t *testing.T) {
	ix, found := load(t, []registry.Row{stored(200, "a/x", "one", "10.0.0.1"), stored(201, "a/x", "two", "10.0.0.2")},
		registry.Damaged{Key: row(registry.ServiceRow, "a/x", 0), Detail: "checksum"})
	if found != "damaged service a/x" {
		t.Errorf("found %q", found)
	}
	i := instance()
	i.Service = name("a/x")
	_, err := ix.Begin().Plan(registry.PutInstance{Row: i})
	if refusal, ok := err.(*registry.Refusal); !ok || refusal.Reason != registry.DamagedRow {
		t.Errorf("an instance of it: %v", err)
	}
	o := ix.Begin()
	if _, err := o.Plan(registry.RemoveInstance{UID: 201, Service: name("a/x"), By: "api", Removal: registry.Deregistered}); err != nil {
		t.Fatal(err)
	}
	if a := ix.Apply(o); len(a.Changes) != 1 || a.Changes[0].Service != nil || a.Changes[0].Removal != registry.NotRemoved {
		t.Errorf("one of its instances went, and its shard is told %+v", a.Changes)
	}
	o = ix.Begin()
	s := service()
	s.Name = name("a/x")
	if _, err := o.Plan(registry.PutService{Row: s}); err != nil {
		t.Fatal(err)
	}
	a := ix.Apply(o)
	if len(a.Changes) != 1 || len(a.Changes[0].Instances) != 1 {
		t.Errorf("put again, its shard is told %+v", a.Changes)
	}
	if _, still := ix.Damaged(row(registry.ServiceRow, "a/x", 0)); still {
		t.Error("it is still marked as damaged")
	}
}

func TestADamagedContractFallsBack(t *testing.T) {
	invalid := storedContract(registry.ContractRow, "a/bad", 101)
	ix, found := load(t, []registry.Row{storedService("a/x"), storedService("a/bad"), storedService("a/gone"),
		storedContract(registry.PreviousContractRow, "a/x", 70), // its current row does not decode
		invalid, storedContract(registry.PreviousContractRow, "a/bad", 80), // decodes, and breaks a rule
	}, registry.Damaged{Key: row(registry.ContractRow, "a/x", 0), Detail: "checksum"},
		registry.Damaged{Key: row(registry.ContractRow, "a/gone", 0), Detail: "checksum"})
	if found != "damaged contract a/bad, damaged contract a/gone, damaged contract a/x" {
		t.Errorf("found %q", found)
	}
	for full, want := range map[string]uint32{"a/x": 70, "a/bad": 80, "a/gone": 50} {
		c, _ := ix.Full(name(full))
		if _, marked := ix.Damaged(row(registry.ContractRow, full, 0)); c.Contract.GuardPercent != want || !marked {
			t.Errorf("%s is governed by a guard of %d, want %d; marked %v", full, c.Contract.GuardPercent, want, marked)
		}
	}
}

// What a crash left behind a removal that was already published is cleared: the
// newest holds an address and a label, and an instance needs its service.
func TestLeftoversAreCleared(t *testing.T) {
	ix, found := load(t, []registry.Row{
		stored(205, "a/y", "new", "10.0.0.1"), stored(200, "a/x", "old", "10.0.0.1"),
		stored(206, "a/x", "twin", "10.0.0.2"), stored(207, "a/x", "twin", "10.0.0.3"),
		stored(208, "a/gone", "orphan", "10.0.0.4"), storedService("a/x"), storedService("a/y"),
		{Key: registry.RowKey{Kind: registry.CountersRow}, Counters: &registry.Counters{LastUID: 300, LastRevision: 5000}},
	})
	if found != "undo instance a/gone/i208, undo instance a/x/i200, undo instance a/x/i206" {
		t.Errorf("found %q", found)
	}
	if c := ix.Counters(); c.LastUID != 300 || c.LastRevision != 5000 {
		t.Errorf("counters %+v", c)
	}
	if ix.InstanceCount(name("a/x")) != 1 || ix.InstanceCount(name("a/y")) != 1 {
		t.Errorf("a/x has %d, a/y has %d", ix.InstanceCount(name("a/x")), ix.InstanceCount(name("a/y")))
	}
}

func TestTheCounterStartsAtItsBase(t *testing.T) {
	ix, _ := load(t, []registry.Row{storedService("a/x")})
	o := ix.Begin()
	i := instance()
	i.Service = name("a/x")
	if out, err := o.Plan(registry.PutInstance{Row: i}); err != nil || out.UID != 101 || out.Revision <= 100 {
		t.Errorf("the first uid over a base of 100 is %s at revision %d (%v)", out.UID, out.Revision, err)
	}
}

func TestAServiceIsFull(t *testing.T) {
	ix := registry.NewIndex(0)
	o := ix.Begin()
	ms := []registry.Mutation{registry.PutService{Row: service()}}
	for n := range registry.MaxInstances {
		i := instance()
		i.Label = fmt.Sprintf("n%d", n)
		i.Endpoint.Addr = netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})
		ms = append(ms, registry.PutInstance{Row: i})
	}
	if _, err := o.PlanAll(ms); err != nil {
		t.Fatal(err)
	}
	ix.Apply(o)
	i := instance()
	i.Label = "over"
	_, err := ix.Begin().Plan(registry.PutInstance{Row: i})
	if r, ok := err.(*registry.Refusal); !ok || r.Reason != registry.ServiceFull || !strings.Contains(r.Detail, "instances_per_service") {
		t.Errorf("one more: %v", err)
	}
	i.Label, i.Weight = "n7", 5 // a change and a new incarnation are not one more
	if _, err := ix.Begin().Plan(registry.PutInstance{Row: i}); err != nil {
		t.Error(err)
	}
}

// BenchmarkOneInstance changes one instance in an index of 60,000.
func BenchmarkOneInstance(b *testing.B) {
	ix := registry.NewIndex(0)
	dir := &registry.Directory{}
	o := ix.Begin()
	for s := range 450 {
		svc := service()
		svc.Name.Service = fmt.Sprintf("s%d", s)
		ms := []registry.Mutation{registry.PutService{Row: svc}}
		for n := range 133 {
			i := instance()
			i.Service, i.Label, i.Proof = svc.Name, fmt.Sprintf("n%d", n), registry.ByAuthority
			i.Endpoint.Addr = netip.AddrFrom4([4]byte{10, byte(s >> 8), byte(s), byte(n)})
			ms = append(ms, registry.PutInstance{Row: i})
		}
		if _, err := o.PlanAll(ms); err != nil {
			b.Fatal(err)
		}
	}
	dir = dir.With(ix.Apply(o).Changes)
	first, _ := ix.InstanceByLabel(registry.Name{Namespace: "shop", Service: "s7"}, "n7")
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		i := *first
		i.UID, i.Weight = 0, uint32(n%1000+1)
		o := ix.Begin()
		if _, err := o.Plan(registry.PutInstance{Row: i}); err != nil {
			b.Fatal(err)
		}
		if len(o.Rows()) == 0 {
			continue
		}
		dir = dir.With(ix.Apply(o).Changes)
	}
}
