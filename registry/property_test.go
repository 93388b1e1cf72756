package registry_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

// The generators draw from few names, addresses and sources, so that mutations
// meet each other often.
var (
	genName   = rapid.Map(rapid.SampledFrom([]string{"a/x", "a/y", "b/x"}), name)
	genSource = rapid.SampledFrom([]string{"api", "file:f", "kube:k"})
	genLabel  = rapid.SampledFrom([]string{"", "one", "two", "three"})
	genUID    = rapid.Map(rapid.IntRange(0, 40), func(n int) registry.UID { return registry.UID(n) })
	genMode   = rapid.SampledFrom([]registry.Mode{registry.Upsert, registry.Upsert, registry.Create, registry.Update})
)

func genInstance(t *rapid.T) registry.PutInstance {
	i := registry.Instance{
		Service: genName.Draw(t, "service"), Label: genLabel.Draw(t, "label"), Source: genSource.Draw(t, "source"),
		Identity: identity.MustParse("spiffe://t.test/ns/a/sa/" + rapid.SampledFrom([]string{"s", "r"}).Draw(t, "id")),
		Endpoint: registry.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, rapid.ByteRange(1, 4).Draw(t, "addr")})},
		Proof:    rapid.SampledFrom([]registry.ProofKind{registry.Unproved, registry.ByAuthority}).Draw(t, "proof"),
		Weight:   rapid.Uint32Range(0, 3).Draw(t, "weight"),
		Profile:  rapid.SampledFrom([]string{"", "", "p"}).Draw(t, "profile"),
	}
	if rapid.IntRange(0, 3).Draw(t, "by uid") == 0 {
		i.UID = genUID.Draw(t, "uid")
	}
	if rapid.Bool().Draw(t, "own port") {
		i.Ports = []registry.PortNumber{{Name: "main", Number: 81}}
	}
	return registry.PutInstance{Row: i, Mode: genMode.Draw(t, "mode"), Register: rapid.Bool().Draw(t, "register")}
}

func genService(t *rapid.T) registry.PutService {
	s := registry.Service{Name: genName.Draw(t, "name"), Source: rapid.SampledFrom([]string{"api", "api", "file:f"}).Draw(t, "source"),
		Ports:    []registry.Port{{Name: "main", Number: rapid.SampledFrom([]uint16{80, 81}).Draw(t, "port")}},
		Contract: rapid.SampledFrom([]string{"", "", "c"}).Draw(t, "contract"),
		Profile:  rapid.SampledFrom([]string{"", "p"}).Draw(t, "profile")}
	return registry.PutService{Row: s, Mode: genMode.Draw(t, "mode")}
}

var genMutation = rapid.Custom(func(t *rapid.T) registry.Mutation {
	switch rapid.IntRange(0, 14).Draw(t, "kind") {
	case 0, 1, 2:
		return genService(t)
	case 3:
		return registry.PutContract{Row: registry.Contract{Name: registry.Name{Namespace: "a", Service: rapid.SampledFrom([]string{"c", "x"}).Draw(t, "contract")},
			Source: "api", GuardPercent: rapid.Uint32Range(0, 101).Draw(t, "guard"), Require: registry.ClassSet(rapid.IntRange(0, 1).Draw(t, "require"))}}
	case 4:
		return registry.PutProfile{Row: registry.Profile{Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "ns"), Name: "p", Source: "api",
			Supplies: registry.ClassSet(rapid.IntRange(0, 3).Draw(t, "supplies"))}}
	case 5:
		return registry.DeleteService{Name: genName.Draw(t, "name"), By: genSource.Draw(t, "by")}
	case 6:
		return registry.DeleteContract{Name: registry.Name{Namespace: "a", Service: rapid.SampledFrom([]string{"c", "x"}).Draw(t, "contract")}, By: "api"}
	case 7:
		return registry.DeleteProfile{Name: registry.Name{Namespace: "a", Service: "p"}, By: "api"}
	case 8:
		return registry.RemoveInstance{UID: genUID.Draw(t, "uid"), By: genSource.Draw(t, "by"), Removal: registry.Deregistered}
	case 9:
		return registry.RemoveInstance{Service: genName.Draw(t, "service"), Label: genLabel.Draw(t, "label"), By: genSource.Draw(t, "by"), Removal: registry.RemovedByList}
	}
	return genInstance(t)
})

// dump is everything that an index says, revisions aside.
func dump(ix *registry.Index) map[string]string {
	out := make(map[string]string)
	for s := range ix.Services() {
		c, _ := ix.Full(s.Name)
		row := *c.Service
		row.Revision, c.Contract.Revision = 0, 0
		out["service "+s.Name.String()] = fmt.Sprintf("%+v %+v %d", row, c.Contract, c.DamagedRows)
		for _, i := range c.Instances {
			out["instance "+i.UID.String()] = instanceText(i)
		}
	}
	for c := range ix.Contracts() {
		row := *c
		row.Revision = 0
		out["contract "+c.Name.String()] = fmt.Sprintf("%+v", row)
	}
	for p := range ix.Profiles() {
		row := *p
		row.Revision = 0
		out["profile "+p.Namespace+p.Name] = fmt.Sprintf("%+v", row)
	}
	for _, source := range []string{"api", "file:f", "kube:k"} {
		for _, r := range ix.Owned(source) {
			out["owned "+source+" "+r.Key.String()] = "yes"
		}
	}
	return out
}

func instanceText(c registry.InstanceChange) string {
	row, p := *c.Row, c.Profile
	row.Revision, p.Revision = 0, 0
	return fmt.Sprintf("%+v %+v", row, p)
}

func sameDump(t *rapid.T, what string, a, b map[string]string) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(a)) {
		if a[k] != b[k] {
			t.Fatalf("%s: %s\n  %s\n  %s", what, k, a[k], b[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(b)) {
		if _, ok := a[k]; !ok {
			t.Fatalf("%s: only the second has %s: %s", what, k, b[k])
		}
	}
}

// estate is an index with everybody who lives off it: the store's rows, the
// shards, the directory, and the uids that were ever seen.
type estate struct {
	ix     *registry.Index
	rows   map[registry.RowKey]registry.Row
	shards map[registry.Name]map[registry.UID]string
	dir    *registry.Directory
	seen   map[registry.UID]registry.Name
}

func newEstate() *estate {
	return &estate{ix: registry.NewIndex(0), rows: make(map[registry.RowKey]registry.Row),
		shards: make(map[registry.Name]map[registry.UID]string), dir: &registry.Directory{}, seen: make(map[registry.UID]registry.Name)}
}

func (e *estate) write(rows []registry.Row) {
	for _, r := range rows {
		if r.Delete {
			delete(e.rows, r.Key)
		} else {
			e.rows[r.Key] = r
		}
	}
}

func (e *estate) apply(o *registry.Overlay) {
	rows := o.Rows()
	a := e.ix.Apply(o)
	e.write(rows)
	e.write(a.Undo)
	e.tell(a.Changes)
}

func (e *estate) tell(changes []registry.Change) {
	for _, c := range changes {
		if c.Service == nil {
			delete(e.shards, c.Name)
			continue
		}
		if e.shards[c.Name] == nil {
			e.shards[c.Name] = make(map[registry.UID]string)
		}
		for _, i := range c.Instances {
			if i.Row == nil {
				delete(e.shards[c.Name], i.UID)
			} else {
				e.shards[c.Name][i.UID] = instanceText(i)
			}
		}
	}
	e.dir = e.dir.With(changes)
}

// check judges the invariants of the index and of all that is derived from it.
func (e *estate) check(t *rapid.T) {
	labels, places := make(map[string]registry.UID), make(map[string]registry.UID)
	live := 0
	for s := range e.ix.Services() {
		all := e.ix.Instances(s.Name)
		live += len(all)
		if n := e.ix.InstanceCount(s.Name); n != len(all) || n != len(e.shards[s.Name]) {
			t.Fatalf("%s has %d instances, counts %d, its shard holds %d", s.Name, len(all), n, len(e.shards[s.Name]))
		}
		for _, i := range all {
			once(t, labels, i, i.Label != "", s.Name.String()+" "+i.Label)
			for _, p := range s.Ports {
				once(t, places, i, i.Proof != registry.Unproved, fmt.Sprint(i.Endpoint.Addr, i.PortNumber(p)))
			}
			if was, ok := e.seen[i.UID]; ok && was != s.Name || i.UID > e.ix.Counters().LastUID {
				t.Fatalf("%s of %s was seen in %s; newest uid given out is %s", i.UID, s.Name, was, e.ix.Counters().LastUID)
			}
			e.seen[i.UID] = s.Name
			if got, ok := e.dir.Lookup(i.UID); !ok || got != i {
				t.Fatalf("directory does not hold the row of %s", i.UID)
			}
			if f, ok := e.ix.Full(s.Name); !ok || e.shards[s.Name][i.UID] != instanceText(f.Instances[slices.Index(all, i)]) {
				t.Fatalf("shard of %s holds an old row of %s", s.Name, i.UID)
			}
		}
	}
	if e.dir.Len() != live || len(e.shards) != len(slices.Collect(e.ix.Services())) {
		t.Fatalf("%d live instances, directory has %d; %d shards", live, e.dir.Len(), len(e.shards))
	}
	l := registry.Load(0, maps.Values(e.rows), nil)
	if len(l.Damaged)+len(l.Undo) > 0 {
		t.Fatalf("a store of good rows loads with damage %v, undo %v", l.Damaged, l.Undo)
	}
	sameDump(t, "index, and what its store loads to", dump(e.ix), dump(l.Index))
}

func once(t *rapid.T, held map[string]registry.UID, i *registry.Instance, counts bool, key string) {
	t.Helper()
	if other, ok := held[key]; ok && counts && other != i.UID {
		t.Fatalf("%s is held by %s and by %s", key, other, i.UID)
	}
	if counts {
		held[key] = i.UID
	}
}

// TestRandomHistories applies random groups, drops some, and lets removals
// overtake others.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEstate()
		gone := make(map[registry.UID]bool)
		for range rapid.IntRange(1, 12).Draw(t, "groups") {
			before := dump(e.ix)
			o := e.ix.Begin()
			group := rapid.SliceOfN(genMutation, 1, 6).Draw(t, "group")
			if rapid.Bool().Draw(t, "as batch") {
				if _, err := o.PlanAll(group); err != nil && !o.Empty() {
					t.Fatalf("a refused batch left something behind: %v", o.Rows())
				}
			} else {
				for _, m := range group {
					_, _ = o.Plan(m) // a refusal is an outcome like another here
				}
			}
			sameDump(t, "index before and after planning", before, dump(e.ix))
			if rapid.IntRange(0, 4).Draw(t, "discard") == 0 {
				continue
			}
			overtake(t, e)
			e.apply(o)
			e.check(t)
			for u, n := range e.seen {
				_, alive := e.ix.Instance(u)
				if alive && gone[u] {
					t.Fatalf("%s of %s came back", u, n)
				}
				gone[u] = !alive
			}
		}
	})
}

// overtake applies removals while another overlay is open. What they delete is
// written after that overlay's rows, as a store would.
func overtake(t *rapid.T, e *estate) {
	for range rapid.IntRange(0, 2).Draw(t, "removals") {
		m := rapid.OneOf(
			rapid.Custom(func(t *rapid.T) registry.Mutation {
				return registry.RemoveInstance{UID: genUID.Draw(t, "uid"), By: genSource.Draw(t, "by"), Removal: registry.Deregistered}
			}),
			rapid.Custom(func(t *rapid.T) registry.Mutation {
				return registry.DeleteService{Name: genName.Draw(t, "name"), By: "api"}
			})).Draw(t, "removal")
		o := e.ix.Begin()
		if _, err := o.Plan(m); err == nil {
			e.apply(o)
		}
	}
}

// TestGroupEqualsSequence: planning all on one overlay is applying one by one.
func TestGroupEqualsSequence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.SliceOfN(genMutation, 1, 30).Draw(t, "mutations")
		group, single := newEstate(), newEstate()
		o := group.ix.Begin()
		for _, m := range ms {
			r1, err1 := o.Plan(m)
			s := single.ix.Begin()
			r2, err2 := s.Plan(m)
			r1.Revision, r2.Revision = 0, 0
			if fmt.Sprint(r1, err1) != fmt.Sprint(r2, err2) {
				t.Fatalf("%T in a group: %v %v, alone: %v %v", m, r1, err1, r2, err2)
			}
			single.apply(s)
		}
		group.apply(o)
		sameDump(t, "one overlay, and one for each", dump(group.ix), dump(single.ix))
		group.check(t)
		single.check(t)
	})
}

// TestPlanEachTakesWhatItCan: what PlanEach leaves out is refused, what it
// takes is what PlanAll would take of the rest.
func TestPlanEachTakesWhatItCan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.SliceOfN(genMutation, 1, 20).Draw(t, "mutations")
		each, all := newEstate(), newEstate()
		o := each.ix.Begin()
		_, errs := o.PlanEach(ms)
		each.apply(o)
		each.check(t)
		var good []registry.Mutation
		for i, m := range ms {
			if errs[i] == nil {
				good = append(good, m)
			}
		}
		o = all.ix.Begin()
		if _, err := o.PlanAll(good); err != nil {
			t.Fatalf("what PlanEach took is refused as a batch: %v", err)
		}
		all.apply(o)
		if len(each.shards) != len(all.shards) || each.dir.Len() != all.dir.Len() {
			t.Fatalf("PlanEach: %d services, %d instances; PlanAll: %d, %d", len(each.shards), each.dir.Len(), len(all.shards), all.dir.Len())
		}
	})
}
