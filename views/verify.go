package views

import (
	"maps"
	"slices"
)

// Replay returns what a client holds that had start's views and then applied
// the publications in order, as one that follows deltas does: it patches its
// members, and never sees a whole view of a service it knows. It is the model
// that the convergence verifier holds against the Snapshot.
func Replay(start *Snapshot, pubs []Publication) map[Name]*View {
	held := map[Name]*View{}
	for v := range start.All() {
		held[v.Name] = v
	}
	for _, p := range pubs {
		switch mine := held[p.Name]; {
		case p.New == nil:
			delete(held, p.Name)
		case mine == nil || p.Old == nil:
			held[p.Name] = p.New
		default:
			held[p.Name] = patch(mine, MakeDelta(p.Old, p.New))
		}
	}
	return held
}

// Delta turns one view of a service into the next.
type Delta struct {
	Base    Version   // endpoint version of the view that it applies to
	View    *View     // the next view, its members left out
	Changed []*Member // new or different, by uid
	Removed []UID     // gone, ascending
}

// MakeDelta compares two views of one service.
func MakeDelta(old, next *View) Delta {
	v := *next
	v.Members = nil
	d := Delta{Base: old.Endpoint, View: &v}
	i := 0
	for _, m := range next.Members {
		for ; i < len(old.Members) && old.Members[i].UID < m.UID; i++ {
			d.Removed = append(d.Removed, old.Members[i].UID)
		}
		if i < len(old.Members) && old.Members[i].UID == m.UID {
			if old.Members[i] != m && !(sameMember(old.Members[i], m) && old.Members[i].Evidence == m.Evidence) {
				d.Changed = append(d.Changed, m)
			}
			i++
			continue
		}
		d.Changed = append(d.Changed, m)
	}
	for ; i < len(old.Members); i++ {
		d.Removed = append(d.Removed, old.Members[i].UID)
	}
	return d
}

// Apply returns the next view of whoever holds the delta's base. It is not ok
// when held is not that base: then only a whole view helps.
func (d Delta) Apply(held *View) (next *View, ok bool) {
	if held == nil || held.Name != d.View.Name || held.Endpoint != d.Base {
		return nil, false
	}
	return patch(held, d), true
}

func patch(held *View, d Delta) *View {
	members := make(map[UID]*Member, len(held.Members)+len(d.Changed))
	for _, m := range held.Members {
		members[m.UID] = m
	}
	for _, uid := range d.Removed {
		delete(members, uid)
	}
	for _, m := range d.Changed {
		members[m.UID] = m
	}
	next := *d.View
	next.Members = make([]*Member, 0, len(members))
	for _, uid := range slices.Sorted(maps.Keys(members)) {
		next.Members = append(next.Members, members[uid])
	}
	return &next
}

// Difference is one service that a client does not hold as it is published.
type Difference struct {
	Name   Name
	Held   *View // nil: not held
	Want   *View // nil: not published
	Reason string
}

// Verify compares what a client holds with the Snapshot that it should have
// converged to, by hashes taken anew from what is held. The result is sorted by
// name; empty means that they agree.
func Verify(s *Snapshot, held map[Name]*View) []Difference {
	var out []Difference
	for v := range s.All() {
		if reason := compareHeld(held[v.Name], v); reason != "" {
			out = append(out, Difference{v.Name, held[v.Name], v, reason})
		}
	}
	for n, v := range held {
		if s.Get(n) == nil {
			out = append(out, Difference{n, v, nil, "held, and not published any more"})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int { return a.Name.Compare(b.Name) })
	return out
}

func compareHeld(held, want *View) string {
	switch {
	case held == nil:
		return "published, and not held"
	case held.Endpoint != want.Endpoint || held.Config != want.Config:
		return "held at " + held.Version().String() + ", published at " + want.Version().String()
	case HashEndpoint(held) != want.EndpointHash:
		return "same version, other endpoints"
	case HashConfig(held) != want.ConfigHash:
		return "same version, other configuration"
	}
	return ""
}
