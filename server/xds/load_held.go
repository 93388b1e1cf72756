package xds

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/sightlinedev/sightline/views"
)

// connections knows the state-of-the-world stream of each connection. A client
// reports load on the connection that it takes its assignments from, so that
// what it says can be read by what it held.
type connections struct {
	mu    sync.Mutex
	byKey map[string]*stream
}

func newConnections() *connections { return &connections{byKey: make(map[string]*stream)} }

// join names the ADS stream of a connection; of two the newer counts.
func (x *connections) join(key string, st *stream) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byKey[key] = st
}

func (x *connections) leave(key string, st *stream) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byKey[key] == st {
		delete(x.byKey, key)
	}
}

func (x *connections) of(key string) *stream {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byKey[key]
}

// connection names the connection of a stream.
func (s *Server) connection(ctx context.Context) string {
	if s.cfg.Connection != nil {
		return s.cfg.Connection(ctx)
	}
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}
	key := p.Addr.String()
	if p.LocalAddr != nil {
		key += " " + p.LocalAddr.String()
	}
	return key
}

// sentView is a view whose assignment was sent to a client.
type sentView struct {
	view   *views.View // nil: something else than a view's assignment
	serial uint32      // of the response
	acked  time.Time   // zero: not yet
}

// holding is what a client was sent of one assignment lately, oldest first.
type holding []sentView

// keptHolding bounds a holding: more pushes than that within an interval make
// nobody known to have been held for all of it.
const keptHolding = 16

// sent notes that the assignment of a view is about to leave.
func (h holding) sent(v *views.View, serial uint32, now time.Time) holding {
	for len(h) > 1 && (len(h) >= keptHolding || !h[1].acked.IsZero() && now.Sub(h[1].acked) > maxLoadInterval) {
		h = append(h[:0], h[1:]...)
	}
	return append(h, sentView{view: v, serial: serial})
}

// ack notes that the client took a response.
func (h holding) ack(serial uint32, now time.Time) {
	for i := range h {
		if h[i].serial <= serial && h[i].acked.IsZero() {
			h[i].acked = now
		}
	}
}

// refuse notes that the client refused a response: some of it may be in force.
func (h holding) refuse(serial uint32, now time.Time) {
	for i := range h {
		if h[i].serial == serial {
			h[i].view, h[i].acked = nil, now
		}
	}
}

// since lists the views whose assignments the client may have held at some
// moment since then, oldest first; nil when that is not known.
func (h holding) since(from time.Time) []*views.View {
	first := -1
	for i := range h {
		if !h[i].acked.IsZero() && !h[i].acked.After(from) {
			first = i
		}
	}
	if first < 0 {
		return nil
	}
	list := make([]*views.View, 0, len(h)-first)
	for _, s := range h[first:] {
		if s.view == nil {
			return nil
		}
		list = append(list, s.view)
	}
	return list
}

// heldSince lists the views whose assignment under that name the client may have
// held at some moment since then; nil when that is not known. The first question
// about a name begins its record, so that streams whose clients report nothing
// keep none.
func (st *stream) heldSince(text string, from, now time.Time) []*views.View {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed || !st.met || st.kind.envoy {
		return nil
	}
	st.drain()
	id, ok := st.srv.feed.index.find(text)
	if !ok {
		return nil
	}
	r := st.records.find(id)
	if r == nil || !r.any(eds, subscribed) || !r.any(eds, held) {
		return nil
	}
	if h, watched := st.watched[id]; watched {
		return h.since(from)
	}
	if st.watched == nil {
		st.watched = make(map[nameID]holding)
	}
	st.watched[id] = st.holdsNow(id, r, now)
	return nil
}

// holdsNow is what a client holds of an assignment that nothing is due of; nil
// when that is not known.
func (st *stream) holdsNow(id nameID, r *record, now time.Time) holding {
	if r.any(eds, dirty) || st.typ[eds].nacks > 0 {
		return nil
	}
	for _, f := range st.typ[eds].inflight {
		for _, it := range f.items {
			if it.id == id {
				return nil
			}
		}
	}
	n := st.srv.feed.index.lookup(id)
	v := st.visible(st.srv.cfg.Snapshot(), &n)
	if v == nil {
		return nil
	}
	return holding{{view: v, acked: now}}
}

// notePut notes what a response that is being built will bring of an assignment.
func (st *stream) notePut(f *found, now time.Time) {
	h, watched := st.watched[f.id]
	if !watched {
		return
	}
	v := f.view
	if f.gone || v != nil && f.enc.at != v.Endpoint { // last good bytes, of another view
		v = nil
	}
	st.watched[f.id] = h.sent(v, st.typ[eds].serial+1, now)
}

// noteSettled notes that the client took a response, or refused it.
func (st *stream) noteSettled(f *inflight, taken bool, now time.Time) {
	if st.watched == nil {
		return
	}
	for _, it := range f.items {
		if h := st.watched[it.id]; taken {
			h.ack(f.serial, now)
		} else {
			h.refuse(f.serial, now)
		}
	}
}
