package xds

import (
	"sync"
	"time"

	"github.com/sightlinedev/sightline/views"
)

// Feed carries publications to the streams that they concern. It holds no
// views and no queue of events: it marks names as dirty, and the newest state
// is read when a response is built (ENGINE.md §3).
type Feed struct {
	index  *index
	pool   *pool
	forget func(views.Name) // drops the encoded bytes of a deleted service
	fanOut func(time.Duration)

	scratch sync.Pool // *[]subscriber

	mu      sync.RWMutex
	streams []*stream // by id; nil: free
	free    []uint32
	wild    map[*stream]struct{} // streams that every new or deleted service concerns
	set     views.Version        // newest creation or deletion of a service

	tombs tombstones
}

func newFeed(p *pool, forget func(views.Name), fanOut func(time.Duration)) *Feed {
	return &Feed{
		index: newIndex(), pool: p, forget: forget, fanOut: fanOut,
		scratch: sync.Pool{New: func() any { return new([]subscriber) }},
		wild:    make(map[*stream]struct{}),
		tombs:   tombstones{byName: make(map[views.Name]tombstone)},
	}
}

// Publish marks what a publication changes on the streams that know the
// service, and wakes them. The Snapshot that New's Config returns must already
// hold the new view. It never blocks on a stream, and may be called from
// several goroutines.
func (f *Feed) Publish(p views.Publication) {
	start := time.Now()
	flags := marksOf(p)
	if flags == 0 {
		return
	}
	whole := p.New == nil || p.Old == nil || p.Old.Config != p.New.Config
	f.note(p)
	prio := patiently
	if p.Lane == views.Withdrawals {
		prio = urgently
	}
	subs := f.scratch.Get().(*[]subscriber)
	*subs = f.index.subscribers((*subs)[:0], p.Name)
	f.mu.RLock()
	for _, s := range *subs {
		if st := f.streams[s.stream]; st != nil {
			st.mark(mark{s.id, flags}, prio)
		}
	}
	if whole {
		for st := range f.wild {
			st.markService(serviceMark{p.Name, flags.at(cds)}, prio)
		}
	}
	f.mu.RUnlock()
	f.scratch.Put(subs)
	if f.fanOut != nil {
		f.pool.fence(prio, func() { f.fanOut(time.Since(start)) })
	}
}

// marksOf says what a publication makes dirty, as flags of a record.
func marksOf(p views.Publication) flag {
	lane := addition
	if p.Lane == views.Withdrawals || p.New == nil {
		lane = withdrawal
	}
	if p.New == nil || p.Old == nil {
		return lane.of(cds) | lane.of(eds) | lane.of(lds) | lane.of(rds)
	}
	var flags flag
	if p.Old.Endpoint != p.New.Endpoint {
		flags |= lane.of(eds)
	}
	if p.Old.Config != p.New.Config {
		flags |= lane.of(cds) | lane.of(lds) | lane.of(rds)
	}
	return flags
}

// note remembers what a deleted service looked like, and when the set of
// services last changed.
func (f *Feed) note(p views.Publication) {
	if p.Old != nil && p.New != nil {
		return
	}
	if p.New == nil {
		f.tombs.bury(p.Name, tombstone{last: p.Old, at: p.Version})
	} else {
		f.tombs.raise(p.Name)
	}
	// Also when it is new: streams that hold the deleted one may have had its
	// last view encoded since.
	if f.forget != nil {
		f.forget(p.Name)
	}
	f.setChanged(p.Version)
}

// setChanged notes that the set of services that callers see changed.
func (f *Feed) setChanged(at views.Version) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.set.Less(at) {
		f.set = at
	}
}

// setVersion is the version of the newest change of the set of services.
func (f *Feed) setVersion() views.Version {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.set
}

// enter gives a stream its id.
func (f *Feed) enter(st *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st.entered = true
	if n := len(f.free); n > 0 {
		st.id = f.free[n-1]
		f.free = f.free[:n-1]
		f.streams[st.id] = st
		return
	}
	st.id = uint32(len(f.streams))
	f.streams = append(f.streams, st)
}

// exit forgets a stream that knows no names any more.
func (f *Feed) exit(st *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.wild, st)
	f.streams[st.id] = nil
	f.free = append(f.free, st.id)
}

// watchAll says whether every new or deleted service concerns the stream.
func (f *Feed) watchAll(st *stream, all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if all {
		f.wild[st] = struct{}{}
	} else {
		delete(f.wild, st)
	}
}

// open lists the streams.
func (f *Feed) open() []*stream {
	f.mu.RLock()
	defer f.mu.RUnlock()
	list := make([]*stream, 0, len(f.streams)-len(f.free))
	for _, st := range f.streams {
		if st != nil {
			list = append(list, st)
		}
	}
	return list
}

// tombstone is a deleted service: its last view and the version of its deletion.
type tombstone struct {
	last *views.View
	at   views.Version
}

// keptTombstones bounds the memory of deleted services; the oldest go first. A
// name without one is still answered: as a service that was never known.
const keptTombstones = 4096

// tombstones are guarded by their own lock.
type tombstones struct {
	mu     sync.Mutex
	byName map[views.Name]tombstone
	order  []burial
}

type burial struct {
	name views.Name
	at   views.Version
}

func (t *tombstones) bury(n views.Name, ts tombstone) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byName[n] = ts
	t.order = append(t.order, burial{n, ts.at})
	for len(t.order) > keptTombstones {
		if old := t.order[0]; t.byName[old.name].at == old.at {
			delete(t.byName, old.name)
		}
		t.order = t.order[1:]
	}
}

func (t *tombstones) raise(n views.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byName, n)
}

// of returns the service's tombstone, which is zero when there is none.
func (t *tombstones) of(n views.Name) tombstone {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byName[n]
}
