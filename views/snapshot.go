package views

import (
	"hash/fnv"
	"iter"
)

// buckets is the number of parts that a Snapshot is copied in (STORE.md §5).
const buckets = 256

// bucket holds the views whose names hash to it; immutable.
type bucket map[Name]*View

// Generations count the changes of what renderings depend on beside views.
type Generations struct {
	Policy uint64 // authorisation policy
	Routes uint64 // set of services and their configuration
}

// Snapshot is every view of the region at one moment. It is immutable, and the
// only thing that the surfaces (xds, dns, resolve, watch) read.
type Snapshot struct {
	head        *head
	bucketTable [buckets]*bucket
}

type head struct {
	version     Version
	complete    bool
	generations Generations
	count       int
}

// NewSnapshot builds a snapshot from whole views. Its head is the newest
// version among them; complete says that no view is missing because of a start.
func NewSnapshot(complete bool, views ...*View) *Snapshot {
	s := &Snapshot{head: &head{complete: complete}}
	for _, v := range views {
		s = s.With(v)
	}
	return s
}

// With returns a snapshot in which v replaces the view of the same name.
func (s *Snapshot) With(v *View) *Snapshot { return s.replace(v.Name, v, v.Version()) }

// Without returns a snapshot that lacks the service, whose deletion is at version at.
func (s *Snapshot) Without(n Name, at Version) *Snapshot { return s.replace(n, nil, at) }

// WithHead returns the same views under other head values.
func (s *Snapshot) WithHead(complete bool, g Generations) *Snapshot {
	next := *s
	h := *s.head
	h.complete, h.generations = complete, g
	next.head = &h
	return &next
}

func (s *Snapshot) replace(n Name, v *View, at Version) *Snapshot {
	next := *s
	h := *s.head
	next.head = &h
	i := bucketOf(n)
	nb := make(bucket, 1)
	if old := s.bucketTable[i]; old != nil {
		nb = make(bucket, len(*old)+1)
		for k, ov := range *old {
			nb[k] = ov
		}
	}
	_, had := nb[n]
	switch {
	case v != nil && !had:
		h.count++
	case v == nil && had:
		h.count--
	}
	if v != nil {
		nb[n] = v
	} else {
		delete(nb, n)
	}
	next.bucketTable[i] = &nb
	if h.version.Less(at) {
		h.version = at
	}
	return &next
}

// Get returns the service's view, or nil.
func (s *Snapshot) Get(n Name) *View {
	b := s.bucketTable[bucketOf(n)]
	if b == nil {
		return nil
	}
	return (*b)[n]
}

// All yields every view, in no particular order.
func (s *Snapshot) All() iter.Seq[*View] {
	return func(yield func(*View) bool) {
		for _, b := range s.bucketTable {
			if b == nil {
				continue
			}
			for _, v := range *b {
				if !yield(v) {
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

// bucketOf hashes by FNV-1a over namespace, NUL, service.
func bucketOf(n Name) int {
	h := fnv.New32a()
	h.Write([]byte(n.Namespace))
	h.Write([]byte{0})
	h.Write([]byte(n.Service))
	return int(h.Sum32() % buckets)
}
