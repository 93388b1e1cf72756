package xds

import (
	"slices"
	"time"

	"github.com/sightlinedev/sightline/views"
)

// routesWait is how long a resumed Envoy's listeners and routes wait for it to
// ask for its clusters and assignments (ENGINE.md §6).
const routesWait = time.Second

// pass builds, for one stream, all responses that may go out now.
type pass struct {
	st   *stream
	now  time.Time
	snap *views.Snapshot
	out  []outgoing
}

// compose builds what is due. An empty answer means that nothing may be sent
// until the stream is rung again.
func (st *stream) compose(now time.Time) []outgoing {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed || !st.met || !st.srv.ready() {
		return nil
	}
	st.drain()
	if _, due := st.pending(); !due {
		return nil
	}
	p := &pass{st: st, now: now, snap: st.srv.cfg.Snapshot()}
	for _, m := range st.strays {
		p.out = append(p.out, outgoing{msg: m, before: st.unacked})
	}
	st.strays = nil
	if st.delta {
		p.delta()
	} else {
		p.sotw()
	}
	return p.out
}

// mayRoute reports whether listeners and routes may be answered.
func (p *pass) mayRoute() bool {
	st := p.st
	if !st.kind.envoy || !st.resumed || st.typ[cds].seen && st.typ[eds].seen {
		return true
	}
	if at := st.opened.Add(routesWait); p.now.Before(at) {
		if st.typ[lds].seen || st.typ[rds].seen {
			st.wakeAt(p.now, at)
		}
		return false
	}
	return true
}

// found is what a dirty name resolved to.
type found struct {
	id   nameID
	name name
	view *views.View // in scope, or nil
	enc  *encoded    // nil: there is no such resource for this client
	skip bool        // it is there, and the client has it already
	gone bool        // enc says that it is gone, or shows it as it last was
}

// resolve finds the resource of a name as it is now.
func (p *pass) resolve(t typ, id nameID) found {
	st := p.st
	f := found{id: id, name: st.srv.feed.index.lookup(id)}
	if st.isOutbound(t, &f.name) {
		p.resolveComposite(t, &f)
		return f
	}
	f.view = st.visible(p.snap, &f.name)
	if f.view == nil || !p.wanted(t, &f) {
		return f
	}
	f.enc = st.srv.render.resource(t, f.view, f.name.resourceName, st.shape)
	return f
}

// wanted reports whether the client asked for the resource: by name, or by a
// wildcard that it is a member of.
func (p *pass) wanted(t typ, f *found) bool {
	if p.st.records.find(f.id).any(t, subscribed) {
		return true
	}
	return p.st.typ[t].wildcard && (t == cds || t == eds) && canonical(f.view, f.name.resourceName)
}

// canonical reports whether the name is that of a Cluster, rather than another
// dialled form of the same port.
func canonical(v *views.View, n resourceName) bool {
	i, ok := portOf(v, n.port)
	return ok && clusterOf(v, i) == n.text
}

// batch is a response in the making.
type batch struct {
	res       []*encoded
	items     []item
	removed   []string
	size      int
	limit     int // of size
	additions bool
	withdraws bool
	large     bool // it holds additions to a large service
	published time.Time
	newest    views.Version
}

func (b *batch) empty() bool { return len(b.items) == 0 && len(b.removed) == 0 }

// fits reports whether n more bytes keep the response under its limit. A single
// resource always fits: the renderer bounds it.
func (b *batch) fits(n int) bool { return b.empty() || b.size+n <= b.limit }

// batch starts a response.
func (p *pass) batch() *batch { return &batch{limit: p.st.srv.responseLimit()} }

// responseLimit is what the resources and removed names of a response may take.
func (s *Server) responseLimit() int {
	return min(maxResponse, s.cfg.Limits.ResponseBytes) - responseRoom
}

// add puts a resource into the response. Its flags say in which lane it goes.
func (b *batch) add(t typ, f *found, r *record) {
	b.res = append(b.res, f.enc)
	b.items = append(b.items, item{id: f.id, news: !r.any(t, held)})
	b.size += len(f.enc.delta)
	if b.newest.Less(f.enc.at) {
		b.newest = f.enc.at
	}
	b.note(t, r)
	b.large = b.large || f.view != nil && f.view.ListedCount > largeService && r.any(t, addition)
	if f.view != nil && r.any(t, withdrawal|addition) && (b.published.IsZero() || f.view.PublishedAt.Before(b.published)) {
		b.published = f.view.PublishedAt
	}
}

func (b *batch) remove(t typ, f *found, r *record) {
	b.removed = append(b.removed, f.name.text)
	b.size += len(f.name.text) + 4
	b.note(t, r)
}

// note says in which lanes the response goes.
func (b *batch) note(t typ, r *record) {
	b.additions = b.additions || !r.any(t, urgent) && r.any(t, patient)
	b.withdraws = b.withdraws || r.any(t, withdrawal)
}

// work lists the dirty names of a type that may go now: the urgent ones first,
// then, while the gate is open, the patient ones. What has left the stream, or
// travels alone, drops out.
func (p *pass) work(t typ, only flag) (now, later []nameID) {
	ts := &p.st.typ[t]
	if len(ts.dirty) == 0 {
		return nil, nil
	}
	slices.Sort(ts.dirty)
	var patients []nameID
	open := only&patient != 0 && p.st.gateOpen(t, p.now)
	if only&withdrawal != 0 && !p.st.mayWithdraw(t, p.now) {
		only &^= withdrawal
	}
	for _, id := range slices.Compact(ts.dirty) {
		r := p.st.records.find(id)
		switch {
		case r == nil || !r.any(t, dirty) || p.alone(t, r):
		case r.any(t, urgent&only):
			now = append(now, id)
		case open && r.any(t, patient&only) && p.mayEnlarge(t, id):
			patients = append(patients, id)
		default:
			later = append(later, id)
		}
	}
	ts.dirty = nil
	return append(now, patients...), later
}

// emit frames a batch as the next response of its type.
// On state of the world its version never goes below what this client was
// shown or offered.
func (p *pass) emit(t typ, b *batch) *inflight {
	st := p.st
	ts := &st.typ[t]
	if ts.floor.Less(b.newest) {
		ts.floor = b.newest
	}
	f := st.newInflight(t, p.now)
	f.holds = f.holds || b.additions
	f.items, f.published, f.newest = b.items, b.published, b.newest
	var r *response
	if st.delta {
		r = deltaResponse(t, f.nonce(), b.res, b.removed, st.srv.cfg.Identifier)
	} else {
		r = sotwResponse(t, ts.floor.String(), f.nonce(), b.res, st.srv.cfg.Identifier)
	}
	f.bytes = r.size()
	p.out = append(p.out, outgoing{msg: r, before: st.unacked})
	st.departed(t, f, p.now)
	if b.withdraws {
		ts.lastUrgent = p.now
	}
	if b.large && st.kind.largeEvery > 0 {
		ts.lastLarge = p.now
	}
	if on := st.srv.cfg.Events.Push; on != nil {
		on(t.String(), st.kind.name, len(b.res), len(b.removed), f.bytes)
	}
	return f
}

// sent notes what a resource's departure means for its record, and for others:
// a Cluster owes its assignment, an assignment makes its Cluster routable.
func (p *pass) sent(t typ, id nameID) {
	st := p.st
	r := st.records.find(id)
	news, changed := !r.any(t, held), st.delta || r.any(t, dirty)
	r.clear(t, dirty)
	r.set(t, held)
	switch t {
	case cds:
		back := st.holds[id] != nil // its removal was held, and its route has left it
		delete(st.holds, id)
		changed = changed || back
		watched := p.owes(r)
		if news || back || changed && !watched {
			r.set(cds, fresh)
		}
		if changed && watched {
			st.dirtied(eds, r, owed)
		}
	case eds:
		if r.any(cds, fresh) {
			r.clear(cds, fresh)
			st.routesDirty(addition)
		}
	}
}

// owes reports whether a Cluster must be followed by its assignment: the client
// watches it, and will not ask for it again (XDS.md §3.1, rule 12).
func (p *pass) owes(r *record) bool {
	if !p.st.delta && !p.st.kind.envoy {
		return false
	}
	return p.st.typ[eds].wildcard || r.any(eds, subscribed)
}

// removedFrom notes that the client was told that a resource is gone.
func (p *pass) removedFrom(t typ, id nameID) {
	r := p.st.records.find(id)
	r.clear(t, dirty|held)
	p.st.untidy = true
	if t != cds {
		return
	}
	r.clear(cds, fresh)
	delete(p.st.holds, id)
	if p.st.delta && r.any(eds, held) {
		p.st.dirtied(eds, r, withdrawal)
	}
}
