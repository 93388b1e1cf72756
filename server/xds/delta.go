package xds

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// star is the name of the wildcard.
const star = "*"

// maxStrays bounds the answers about types that are not served.
const maxStrays = 16

// onDelta takes in a request of the delta protocol, under mu. An error ends the
// stream.
func (st *stream) onDelta(r *request) error {
	if n := max(len(r.subscribe), len(r.unsubscribe)); n > st.names {
		return st.tooManyNames(r.typeName(), n)
	}
	if limit := st.srv.cfg.Limits.AgentNames; len(r.offered) > limit {
		return status.New(status.LimitExceeded, "more than %d versions of type %s offered in one request", limit, r.typeName()).
			With("limit", "XDS.AgentNames").Err()
	}
	if r.typ == types {
		st.stray(r)
		return nil
	}
	ts := &st.typ[r.typ]
	first := !ts.seen
	ts.seen = true
	if first && len(r.offered) > 0 {
		st.resumed = true
	}
	if !first {
		r.offered = nil
	}
	if first && len(r.subscribe) == 0 && (r.typ == cds || r.typ == lds) {
		r.subscribe = []string{star}
	}
	st.unsubscribe(r.typ, r.unsubscribe)
	st.subscribe(r)
	if ts.subscribed > st.names {
		return st.tooManyNames(r.typeName(), ts.subscribed)
	}
	return nil
}

func (st *stream) tooManyNames(typeName string, n int) error {
	return status.New(status.LimitExceeded, "at least %d names of type %s asked for on one stream, the limit is %d",
		n, typeName, st.names).With("limit", "XDS.Names").Err()
}

// stray answers a request for a type that is not served: none of it exists.
func (st *stream) stray(r *request) {
	if r.typeURL == "" {
		return
	}
	var gone []string
	size, limit := 0, st.srv.responseLimit()
	for _, n := range r.subscribe {
		if n == star {
			continue
		}
		if size += len(n) + 4; size > limit {
			st.answerStray(r.typeURL, gone)
			gone, size = nil, len(n)+4
		}
		gone = append(gone, n)
	}
	st.answerStray(r.typeURL, gone)
}

func (st *stream) answerStray(typeURL string, gone []string) {
	if len(gone) == 0 || len(st.strays) >= maxStrays {
		return
	}
	f := inflight{serial: uint32(len(st.strays)), salt: newSalt()}
	st.strays = append(st.strays, &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: typeURL, Nonce: f.nonce(), RemovedResources: gone,
		ControlPlane: &corev3.ControlPlane{Identifier: st.srv.cfg.Identifier},
	})
}

// unsubscribe takes names off. While a wildcard is held, their state as its
// members is told (XDS.md §3.1, rule 6).
func (st *stream) unsubscribe(t typ, names []string) {
	if len(names) == 0 {
		return
	}
	ts := &st.typ[t]
	for _, text := range names {
		if text == star {
			st.dropWildcard(t)
			continue
		}
		r := st.recordOf(text)
		if r == nil || !r.any(t, subscribed) {
			continue
		}
		r.clear(t, subscribed)
		ts.subscribed--
		if ts.wildcard {
			st.dirtied(t, r, asked)
		} else {
			r.clear(t, allFlags)
		}
		st.untidy = true
	}
	st.needAll()
	st.tidy()
}

// recordOf finds a name's record without making one.
func (st *stream) recordOf(text string) *record {
	id, ok := st.srv.feed.index.find(text)
	if !ok {
		return nil
	}
	return st.records.find(id)
}

func (st *stream) dropWildcard(t typ) {
	st.typ[t].wildcard, st.typ[t].due = false, false
	st.untidy = true
	for i := range st.records {
		if r := &st.records[i]; !r.any(t, subscribed) {
			r.clear(t, allFlags)
		}
	}
}

// subscribe takes names on. Each is answered, also when the client has it
// already; only a first request may offer versions that make that needless.
func (st *stream) subscribe(r *request) {
	t := r.typ
	wildcard := false
	texts := r.subscribe[:0:0]
	for _, text := range r.subscribe {
		if text == star {
			wildcard = st.kind.wildcards
			continue
		}
		texts = append(texts, text)
	}
	ids := st.knowAll(texts)
	for i, id := range ids {
		rec := st.records.find(id)
		if !rec.any(t, subscribed) {
			rec.set(t, subscribed)
			st.typ[t].subscribed++
		}
		if texts[i] == outboundName {
			st.outbound = id
		}
		st.refused(texts[i])
	}
	st.needAll()
	snap := st.srv.cfg.Snapshot()
	for i, id := range ids {
		st.answer(snap, t, id, texts[i], r.offered, asked)
	}
	if wildcard {
		st.subscribeAll(r, snap)
	}
	st.tidy()
}

// answer decides what a name that is asked for needs: nothing when the client
// holds it as it is, the resume lane when it holds another version, else an
// answer now.
func (st *stream) answer(snap *views.Snapshot, t typ, id nameID, text string, offered map[string]string, otherwise flag) {
	rec := st.records.find(id)
	version, ok := offered[text]
	if !ok {
		st.dirtied(t, rec, otherwise)
		return
	}
	rec.set(t, held)
	at, render, ours := parseVersion(version)
	p := &pass{st: st, snap: snap}
	n := st.srv.feed.index.lookup(id)
	if st.isOutbound(t, &n) {
		if ours && at.Epoch <= snap.Version().Epoch {
			st.composites[t] = composite{at: at, render: render}
		}
		st.dirtied(t, rec, resume)
		return
	}
	switch f := p.resolve(t, id); {
	case f.enc == nil:
		st.dirtied(t, rec, withdrawal)
	case f.enc.version() == version && !(t == eds && rec.any(cds, fresh)):
	case ours && f.enc.at.Less(at) && at.Epoch <= snap.Version().Epoch && st.srv.stampAnew(f.view.Name, f.enc.at, time.Now()):
	case t == eds && rec.any(cds, fresh):
		st.dirtied(t, rec, asked) // its Cluster went out on this stream, and waits for it
	default:
		st.dirtied(t, rec, resume)
	}
}

// refused reports a name that was asked for and exists, outside the scope.
func (st *stream) refused(text string) {
	on := st.srv.cfg.Events.Refused
	n, ok := resolveName(text)
	if on == nil || !ok {
		return
	}
	if v := st.srv.cfg.Snapshot().Get(n.service); v != nil && !st.scope(v) {
		on(st.who, n.service)
	}
}

// subscribeAll takes a wildcard on, or asks for all of it again.
func (st *stream) subscribeAll(r *request, snap *views.Snapshot) {
	t := r.typ
	st.typ[t].wildcard = true
	st.typ[t].due = len(r.offered) == 0
	st.needAll()
	if t == lds || t == rds {
		if st.kind.envoy {
			rec := st.know(outboundName)
			st.outbound = rec.id
			st.answer(snap, t, rec.id, outboundName, r.offered, asked)
		}
		return
	}
	// The snapshot is read after the stream joined the set that new services are
	// told to, so that none falls between.
	snap = st.srv.cfg.Snapshot()
	var texts []string
	for v := range snap.All() {
		if st.scope(v) {
			texts = append(texts, st.srv.render.clusterNames(v)...)
		}
	}
	lane := asked
	if len(r.offered) > 0 {
		lane = resume
	}
	ids := st.knowAll(texts)
	// Read again, after the stream joined the index: a change or a deletion of one
	// of these before that reached nobody.
	snap = st.srv.cfg.Snapshot()
	for i, id := range ids {
		st.answer(snap, t, id, texts[i], r.offered, lane)
	}
	st.goneMembers(t, r.offered, snap)
}

// goneMembers finds what a resuming wildcard offered and is no member any more.
func (st *stream) goneMembers(t typ, offered map[string]string, snap *views.Snapshot) {
	var gone []string
	for text := range offered {
		if r := st.recordOf(text); r == nil || !r.any(t, allFlags) {
			gone = append(gone, text)
		}
	}
	for i, id := range st.knowAll(gone) {
		st.answer(snap, t, id, gone[i], offered, withdrawal)
	}
}

// delta builds the responses of one pass in the order of ENGINE.md §4.
func (p *pass) delta() {
	p.deltaType(eds, owed)
	p.deltaClusters()
	p.deltaType(eds, dirty)
	if p.mayRoute() {
		p.deltaType(lds, dirty)
		p.deltaType(rds, dirty)
	}
	for t := range types {
		p.isolated(t)
	}
	if p.endHolds() { // what was created as CDS, EDS, RDS goes in the reverse
		p.deltaType(eds, dirty)
		p.deltaClusters()
		p.deltaType(eds, dirty)
	}
	p.st.tidy()
}

// deltaType sends the dirty names of a type while its window has room.
func (p *pass) deltaType(t typ, only flag) {
	ts := &p.st.typ[t]
	for p.st.room(t, 1) && (len(ts.dirty) > 0 || ts.due) {
		b := p.collect(t, only)
		if b.empty() && !(ts.due && only == dirty) {
			return
		}
		p.emit(t, b)
	}
}

// deltaClusters sends Clusters, each response with the assignments that it owes
// right after it; those of the last one go with the rest of their kind, which
// comes next.
func (p *pass) deltaClusters() {
	ts := &p.st.typ[cds]
	for p.st.room(cds, 1) && p.st.room(eds, 1) && (len(ts.dirty) > 0 || ts.due) {
		b := p.collect(cds, dirty)
		if b.empty() && !ts.due {
			return
		}
		p.emit(cds, b)
		if len(ts.dirty) > 0 {
			p.deltaType(eds, owed)
		}
	}
}

// collect takes dirty names of the type into one response.
func (p *pass) collect(t typ, only flag) *batch {
	st, b := p.st, p.batch()
	now, later := p.work(t, only)
	owing := 0
	for i, id := range now {
		r := st.records.find(id)
		f := p.resolve(t, id)
		owing += p.owing(t, r, &f)
		size := len(f.name.text) + 4
		if f.enc != nil {
			size = len(f.enc.delta)
		}
		if !b.fits(size) || !b.empty() && owing > 0 && !st.room(eds, 1+2*owing/b.limit) {
			later = append(later, now[i:]...)
			break
		}
		p.take(t, b, r, &f)
	}
	st.typ[t].dirty = append(st.typ[t].dirty, later...)
	return b
}

// owing is the size of the assignment that would have to follow a Cluster.
func (p *pass) owing(t typ, r *record, f *found) int {
	if t != cds || f.enc == nil || !p.owes(r) {
		return 0
	}
	if a := p.st.srv.render.resource(eds, f.view, f.name.resourceName, p.st.shape); a != nil {
		return len(a.delta)
	}
	return 0
}

// take decides what a resolved name adds to a response.
func (p *pass) take(t typ, b *batch, r *record, f *found) {
	switch {
	case f.skip:
		r.clear(t, dirty)
	case f.enc != nil:
		p.put(t, b, r, f)
	case !r.any(t, held|asked|resume):
		r.clear(t, dirty) // it was gone before the client saw it
		p.st.untidy = true
	case p.holdRemoval(t, r, f):
		r.clear(t, dirty)
	default:
		b.remove(t, f, r)
		p.removedFrom(t, f.id)
	}
}

// put adds a resource to a response.
func (p *pass) put(t typ, b *batch, r *record, f *found) {
	b.add(t, f, r)
	if t == eds && p.st.watched != nil {
		p.st.notePut(f, p.now)
	}
	if p.st.isOutbound(t, &f.name) {
		p.st.composites[t] = composite{at: f.enc.at, render: f.enc.render}
	}
	p.sent(t, f.id)
}
