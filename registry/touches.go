package registry

import (
	"cmp"
	"maps"
	"slices"
)

// touches collects, while an overlay is applied, which services have to be
// told what.
type touches struct {
	ix   *Index
	by   map[Name]*touch
	undo []Row
}

type touch struct {
	all       bool            // every instance is to be sent
	instances map[UID]Removal // NotRemoved: send the newest row
	created   map[UID]bool    // first seen in this very overlay
}

func (ix *Index) newTouches() *touches { return &touches{ix: ix, by: make(map[Name]*touch)} }

func (t *touches) service(n Name) *touch {
	s := t.by[n]
	if s == nil {
		s = &touch{instances: make(map[UID]Removal)}
		t.by[n] = s
	}
	return s
}

func (t *touches) whole(n Name) { t.service(n).all = true }

func (t *touches) present(i *Instance, created bool) {
	s := t.service(i.Service)
	s.instances[i.UID] = NotRemoved
	if created {
		if s.created == nil {
			s.created = make(map[UID]bool)
		}
		s.created[i.UID] = true
	}
}

func (t *touches) gone(i *Instance, why Removal) {
	s := t.service(i.Service)
	if s.created[i.UID] {
		delete(s.instances, i.UID) // came and went: nobody has heard of it
		return
	}
	s.instances[i.UID] = why
}

// changes turns what was touched into one Change a service, by name, under one
// new revision: also rows that were planned before a removal overtook them
// must not make a service's revision go back.
func (t *touches) changes() []Change {
	if len(t.by) == 0 {
		return nil
	}
	ix := t.ix
	ix.counters.LastRevision++
	names := slices.SortedFunc(maps.Keys(t.by), Name.Compare)
	out := make([]Change, 0, len(names))
	for _, n := range names {
		ix.applied[n] = ix.counters.LastRevision
		out = append(out, ix.told(n, t.by[n]))
	}
	return out
}

func (ix *Index) told(n Name, s *touch) Change {
	svc, ok := ix.services.get(n)
	c := Change{Name: n, Revision: ix.applied[n], Removal: ServiceDeleted}
	switch _, damaged := ix.damaged.get(serviceKey(n)); {
	case ok:
		c = ix.change(svc)
	case damaged:
		c.Removal = NotRemoved // nobody deleted it: its row does not decode
	default:
		delete(ix.applied, n)
	}
	for uid, why := range s.instances {
		if why != NotRemoved {
			c.Instances = append(c.Instances, InstanceChange{UID: uid, Removal: why})
		} else if i, ok := ix.instances.get(uid); ok && !s.all {
			c.Instances = append(c.Instances, ix.instanceChange(svc, i))
		}
	}
	if s.all && ok {
		for _, i := range ix.Instances(n) {
			c.Instances = append(c.Instances, ix.instanceChange(svc, i))
		}
	}
	slices.SortFunc(c.Instances, func(a, b InstanceChange) int { return cmp.Compare(a.UID, b.UID) })
	return c
}
