package registry

import (
	"iter"
	"slices"
)

// Index is desired state in memory: every row and what is derived from them.
// It changes only through Apply. It is not safe for concurrent use: its owner
// (server/desired) serialises everything. Rows that it returns are immutable.
type Index struct {
	*state
	counters Counters
	puts     uint64          // applied overlays that held a put
	applied  map[Name]uint64 // revision of the newest Change of each service
}

// NewIndex returns an empty index whose uids and revisions start above base:
// the larger of what a store says was given out and Unix seconds × 2^20, so
// that none repeats, also when a store was lost or restored (DESIGN.md §6).
func NewIndex(base uint64) *Index {
	return &Index{
		state:    newState(nil),
		counters: Counters{LastUID: UID(base), LastRevision: base},
		applied:  make(map[Name]uint64),
	}
}

// Counters are the newest uid and revision given out.
func (ix *Index) Counters() Counters { return ix.counters }

// Begin opens an overlay; see Overlay for how many may be open.
func (ix *Index) Begin() *Overlay {
	return &Overlay{state: newState(ix.state), counters: &ix.counters, puts: ix.puts}
}

// Applied is what applying an overlay did.
type Applied struct {
	Changes []Change // for the shards, by name
	// Undo deletes the rows of the overlay that a removal has overtaken: they
	// may be on disk, and must not stay there.
	Undo []Row
}

// Apply makes an overlay's changes part of the index. What was removed from
// the index since the overlay was begun stays removed. It panics when an
// overlay with puts was planned on another state than this one, which only a
// second open overlay with puts can cause.
func (ix *Index) Apply(o *Overlay) Applied {
	t := ix.newTouches()
	holdsPut := slices.ContainsFunc(o.effects, func(e effect) bool { return !e.row.Delete })
	if holdsPut && o.puts != ix.puts {
		panic("registry: overlay was planned on an older state; apply overlays with puts one at a time, in the order they were begun")
	}
	if holdsPut {
		ix.puts++
	}
	for _, e := range o.effects {
		if ix.overtaken(e) {
			t.undo = append(t.undo, Row{Key: e.key, Delete: true})
			continue
		}
		ix.applyEffect(e, t)
	}
	return Applied{Changes: t.changes(), Undo: t.undo}
}

// overtaken reports whether the row that e writes was removed since its
// overlay was begun.
func (ix *Index) overtaken(e effect) bool {
	if e.row.Delete {
		return false
	}
	had := true
	switch e.key.Kind {
	case ServiceRow:
		_, had = ix.services.get(e.key.Name)
	case ContractRow:
		_, had = ix.contracts.get(e.key.Name)
	case ProfileRow:
		_, had = ix.profiles.get(e.key.Name)
	case InstanceRow:
		if _, ok := ix.services.get(e.key.Name); !ok {
			return true
		}
		_, had = ix.instances.get(e.key.UID)
	}
	return !had && !e.created
}

func (ix *Index) applyEffect(e effect, t *touches) {
	switch e.key.Kind {
	case ServiceRow:
		ix.applyService(e, t)
	case InstanceRow:
		ix.applyInstance(e, t)
	case ContractRow:
		if e.row.Delete {
			ix.delContract(e.key.Name)
			ix.repaired(e.key)
		} else {
			ix.setContract(e.row.Contract)
		}
		for _, n := range ix.contractUsers.list(e.key.Name) {
			t.service(n)
		}
	case ProfileRow:
		if e.row.Delete {
			ix.delProfile(e.key.Name)
			ix.repaired(e.key)
			return
		}
		ix.setProfile(e.row.Profile)
		for _, n := range ix.profileUsers.list(e.key.Name) {
			t.whole(n)
		}
	}
}

func (ix *Index) applyService(e effect, t *touches) {
	n := e.key.Name
	if e.row.Delete {
		// An instance that was registered while the deletion was on its way is
		// not in the effects, and goes too.
		for _, i := range ix.Instances(n) {
			ix.delInstance(i.UID, 0)
			t.gone(i, ServiceDeleted)
			t.undo = append(t.undo, Row{Key: instanceKey(i), Delete: true})
		}
		_, had := ix.services.get(n)
		_, damaged := ix.damaged.get(e.key)
		ix.delService(n)
		ix.repaired(e.key)
		if had || damaged {
			t.service(n)
		}
		return
	}
	old, had := ix.services.get(n)
	ix.setService(e.row.Service)
	if !had || old.Profile != e.row.Service.Profile {
		t.whole(n)
		return
	}
	t.service(n)
}

func (ix *Index) applyInstance(e effect, t *touches) {
	if !e.row.Delete {
		ix.setInstance(e.row.Instance)
		t.present(e.row.Instance, e.created)
		return
	}
	if _, damaged := ix.damaged.get(e.key); damaged {
		ix.repaired(e.key)
		t.service(e.key.Name).instances[e.key.UID] = e.removal
	}
	if i, had := ix.instances.get(e.key.UID); had {
		ix.delInstance(i.UID, e.taker)
		t.gone(i, e.removal)
	}
}

// Services yields every service's row, in no order.
func (ix *Index) Services() iter.Seq[*Service] { return values(ix.services) }

// Contracts yields every contract's row, in no order.
func (ix *Index) Contracts() iter.Seq[*Contract] { return values(ix.contracts) }

// Profiles yields every capability profile's row, in no order.
func (ix *Index) Profiles() iter.Seq[*Profile] { return values(ix.profiles) }

func values[K comparable, V any](t *table[K, V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range t.rows {
			if !yield(v) {
				return
			}
		}
	}
}

// Full is the whole of a service as one Change: what a shard is told first,
// and what the hourly shadow rebuild starts from.
func (ix *Index) Full(n Name) (Change, bool) {
	svc, ok := ix.services.get(n)
	if !ok {
		return Change{}, false
	}
	c := ix.change(svc)
	for _, i := range ix.Instances(n) {
		c.Instances = append(c.Instances, ix.instanceChange(svc, i))
	}
	return c, true
}

func (ix *Index) change(svc *Service) Change {
	return Change{
		Name: svc.Name, Revision: ix.applied[svc.Name], Service: svc,
		Contract: ix.EffectiveContract(svc), DamagedRows: ix.damagedInstances(svc.Name),
	}
}

func (ix *Index) instanceChange(svc *Service, i *Instance) InstanceChange {
	return InstanceChange{UID: i.UID, Row: i, Profile: ix.EffectiveProfile(svc, i.Profile)}
}
