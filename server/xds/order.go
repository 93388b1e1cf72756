package xds

import (
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sightlinedev/sightline/views"
)

// How long a Cluster's removal waits for the route that leaves it to be
// acknowledged (ENGINE.md §6).
const (
	holdRemoved = 15 * time.Second // its port is not declared any more
	holdDeleted = 5 * time.Second  // its service was deleted, or left the scope
)

// hold keeps a Cluster that is gone until the client's routes have left it.
type hold struct {
	until   time.Time
	deleted bool   // the service is gone, not only the port
	counted bool   // route is set
	route   uint32 // serial of the route response that has to be settled
	over    bool
}

// holdRemoval reports whether a removal has to wait: a Cluster's for the routes,
// an assignment's for its Cluster's. An explicit ask is answered at once.
func (p *pass) holdRemoval(t typ, r *record, f *found) bool {
	st := p.st
	if t > eds || r.any(t, asked) {
		return false
	}
	h := st.holds[f.id]
	if t == eds {
		if h != nil {
			return !h.over
		}
		return r.any(cds, held) && r.any(cds, dirty)
	}
	if h != nil {
		if until := p.now.Add(holdDeleted); f.view == nil && !h.deleted { // the service followed its port
			h.deleted = true
			if until.Before(h.until) {
				h.until = until
				st.wakeAt(p.now, until)
			}
		}
		return !h.over
	}
	if !st.watchesRoutes() || !r.any(cds, held) {
		return false
	}
	h = &hold{until: p.now.Add(holdRemoved), deleted: f.view == nil}
	if h.deleted {
		h.until = p.now.Add(holdDeleted)
	}
	if st.holds == nil {
		st.holds = make(map[nameID]*hold)
	}
	st.holds[f.id] = h
	st.wakeAt(p.now, h.until)
	st.routesDirty(withdrawal)
	return true
}

// endHolds finds the removals that need not wait any more and makes them due. It
// reports whether there are any.
func (p *pass) endHolds() bool {
	st := p.st
	if len(st.holds) == 0 {
		return false
	}
	routes := &st.typ[rds]
	pending := false
	if r := st.records.find(st.outbound); r != nil {
		pending = r.any(rds, dirty)
	}
	ended := false
	for id, h := range st.holds {
		cluster := st.records.find(id)
		if cluster == nil || !cluster.any(cds, held) { // the client does not ask for it any more
			delete(st.holds, id)
			if cluster != nil && cluster.any(eds, held) {
				ended = true
				st.dirtied(eds, cluster, withdrawal)
			}
			continue
		}
		if !h.counted && !pending {
			h.counted, h.route = true, routes.serial
		}
		taken := h.counted && routes.serial >= h.route && routes.settledUpTo(h.route)
		h.over = h.over || taken || !p.now.Before(h.until)
		if !h.over {
			st.wakeAt(p.now, h.until)
			continue
		}
		ended = true
		if cluster.any(eds, held) {
			st.dirtied(eds, cluster, withdrawal)
		}
		st.dirtied(cds, cluster, withdrawal)
	}
	return ended
}

// routeRejected ends the wait for a route that the client refused, where the
// service is gone anyway.
func (st *stream) routeRejected(serial uint32) {
	for _, h := range st.holds {
		switch {
		case !h.counted || serial < h.route:
		case h.deleted:
			h.over = true
		default:
			h.route = serial + 1 // until its time is over, or a later route is taken
		}
	}
}

// routable yields what an Envoy's routes may name: where the client follows
// Clusters, those that it holds, whose assignment it has, and that are not about
// to go; else every Cluster in scope.
func (p *pass) routable() iter.Seq2[*views.View, name] {
	st := p.st
	return func(yield func(*views.View, name) bool) {
		if !st.typ[cds].seen {
			p.allClusters(yield)
			return
		}
		for i := range st.records {
			r := &st.records[i]
			if !r.any(cds, held) || r.any(cds, fresh) || st.holds[r.id] != nil {
				continue
			}
			n := st.srv.feed.index.lookup(r.id)
			v := st.visible(p.snap, &n)
			if v != nil && canonical(v, n.resourceName) && !yield(v, n) {
				return
			}
		}
	}
}

func (p *pass) allClusters(yield func(*views.View, name) bool) {
	st := p.st
	for v := range p.snap.All() {
		if !st.scope(v) {
			continue
		}
		for _, text := range st.srv.render.clusterNames(v) {
			n := name{resourceName: resourceName{text: text, service: v.Name}, hash: st.srv.feed.index.hash(text)}
			if !yield(v, n) {
				return
			}
		}
	}
}

// routeSet is the set of services of an Envoy's routes. Its key covers every
// input of the rendering, so that equal sets share their bytes.
func (p *pass) routeSet() serviceSet {
	set := serviceSet{at: p.st.srv.feed.setVersion()}
	for v, n := range p.routable() {
		set.key += mix(n.hash, v.Config)
		if set.at.Less(v.Config) {
			set.at = v.Config
		}
	}
	set.members = func() []setMember {
		by := make(map[views.Name]*setMember)
		for v, n := range p.routable() {
			m := by[v.Name]
			if m == nil {
				m = &setMember{view: v}
				by[v.Name] = m
			}
			m.clusters = append(m.clusters, n.text)
		}
		return p.ordered(by)
	}
	return set
}

// ordered lists members by name, and the clusters of each as the renderer does.
func (p *pass) ordered(by map[views.Name]*setMember) []setMember {
	list := make([]setMember, 0, len(by))
	for _, m := range by {
		all := p.st.srv.render.clusterNames(m.view)
		m.clusters = slices.DeleteFunc(all, func(c string) bool { return !slices.Contains(m.clusters, c) })
		list = append(list, *m)
	}
	slices.SortFunc(list, func(a, b setMember) int {
		return strings.Compare(a.view.Name.String(), b.view.Name.String())
	})
	return list
}

// mix spreads a name's hash and a version over 64 bits.
func mix(hash uint64, v views.Version) uint64 {
	h := hash ^ v.Epoch*0x9e3779b97f4a7c15 ^ v.Seq*0xc2b2ae3d27d4eb4f
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// resolveComposite finds Envoy's Listener or RouteConfiguration as it is for
// this stream. It is there already if and only if its bytes are the same.
func (p *pass) resolveComposite(t typ, f *found) {
	st := p.st
	set := serviceSet{at: p.st.srv.feed.setVersion(), members: func() []setMember { return nil }}
	if t == rds {
		set = p.routeSet()
	}
	e := st.srv.render.composite(t, set, st.shape)
	if e == nil { // it was reported; what the client has is better than nothing
		f.skip = st.records.find(f.id).any(t, held)
		return
	}
	shown := st.composites[t]
	f.skip = e.render == shown.render && !st.records.find(f.id).any(t, asked)
	f.enc = st.srv.restamps.raised(e, maxVersion(set.at, shown.at))
}

func maxVersion(a, b views.Version) views.Version {
	if a.Less(b) {
		return b
	}
	return a
}

// restamps shares composites whose bytes were made for an older version than
// they are shown at: the set that they are made of changed, and changed back.
type restamps struct {
	mu       sync.Mutex
	byRender map[string]*encoded
}

// keptRestamps bounds the composites kept; beyond it they are made again.
const keptRestamps = 32

// raised returns the composite at that version, or as it is if it is newer.
func (r *restamps) raised(e *encoded, at views.Version) *encoded {
	if !e.at.Less(at) {
		return e
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.byRender[e.render]; c != nil && c.at == at && c.name == e.name {
		return c
	}
	if r.byRender == nil || len(r.byRender) >= keptRestamps {
		r.byRender = make(map[string]*encoded)
	}
	c := e.withAt(at)
	r.byRender[e.render] = c
	return c
}
