package xds

import (
	"slices"

	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// onSotw takes in a request of the state-of-the-world protocol. Its list is
// compared with the one before it, whatever its nonce. An error ends the stream.
func (st *stream) onSotw(r *request) error {
	if r.typ == types {
		return nil
	}
	if len(r.names) > st.names { // before they are interned
		return st.tooManyNames(r.typeName(), len(r.names))
	}
	ts := &st.typ[r.typ]
	first := !ts.seen
	ts.seen = true
	if r.same && !first {
		return nil
	}
	lane := asked
	if first && r.version != "" {
		st.resumed = true
		lane = resume
		if at, err := views.ParseVersion(r.version); err == nil && at.Epoch <= st.srv.cfg.Snapshot().Version().Epoch {
			ts.floor = at
		}
	}
	wildcard := first && len(r.names) == 0 && (r.typ == cds || r.typ == lds)
	texts := r.names[:0:0]
	for _, text := range r.names {
		if text == star {
			wildcard = true
			continue
		}
		texts = append(texts, text)
	}
	st.list(r.typ, texts, lane)
	st.listAll(r.typ, wildcard && st.kind.wildcards, lane)
	st.needAll()
	st.tidy()
	return nil
}

// list makes the names the ones that the stream is subscribed to. Only names
// that were not in the list before need an answer.
func (st *stream) list(t typ, texts []string, lane flag) {
	ts := &st.typ[t]
	ids := st.knowAll(texts)
	for i, id := range ids {
		if texts[i] == outboundName {
			st.outbound = id
		}
	}
	listed := slices.Clone(ids)
	slices.Sort(listed)
	listed = slices.Compact(listed)
	for i := range st.records {
		r := &st.records[i]
		_, in := slices.BinarySearch(listed, r.id)
		switch was := r.any(t, subscribed); {
		case in && !was:
			r.set(t, subscribed)
			st.dirtied(t, r, lane)
		case was && !in:
			r.clear(t, allFlags)
			st.untidy = true
			if t == eds {
				delete(st.watched, r.id)
			}
		}
	}
	ts.subscribed = len(listed)
	for _, text := range texts {
		st.refused(text)
	}
}

// listAll makes the stream a wildcard of the type, or not.
func (st *stream) listAll(t typ, wildcard bool, lane flag) {
	ts := &st.typ[t]
	if !wildcard || ts.wildcard {
		if ts.wildcard && !wildcard {
			st.dropWildcard(t)
		}
		return
	}
	ts.wildcard, ts.due = true, true
	st.needAll()
	if t == lds || t == rds {
		if st.kind.envoy {
			r := st.know(outboundName)
			st.outbound = r.id
			st.dirtied(t, r, lane)
		}
		return
	}
	var texts []string
	for v := range st.srv.cfg.Snapshot().All() {
		if st.scope(v) {
			texts = append(texts, st.srv.render.clusterNames(v)...)
		}
	}
	for _, id := range st.knowAll(texts) {
		st.dirtied(t, st.records.find(id), lane)
	}
}

// sotw builds the responses of one pass in the order of ENGINE.md §4.
func (p *pass) sotw() {
	p.sotwPart(eds, owed)
	p.sotwClusters()
	p.sotwPart(eds, dirty)
	if p.mayRoute() {
		p.sotwWhole(lds)
		p.sotwPart(rds, dirty)
	}
	p.isolated(eds)
	if p.endHolds() {
		p.sotwClusters()
	}
	p.st.tidy()
}

// sotwClusters sends the Clusters, towards Envoy with the assignments that the
// changed ones owe right after them.
func (p *pass) sotwClusters() {
	if p.st.kind.envoy && !p.st.room(eds, 1) {
		return
	}
	p.sotwWhole(cds)
	p.sotwPart(eds, owed)
}

// sotwPart sends the dirty names of a type of which a response may hold some:
// assignments and routes. They leave in ascending order of version, so that the
// version of a response hides nothing that was not sent.
func (p *pass) sotwPart(t typ, only flag) {
	st := p.st
	for st.room(t, 1) && len(st.typ[t].dirty) > 0 {
		now, later := p.work(t, only)
		var list []found
		for _, id := range now {
			f := p.resolve(t, id)
			r := st.records.find(id)
			if f.skip || f.enc == nil && !p.farewell(t, r, &f) {
				r.clear(t, dirty)
				continue
			}
			list = append(list, f)
		}
		slices.SortStableFunc(list, func(a, b found) int { return a.enc.at.Compare(b.enc.at) })
		b := p.batch()
		for i := range list {
			f := &list[i]
			if !b.fits(len(f.enc.any)) { // nor may a smaller one overtake it
				for _, f := range list[i:] {
					later = append(later, f.id)
				}
				break
			}
			r := st.records.find(f.id)
			p.put(t, b, r, f)
			if f.gone {
				r.clear(t, held)
			}
		}
		st.typ[t].dirty = append(st.typ[t].dirty, later...)
		if b.empty() {
			return
		}
		p.emit(t, b)
	}
}

// farewell gives a name that is gone the assignment that says so, if this client
// needs one: gRPC when it holds the name, everybody who comes back with it. It
// reports whether there is one.
func (p *pass) farewell(t typ, r *record, f *found) bool {
	st := p.st
	if t != eds || !(r.any(eds, held) && !st.kind.envoy || r.any(eds, resume)) {
		return false
	}
	last, at := p.buried(f)
	if last != nil && !st.scope(last) { // to this client it is as if it had never been
		last, at = nil, p.snap.Version()
	}
	f.enc = st.srv.render.withdrawn(last, at, f.name.resourceName, st.shape)
	f.gone = f.enc != nil
	return f.gone
}

// buried returns the last view of a name's service that the client may have
// seen, and since when it is gone.
func (p *pass) buried(f *found) (*views.View, views.Version) {
	if grave := p.st.srv.feed.tombs.of(f.name.service); !grave.at.IsZero() {
		return grave.last, grave.at
	}
	return nil, p.snap.Version()
}

// sotwWhole sends all of a type of which a response holds everything: Listeners
// and Clusters, where what is missing is deleted.
func (p *pass) sotwWhole(t typ) {
	st := p.st
	ts := &st.typ[t]
	if !st.room(t, 1) || len(ts.dirty) == 0 && !ts.due {
		return
	}
	now, later := p.work(t, dirty)
	ts.dirty = append(now, later...)
	if len(now) == 0 && !ts.due {
		return
	}
	set, gone, news := p.wholeSet(t)
	if !news && !ts.due {
		for _, id := range now {
			st.records.find(id).clear(t, dirty)
		}
		ts.dirty = later
		return
	}
	b, ok := p.wholeBatch(t, set)
	if !ok {
		p.tooLarge(t, len(set))
		return
	}
	for i := range gone {
		if _, at := p.buried(&gone[i]); b.newest.Less(at) {
			b.newest = at
		}
		p.removedFrom(t, gone[i].id)
	}
	ts.dirty = nil
	for i := range st.records {
		st.records[i].clear(t, dirty) // names that do not exist are left out
	}
	if len(b.res) > 0 || len(gone) > 0 || ts.wildcard {
		p.emit(t, b)
	}
}

// wholeBatch puts a whole set into one response; ok is false if it does not fit.
func (p *pass) wholeBatch(t typ, set []found) (b *batch, ok bool) {
	st := p.st
	b = p.batch()
	if st.typ[t].wildcard {
		b.newest = st.srv.feed.setVersion()
	}
	for i := range set {
		if !b.fits(len(set[i].enc.any)) {
			return nil, false
		}
		r := st.records.find(set[i].id)
		if set[i].gone {
			b.add(t, &set[i], r)
			r.clear(t, dirty)
			continue
		}
		delete(st.ghosts, set[i].id)
		p.put(t, b, r, &set[i])
	}
	return b, true
}

// wholeSet lists what a whole response holds, and what leaves it. news reports
// whether it differs from what the client was sent.
func (p *pass) wholeSet(t typ) (set, gone []found, news bool) {
	st := p.st
	for i := range st.records {
		r := &st.records[i]
		if !r.any(t, subscribed|held|dirty) {
			continue
		}
		k := p.resolve(t, r.id)
		switch {
		case k.enc == nil && k.skip:
		case k.enc != nil:
			news = news || r.any(t, dirty) && !k.skip
			set = append(set, k)
		case !r.any(t, held):
		case p.stays(t, r, &k):
			set = append(set, k)
		default:
			news = true
			gone = append(gone, k)
		}
	}
	return set, gone, news
}

// stays reports whether a resource that is gone is shown as it last was: to gRPC
// always, since it would fail its calls; to Envoy while the removal is held.
func (p *pass) stays(t typ, r *record, k *found) bool {
	st := p.st
	if st.kind.envoy && !(t == cds && p.holdRemoval(t, r, k)) {
		return false
	}
	last, _ := p.buried(k)
	if last == nil {
		last = p.snap.Get(k.name.service) // out of scope
	}
	if last == nil {
		last = st.srv.render.newest(k.name.service) // deleted a moment ago: its publication is on its way
	}
	if last == nil {
		return false
	}
	k.enc = st.srv.render.resource(t, last, k.name.resourceName, st.shape)
	if k.gone = k.enc != nil; !k.gone {
		return false
	}
	if st.ghosts == nil {
		st.ghosts = make(map[nameID]struct{})
	}
	st.ghosts[k.id] = struct{}{}
	return true
}

// tooLarge ends a stream whose whole set no response can hold.
func (p *pass) tooLarge(t typ, members int) {
	p.st.expel(status.New(status.LimitExceeded, "the %d resources of type %s do not fit one response of %d bytes, which state of the world needs",
		members, t, p.st.srv.responseLimit()).With("limit", "XDS.ResponseBytes").Err())
	p.st.shut()
}

// newest returns the newest view that resources were made of, until the service
// is forgotten.
func (r *renderer) newest(n views.Name) *views.View {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if b := r.services[n]; b != nil {
		return b.view
	}
	return nil
}
