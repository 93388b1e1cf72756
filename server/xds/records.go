package xds

import (
	"cmp"
	"slices"
)

// nameID stands for a resource name, for the whole process (index.go).
type nameID uint32

// flag says something about a name on a stream, for one type. A record keeps
// eight of them for each of the four types.
type flag uint32

const (
	subscribed flag = 1 << iota // by name; members of a wildcard are not
	held                        // the client was sent it, or offered it, and was not told of its removal
	asked                       // asked for now: answered even when nothing changed
	withdrawal                  // dirty, in the urgent lane
	addition                    // dirty, in the lane that waits
	resume                      // offered with a version that differs
	owed                        // EDS: goes right after its changed Cluster
	fresh                       // CDS: new on this stream, its assignment was not sent since

	flagsPerType = 8
	urgent       = asked | withdrawal | owed
	patient      = addition | resume
	dirty        = urgent | patient
	allFlags     = 1<<flagsPerType - 1
)

// of moves flags to the place of a type.
func (f flag) of(t typ) flag { return f << (flagsPerType * flag(t)) }

// at takes the flags of a type out of their place.
func (f flag) at(t typ) flag { return f >> (flagsPerType * flag(t)) & allFlags }

// record is what a stream knows of one name. It is eight bytes so that a
// stream of 200 names stays under 6 KB (ENGINE.md §2).
type record struct {
	id    nameID
	flags flag
}

func (r *record) any(t typ, f flag) bool { return r.flags&f.of(t) != 0 }
func (r *record) set(t typ, f flag)      { r.flags |= f.of(t) }
func (r *record) clear(t typ, f flag)    { r.flags &^= f.of(t) }

// records is the set of a stream's names, sorted by id. Pointers into it are
// good until the next add or drop.
type records []record

func compareRecord(r record, id nameID) int { return cmp.Compare(r.id, id) }

// find returns the name's record, or nil.
func (rs records) find(id nameID) *record {
	i, ok := slices.BinarySearchFunc(rs, id, compareRecord)
	if !ok {
		return nil
	}
	return &rs[i]
}

// add inserts those of the ids that are missing, all at once: one by one a list
// of 100,000 would be moved 100,000 times. It sorts ids.
func (rs *records) add(ids []nameID) {
	slices.Sort(ids)
	old := *rs
	missing := 0
	for i, id := range ids {
		if (i == 0 || id != ids[i-1]) && old.find(id) == nil {
			missing++
		}
	}
	if missing == 0 {
		return
	}
	merged := make(records, 0, len(old)+missing)
	for _, id := range ids {
		n, found := slices.BinarySearchFunc(old, id, compareRecord)
		merged = append(merged, old[:n]...)
		old = old[n:]
		if !found && (len(merged) == 0 || merged[len(merged)-1].id != id) {
			merged = append(merged, record{id: id})
		}
	}
	*rs = append(merged, old...)
}

// drop removes the records without flags and calls left with their ids.
func (rs *records) drop(left func(nameID)) {
	*rs = slices.DeleteFunc(*rs, func(r record) bool {
		if r.flags != 0 {
			return false
		}
		left(r.id)
		return true
	})
}
