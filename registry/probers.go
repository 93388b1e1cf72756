package registry

import (
	"cmp"
	"iter"
	"slices"
)

// Prober is who probes: a name that is unique in the region, and the zone that
// it stands in.
type Prober struct{ Name, Zone string }

// MaxProbers is the most probers that one instance is assigned to: two, and a
// third while the two disagree (HEALTH.md §2).
const MaxProbers = 3

// Probers is the set of probers that are at work. It is immutable, so any
// goroutine may read the one it was given; the zero value is empty.
//
// Who probes what follows from the set and the instance's uid alone, by
// rendezvous hashing, so that whoever holds the same set agrees about it and
// nothing is stored per instance. A prober that comes takes only what it is now
// assigned to, and one that goes leaves the rest where it is.
type Probers struct{ all []placed }

// placed is a prober with the hash of its name.
type placed struct {
	Prober
	hash uint64
}

// With returns the set with the prober in it. One of the same name is replaced:
// it moved to another zone.
func (p Probers) With(x Prober) Probers {
	i, had := p.find(x.Name)
	if had && p.all[i].Prober == x {
		return p
	}
	next := slices.Clone(p.all)
	if had {
		next[i] = placed{x, hashName(x.Name)}
	} else {
		next = slices.Insert(next, i, placed{x, hashName(x.Name)})
	}
	return Probers{next}
}

// Without returns the set without the prober of that name.
func (p Probers) Without(name string) Probers {
	i, had := p.find(name)
	if !had {
		return p
	}
	return Probers{slices.Delete(slices.Clone(p.all), i, i+1)}
}

func (p Probers) find(name string) (int, bool) {
	return slices.BinarySearchFunc(p.all, name, func(x placed, name string) int { return cmp.Compare(x.Name, name) })
}

// Get returns the prober of that name.
func (p Probers) Get(name string) (Prober, bool) {
	i, had := p.find(name)
	if !had {
		return Prober{}, false
	}
	return p.all[i].Prober, true
}

// Equal reports whether both sets hold the same probers.
func (p Probers) Equal(o Probers) bool { return slices.Equal(p.all, o.all) }

// Len is the number of probers.
func (p Probers) Len() int { return len(p.all) }

// Zones is the number of zones that they stand in.
func (p Probers) Zones() int {
	zones := make(map[string]bool, len(p.all))
	for i := range p.all {
		zones[p.all[i].Zone] = true
	}
	return len(zones)
}

// All yields the probers by name.
func (p Probers) All() iter.Seq[Prober] {
	return func(yield func(Prober) bool) {
		for i := range p.all {
			if !yield(p.all[i].Prober) {
				return
			}
		}
	}
}

// Assigned returns the n probers of an instance (MaxProbers at most), or all
// there are: each from a zone that has none yet where there is one, so that no
// one zone's network speaks alone. The first of them are those of a smaller n.
func (p Probers) Assigned(uid UID, n int) []Prober {
	var at [MaxProbers]int
	chosen := make([]Prober, 0, MaxProbers)
	for _, i := range at[:p.choose(uid, n, &at)] {
		chosen = append(chosen, p.all[i].Prober)
	}
	return chosen
}

// Assigns reports whether the prober of that name is among those that Assigned
// returns. It allocates nothing: every probe result is asked about.
func (p Probers) Assigns(uid UID, n int, name string) bool {
	var at [MaxProbers]int
	for _, i := range at[:p.choose(uid, n, &at)] {
		if p.all[i].Name == name {
			return true
		}
	}
	return false
}

// choose puts the positions of an instance's probers into at, and returns how
// many there are.
func (p Probers) choose(uid UID, n int, at *[MaxProbers]int) (chosen int) {
	for n = min(n, MaxProbers, len(p.all)); chosen < n; chosen++ {
		best, bestNew, bestScore := -1, false, uint64(0)
		for i := range p.all {
			if slices.Contains(at[:chosen], i) {
				continue
			}
			isNew, score := p.newZone(i, at[:chosen]), rendezvous(p.all[i].hash, uid)
			// Names are unique and sorted: of equal scores the first name wins.
			if best < 0 || isNew && !bestNew || isNew == bestNew && score > bestScore {
				best, bestNew, bestScore = i, isNew, score
			}
		}
		at[chosen] = best
	}
	return chosen
}

// newZone reports whether none of the chosen stands in the zone of i.
func (p Probers) newZone(i int, chosen []int) bool {
	for _, c := range chosen {
		if p.all[c].Zone == p.all[i].Zone {
			return false
		}
	}
	return true
}

// hashName is FNV-1a.
func hashName(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return h
}

// rendezvous is the score of a prober for an instance: the two mixed by the
// finaliser of SplitMix64, so that scores of neighbouring uids and names have
// nothing to do with each other.
func rendezvous(prober uint64, uid UID) uint64 {
	x := prober ^ uint64(uid)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
