package registry

import (
	"cmp"
	"iter"
	"maps"
	"slices"
)

// Loaded is an index built from a store's rows, with what was found on the way.
type Loaded struct {
	Index *Index
	// Damaged are the rows that could not be used, each worth one alarm. Their
	// uids stay reserved; an unusable contract is replaced by its previous good
	// value where there is one.
	Damaged []Damaged
	// Undo deletes rows that a removal or a newer instance had overtaken when
	// the store was last written.
	Undo []Row
}

// Load builds an index from the rows of a store, in any order. damaged are the
// rows that the store could not decode. base is as for NewIndex.
func Load(base uint64, rows iter.Seq[Row], damaged []Damaged) Loaded {
	l := &loader{ix: NewIndex(base), previous: make(map[Name]*Contract)}
	for r := range rows {
		l.sort(r)
	}
	for _, d := range damaged {
		l.spoil(d.Key, d.Detail)
	}
	l.contracts()
	for _, s := range l.services {
		if v := CheckService(s); len(v) > 0 {
			l.spoil(serviceKey(s.Name), v.Error())
			continue
		}
		l.ix.setService(s)
	}
	slices.SortFunc(l.instances, func(a, b *Instance) int { return cmp.Compare(a.UID, b.UID) })
	for _, i := range l.instances {
		l.instance(i)
	}
	for s := range l.ix.Services() {
		l.ix.applied[s.Name] = l.ix.counters.LastRevision
	}
	return Loaded{Index: l.ix, Damaged: l.damaged, Undo: l.undo}
}

type loader struct {
	ix        *Index
	services  []*Service
	instances []*Instance
	current   []*Contract
	previous  map[Name]*Contract
	damaged   []Damaged
	undo      []Row
}

// sort keeps a row for its turn, and raises the counters above all it names.
func (l *loader) sort(r Row) {
	l.reserve(r.Key)
	switch {
	case r.Service != nil:
		l.services = append(l.services, r.Service)
		l.revision(r.Service.Revision)
	case r.Instance != nil:
		l.instances = append(l.instances, r.Instance)
		l.revision(r.Instance.Revision)
	case r.Contract != nil && r.Key.Kind == PreviousContractRow:
		l.previous[r.Key.Name] = r.Contract
	case r.Contract != nil:
		l.current = append(l.current, r.Contract)
		l.revision(r.Contract.Revision)
	case r.Profile != nil:
		l.profile(r.Profile)
	case r.Counters != nil:
		l.ix.counters.LastUID = max(l.ix.counters.LastUID, r.Counters.LastUID)
		l.revision(r.Counters.LastRevision)
	}
}

func (l *loader) reserve(k RowKey) {
	l.ix.counters.LastUID = max(l.ix.counters.LastUID, k.UID)
}

func (l *loader) revision(r uint64) {
	l.ix.counters.LastRevision = max(l.ix.counters.LastRevision, r)
}

func (l *loader) profile(p *Profile) {
	l.revision(p.Revision)
	if v := CheckProfile(p); len(v) > 0 {
		l.spoil(profileKey(p.key()), v.Error())
		return
	}
	l.ix.setProfile(p)
}

func (l *loader) spoil(k RowKey, detail string) {
	l.reserve(k)
	d := Damaged{Key: k, Detail: detail}
	l.damaged = append(l.damaged, d)
	if k.Kind != PreviousContractRow && k.Kind != CountersRow {
		l.ix.spoil(d)
	}
}

// contracts takes each contract's newest good value.
func (l *loader) contracts() {
	for _, c := range l.current {
		if v := CheckContract(c); len(v) > 0 {
			l.spoil(contractKey(c.Name), v.Error())
			continue
		}
		l.ix.setContract(c)
	}
	for _, n := range slices.SortedFunc(maps.Keys(l.previous), Name.Compare) {
		c := l.previous[n]
		why, bad := l.ix.damaged.get(contractKey(n))
		if !bad || len(CheckContract(c)) > 0 {
			continue
		}
		l.ix.setContract(c)
		l.ix.spoil(Damaged{contractKey(n), why}) // its last good value governs, and it stays marked
	}
}

// instance adds a row; instances come in the order of their uids, so that the
// newest keeps an address or a label that a lost removal left twice.
func (l *loader) instance(i *Instance) {
	if v := CheckInstance(i); len(v) > 0 {
		l.spoil(instanceKey(i), v.Error())
		return
	}
	svc, ok := l.ix.services.get(i.Service)
	if !ok {
		if _, damaged := l.ix.damaged.get(serviceKey(i.Service)); !damaged {
			l.undo = append(l.undo, Row{Key: instanceKey(i), Delete: true})
			return
		}
	}
	if older, taken := l.ix.InstanceByLabel(i.Service, i.Label); taken && i.Label != "" {
		l.drop(older, 0)
	}
	for _, c := range claimsOf(svc, i) {
		if u, held := l.ix.claims.get(c); held && u != i.UID {
			older, _ := l.ix.instances.get(u)
			l.drop(older, i.UID)
		}
	}
	l.ix.setInstance(i)
}

func (l *loader) drop(i *Instance, taker UID) {
	l.ix.delInstance(i.UID, taker)
	l.undo = append(l.undo, Row{Key: instanceKey(i), Delete: true})
}
