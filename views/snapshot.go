package views

import (
	"iter"
	"slices"
)

// buckets is the number of parts that a Snapshot is copied in (STORE.md §5).
const buckets = 256

// entry keeps the name's hash beside the view, so that a lookup compares
// strings once.
type entry struct {
	hash uint32
	view *View
}

// bucket holds the views whose names hash to it; immutable. A slice, because a
// bucket has about a dozen entries and is copied at every publication.
type bucket []entry

func (b bucket) find(hash uint32, n Name) int {
	for i := range b {
		if b[i].hash == hash && b[i].view.Name == n {
			return i
		}
	}
	return -1
}

// Generations count the changes of what renderings depend on beside views.
type Generations struct {
	Policy uint64 // authorisation policy
	Routes uint64 // set of services and their configuration
}

// Snapshot is every view of the region at one moment. It is immutable, and the
// only thing that the surfaces (xds, dns, resolve, watch) read.
type Snapshot struct {
	head        *head
	bucketTable [buckets]*bucket // 2 KiB, all that a publication copies beside one bucket
}

type head struct {
	version     Version
	complete    bool
	generations Generations
	count       int
}

// NewSnapshot builds a snapshot from whole views. Its head is the newest
// version among them; complete says that no view is missing because of a start.
// Of two views of one name the later one counts.
func NewSnapshot(complete bool, views ...*View) *Snapshot {
	h := &head{complete: complete}
	s := &Snapshot{head: h}
	tables := make([]bucket, buckets)
	for _, v := range views {
		hash := hashName(v.Name)
		i := hash % buckets
		if at := tables[i].find(hash, v.Name); at >= 0 {
			tables[i][at].view = v
		} else {
			tables[i] = append(tables[i], entry{hash, v})
			h.count++
		}
		if h.version.Less(v.Version()) {
			h.version = v.Version()
		}
	}
	for i := range tables {
		if len(tables[i]) > 0 {
			s.bucketTable[i] = &tables[i]
		}
	}
	return s
}

// With returns a snapshot in which v replaces the view of the same name.
func (s *Snapshot) With(v *View) *Snapshot { return s.replace(v.Name, v, v.Version(), *s.head) }

// Without returns a snapshot that lacks the service, whose deletion is at version at.
func (s *Snapshot) Without(n Name, at Version) *Snapshot { return s.replace(n, nil, at, *s.head) }

// WithHead returns the same views under other head values.
func (s *Snapshot) WithHead(complete bool, g Generations) *Snapshot {
	next := *s
	h := *s.head
	h.complete, h.generations = complete, g
	next.head = &h
	return &next
}

// replace copies the head, the table of pointers and one bucket; everything
// else is shared with s.
func (s *Snapshot) replace(n Name, v *View, at Version, h head) *Snapshot {
	next := *s
	next.head = &h
	hash := hashName(n)
	i := hash % buckets
	var old bucket
	if s.bucketTable[i] != nil {
		old = *s.bucketTable[i]
	}
	nb := make(bucket, len(old), len(old)+1)
	copy(nb, old)
	switch had := old.find(hash, n); {
	case v != nil && had >= 0:
		nb[had].view = v
	case v != nil:
		nb = append(nb, entry{hash, v})
		h.count++
	case had >= 0:
		nb = slices.Delete(nb, had, had+1)
		h.count--
	}
	next.bucketTable[i] = &nb
	if h.version.Less(at) {
		h.version = at
	}
	return &next
}

// Get returns the service's view, or nil. It allocates nothing.
func (s *Snapshot) Get(n Name) *View {
	hash := hashName(n)
	b := s.bucketTable[hash%buckets]
	if b == nil {
		return nil
	}
	if i := (*b).find(hash, n); i >= 0 {
		return (*b)[i].view
	}
	return nil
}

// All yields every view, in no particular order.
func (s *Snapshot) All() iter.Seq[*View] {
	return func(yield func(*View) bool) {
		for _, b := range s.bucketTable {
			if b == nil {
				continue
			}
			for _, e := range *b {
				if !yield(e.view) {
					return
				}
			}
		}
	}
}

// Len is the number of services.
func (s *Snapshot) Len() int { return s.head.count }

// Version is the newest version published so far, deletions included.
func (s *Snapshot) Version() Version { return s.head.version }

// Complete reports whether desired state has been loaded and every view built
// since the start. Until then no surface answers from it.
func (s *Snapshot) Complete() bool { return s.head.complete }

// Generations returns the counters that renderings are keyed by.
func (s *Snapshot) Generations() Generations { return s.head.generations }

// hashName is FNV-1a over namespace, NUL, service (STORE.md §5).
func hashName(n Name) uint32 {
	const offset, prime = 2166136261, 16777619
	h := uint32(offset)
	for i := range len(n.Namespace) {
		h = (h ^ uint32(n.Namespace[i])) * prime
	}
	h *= prime // the NUL
	for i := range len(n.Service) {
		h = (h ^ uint32(n.Service[i])) * prime
	}
	return h
}
