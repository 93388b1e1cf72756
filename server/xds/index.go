package xds

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"github.com/sightlinedev/sightline/views"
)

const (
	stripeBits = 6
	stripes    = 1 << stripeBits
	// rest is how many ids of a stripe lie unused before one is used again, so
	// that an id still named by an unacknowledged response means nothing else.
	rest = 1024
)

// index is the consumer index: it interns the names that streams know, and says
// who knows them. A name lives while some stream has a record for it, so names
// that clients invent cost memory only while their streams do.
//
// It is striped by service, so that no publication or subscription takes a lock
// over the region. All forms of a service share a stripe.
type index struct {
	seed  maphash.Seed
	parts [stripes]stripe
}

type stripe struct {
	mu       sync.Mutex
	byText   map[string]nameID
	names    []name   // by id >> stripeBits
	free     []uint32 // positions, the one that has been free longest first
	services map[views.Name][]nameID
}

// name is an interned name. What it says of itself never changes while it lives.
type name struct {
	resourceName
	valid bool     // it can name a resource of a service
	hash  uint64   // of its text, the same for the process
	subs  []uint32 // ids of the streams that know it, sorted
}

func newIndex() *index {
	x := &index{seed: maphash.MakeSeed()}
	for i := range x.parts {
		// Position 0 stays empty, so that the zero id is no name.
		x.parts[i] = stripe{byText: make(map[string]nameID), names: make([]name, 1), services: make(map[views.Name][]nameID)}
	}
	return x
}

func (x *index) stripeOf(text string) uint32 {
	host, _, _ := strings.Cut(text, ":")
	return uint32(maphash.String(x.seed, host) % stripes)
}

// hash is the hash of a name's text, the same for the process.
func (x *index) hash(text string) uint64 { return maphash.String(x.seed, text) }

// join notes that the stream knows the name and returns the name's id.
func (x *index) join(text string, stream uint32) nameID {
	part := x.stripeOf(text)
	s := &x.parts[part]
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.byText[text]
	if !ok {
		id = s.intern(text, part, x.hash(text))
	}
	n := &s.names[id>>stripeBits]
	if i, known := slices.BinarySearch(n.subs, stream); !known {
		n.subs = slices.Insert(n.subs, i, stream)
	}
	return id
}

func (s *stripe) intern(text string, part uint32, hash uint64) nameID {
	pos := uint32(len(s.names))
	if len(s.free) > rest {
		pos = s.free[0]
		s.free = s.free[1:]
	} else {
		s.names = append(s.names, name{})
	}
	id := nameID(pos<<stripeBits | part)
	text = strings.Clone(text)
	r, valid := resolveName(text)
	r.text = text
	s.names[pos] = name{resourceName: r, valid: valid, hash: hash}
	s.byText[text] = id
	if valid {
		s.services[r.service] = append(s.services[r.service], id)
	}
	return id
}

// leave undoes join.
func (x *index) leave(id nameID, stream uint32) {
	s := &x.parts[id%stripes]
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.names[id>>stripeBits]
	if i, known := slices.BinarySearch(n.subs, stream); known {
		n.subs = slices.Delete(n.subs, i, i+1)
	}
	if len(n.subs) > 0 || n.text == "" {
		return
	}
	delete(s.byText, n.text)
	if n.valid {
		forms := slices.DeleteFunc(s.services[n.service], func(f nameID) bool { return f == id })
		if s.services[n.service] = forms; len(forms) == 0 {
			delete(s.services, n.service)
		}
	}
	*n = name{}
	s.free = append(s.free, uint32(id>>stripeBits))
}

// lookup returns what a name says of itself. The caller's stream knows the name.
func (x *index) lookup(id nameID) name {
	s := &x.parts[id%stripes]
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.names[id>>stripeBits]
	n.subs = nil
	return n
}

// find returns the id of a name that some stream knows.
func (x *index) find(text string) (nameID, bool) {
	s := &x.parts[x.stripeOf(text)]
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.byText[text]
	return id, ok
}

// subscriber is a stream that knows a name.
type subscriber struct {
	stream uint32
	id     nameID
}

// subscribers appends everyone who knows a form of the service's name.
func (x *index) subscribers(to []subscriber, service views.Name) []subscriber {
	s := &x.parts[x.stripeOf(service.Host())]
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.services[service] {
		for _, stream := range s.names[id>>stripeBits].subs {
			to = append(to, subscriber{stream, id})
		}
	}
	return to
}

// knows reports whether some stream knows a form of the service's name.
func (x *index) knows(service views.Name) bool {
	s := &x.parts[x.stripeOf(service.Host())]
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.services[service]) > 0
}

// known is the number of interned names.
func (x *index) known() int {
	total := 0
	for i := range x.parts {
		x.parts[i].mu.Lock()
		total += len(x.parts[i].byText)
		x.parts[i].mu.Unlock()
	}
	return total
}
