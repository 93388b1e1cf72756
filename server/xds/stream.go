package xds

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/views"
)

// scope says whether a stream may see a service: the seat of policy, and later
// of demand.
type scope func(*views.View) bool

// stream is one ADS stream, of either protocol.
type stream struct {
	// Fixed when the stream opens.
	srv    *Server
	conn   grpc.ServerStream
	end    func(error) // ends the stream from anywhere, with a status
	delta  bool
	who    identity.Principal
	scope  scope
	names  int // limit of subscribed names of a type
	opened time.Time
	id     uint32 // given by the Feed

	// Fixed by the first request, under mu.
	met   bool
	node  clientNode
	kind  kind
	shape rendering

	bell    doorbell
	sending atomic.Int64 // when the send in progress began, Unix nanoseconds; 0: none

	mu         sync.Mutex
	records    records
	typ        [types]typeState
	composites [types]composite
	unacked    int // bytes of responses that were not settled
	outbound   nameID
	watchesAll bool // in the Feed's wild set
	resumed    bool // some type's first request offered versions
	answered   bool
	entered    bool // the Feed knows it
	closed     bool
	strays     []any // answers about types that are not served
	holds      map[nameID]*hold
	ghosts     map[nameID]struct{} // state of the world: gone, and still shown as they last were
	watched    map[nameID]holding  // of assignments that load reports speak of: what was sent lately
	untidy     bool                // some record may say nothing any more
	timer      *time.Timer
	timerAt    time.Time
}

// typeState is what a stream remembers of one type.
type typeState struct {
	seen       bool // it was asked for
	wildcard   bool
	due        bool // an answer is owed even if it is empty
	subscribed int  // names
	dirty      []nameID
	inflight   []*inflight // responses that are not settled, oldest first
	serial     uint32      // of the newest response
	lastPaced  time.Time   // when additions last went
	lastUrgent time.Time   // when withdrawals last went
	lastLarge  time.Time   // when additions to a large service last went, where they are spaced
	floor      views.Version
	acked      views.Version
	nacks      int
	lastNack   string
	isolation  *isolation
}

// composite is what a client was last sent of a resource that belongs to no
// single service, or offered of it.
type composite struct {
	at     views.Version
	render string
}

// inflight is a response that its client has not settled.
type inflight struct {
	serial, salt uint32
	items        []item
	bytes        int
	holds        bool // it holds additions, or is the first of its type: additions wait for it
	settled      bool // it was settled ahead of an older one
	sent         time.Time
	published    time.Time // of the oldest news in it; zero: none
	newest       views.Version
}

// item is a resource in a response.
type item struct {
	id   nameID
	news bool // the client did not hold it before
}

// mark says that a name is dirty.
func (st *stream) mark(m mark, p priority) {
	st.bell.mu.Lock()
	st.bell.add(m)
	push := st.bell.ring(p)
	st.bell.mu.Unlock()
	if push {
		st.srv.pool.push(st, p)
	}
}

// markService says that a service came, went or was configured anew.
func (st *stream) markService(m serviceMark, p priority) {
	st.bell.mu.Lock()
	st.bell.addService(m)
	push := st.bell.ring(p)
	st.bell.mu.Unlock()
	if push {
		st.srv.pool.push(st, p)
	}
}

// markEverything makes the stream look at all that it knows and may see.
func (st *stream) markEverything() {
	st.bell.mu.Lock()
	st.bell.rescope = true
	push := st.bell.ring(urgently)
	st.bell.mu.Unlock()
	if push {
		st.srv.pool.push(st, urgently)
	}
}

// wake has the stream served for what is pending already.
func (st *stream) wake(p priority) {
	st.bell.mu.Lock()
	push := st.bell.ring(p)
	st.bell.mu.Unlock()
	if push {
		st.srv.pool.push(st, p)
	}
}

// pending reports whether a pass may find something to send, and how urgently.
// Most acknowledgements leave nothing, and cost no pass.
func (st *stream) pending() (priority, bool) {
	some := len(st.strays) > 0 || len(st.holds) > 0
	for t := range types {
		ts := &st.typ[t]
		some = some || ts.due || ts.isolation != nil || len(ts.dirty) > 0
		for _, id := range ts.dirty {
			if r := st.records.find(id); r != nil && r.any(t, urgent) {
				return urgently, true
			}
		}
	}
	return patiently, some
}

// wakeAt has the stream served at that time, or before it.
func (st *stream) wakeAt(now, at time.Time) {
	if st.timer != nil && st.timerAt.After(now) && !st.timerAt.After(at) {
		return
	}
	if st.timer != nil {
		st.timer.Stop()
	}
	st.timerAt = at
	st.timer = time.AfterFunc(at.Sub(now), func() { st.wake(urgently) })
}

// close makes the stream send nothing any more. It does not wait for a send in
// progress, and may be called twice.
func (st *stream) close() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.shut()
}

// shut is close for holders of mu.
func (st *stream) shut() {
	if st.closed {
		return
	}
	st.closed = true
	if st.timer != nil {
		st.timer.Stop()
	}
	for _, r := range st.records {
		st.srv.feed.index.leave(r.id, st.id)
	}
	st.records, st.holds, st.strays, st.watched = nil, nil, nil, nil
	for t := range st.typ {
		st.typ[t] = typeState{}
	}
	if st.entered {
		st.srv.feed.exit(st)
	}
}

// expel ends the stream from our side, with a status that says why. The caller
// holds mu.
func (st *stream) expel(reason error) {
	if on := st.srv.cfg.Events.Ended; on != nil {
		on(st.who, st.node.id, st.kind.name, reason)
	}
	st.end(reason)
}

// dirtied sets dirty flags of a name.
func (st *stream) dirtied(t typ, r *record, f flag) {
	if !r.any(t, dirty) {
		list := append(st.typ[t].dirty, r.id)
		if len(list) > 2*len(st.records)+64 { // names that were taken off and on again
			slices.Sort(list)
			list = slices.Compact(list)
		}
		st.typ[t].dirty = list
	}
	r.set(t, f)
}

// know returns the name's record, which it makes if there is none.
func (st *stream) know(text string) *record {
	id := st.srv.feed.index.join(text, st.id)
	if r := st.records.find(id); r != nil {
		return r
	}
	st.records.add([]nameID{id})
	return st.records.find(id)
}

// knowAll makes records for names, all at once, and returns their ids in order.
func (st *stream) knowAll(texts []string) []nameID {
	ids := make([]nameID, len(texts))
	for i, text := range texts {
		ids[i] = st.srv.feed.index.join(text, st.id)
	}
	st.records.add(slices.Clone(ids))
	return ids
}

// tidy drops the records that say nothing any more.
func (st *stream) tidy() {
	if !st.untidy {
		return
	}
	st.untidy = false
	st.records.drop(func(id nameID) {
		for t := range st.typ {
			if iso := st.typ[t].isolation; iso != nil {
				delete(iso.alone, id)
			}
		}
		delete(st.holds, id)
		delete(st.ghosts, id)
		delete(st.watched, id)
		st.srv.feed.index.leave(id, st.id)
	})
}

// isOutbound reports whether the name, asked for under that type, is Envoy's one
// Listener or RouteConfiguration.
func (st *stream) isOutbound(t typ, n *name) bool {
	return st.kind.envoy && (t == lds || t == rds) && n.text == outboundName
}

// watchesRoutes reports whether the client follows the routes of an Envoy.
func (st *stream) watchesRoutes() bool {
	return st.kind.envoy && (st.typ[rds].subscribed > 0 || st.typ[rds].wildcard)
}

// needAll keeps the stream's place in the set that every new service concerns.
func (st *stream) needAll() {
	all := st.watchesRoutes()
	for t := range st.typ {
		all = all || st.typ[t].wildcard
	}
	if all != st.watchesAll {
		st.watchesAll = all
		st.srv.feed.watchAll(st, all)
	}
}

// drain turns marks into flags.
func (st *stream) drain() {
	marks, services, rescope := st.bell.take()
	for _, m := range marks {
		st.drainMark(m)
	}
	if rescope {
		st.rescope()
		return
	}
	for _, m := range services {
		st.drainService(m)
	}
}

func (st *stream) drainMark(m mark) {
	r := st.records.find(m.id)
	if r == nil {
		return
	}
	for t := range types {
		f := m.flags.at(t)
		member := st.typ[t].wildcard && t <= eds
		if f != 0 && (member || r.any(t, subscribed|held)) {
			st.dirtied(t, r, f)
		}
	}
	if f := m.flags.at(rds); f != 0 {
		st.routesDirty(f)
	}
}

// drainService brings a service's names into the wildcards that hold them.
func (st *stream) drainService(m serviceMark) {
	st.routesDirty(m.lane)
	v := st.srv.cfg.Snapshot().Get(m.name)
	if v == nil || !st.typ[cds].wildcard && !st.typ[eds].wildcard || !st.scope(v) {
		return
	}
	for _, text := range st.srv.render.clusterNames(v) {
		r := st.know(text)
		for _, t := range [...]typ{cds, eds} {
			if st.typ[t].wildcard && !r.any(t, held|dirty) {
				st.dirtied(t, r, m.lane)
			}
		}
	}
}

// routesDirty has an Envoy's routes looked at.
func (st *stream) routesDirty(lane flag) {
	if !st.watchesRoutes() {
		return
	}
	if r := st.records.find(st.outbound); r != nil && r.any(rds, subscribed|held) {
		st.dirtied(rds, r, lane)
	}
}

// rescope looks at everything: what left the scope is withdrawn, what entered
// it is an addition.
func (st *stream) rescope() {
	snap := st.srv.cfg.Snapshot()
	for i := range st.records {
		r := &st.records[i]
		n := st.srv.feed.index.lookup(r.id)
		v := st.visible(snap, &n)
		for t := range types {
			switch {
			case st.isOutbound(t, &n) || !r.any(t, subscribed|held):
			case v == nil && r.any(t, held):
				st.dirtied(t, r, withdrawal)
			case v != nil && (!r.any(t, held) || st.passing(r.id)):
				st.dirtied(t, r, addition)
			}
		}
	}
	for v := range snap.All() {
		if st.scope(v) {
			st.drainService(serviceMark{v.Name, addition})
		}
	}
	st.routesDirty(addition)
}

// passing reports whether the client holds a name that it is about to lose, or
// would have lost.
func (st *stream) passing(id nameID) bool {
	_, ghost := st.ghosts[id]
	return ghost || st.holds[id] != nil
}

// visible returns the view of the name's service if there is one in scope.
func (st *stream) visible(snap *views.Snapshot, n *name) *views.View {
	if !n.valid {
		return nil
	}
	v := snap.Get(n.service)
	if v == nil || !st.scope(v) {
		return nil
	}
	return v
}
