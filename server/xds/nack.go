package xds

import "slices"

// bisectAbove is the size up to which the members of a rejected response are
// sent again one by one; larger ones are halved (ENGINE.md §7).
const bisectAbove = 16

// isolation finds, for one type of one stream, which member of a rejected
// response the client does not take, and keeps that one apart. It exists only
// while something is apart.
type isolation struct {
	queue [][]item // to be sent again, each as a response of its own
	open  uint32   // serial of the isolated response that is outstanding; 0: none
	alone map[nameID]*lone
}

// lone is a name that was rejected on its own. It is not sent again before it
// changes or is asked for, and then alone, until the client accepts it.
type lone struct{ due bool }

// rejected ends the i-th outstanding response, which the client refused.
func (st *stream) rejected(t typ, i int, detail string) {
	ts := &st.typ[t]
	f := ts.inflight[i]
	f.settled = true
	st.unacked -= f.bytes
	ts.nacks++
	ts.lastNack = detail
	if t == rds {
		st.routeRejected(f.serial)
	}
	if iso := ts.isolation; iso != nil && iso.open == f.serial {
		iso.open = 0
	}
	st.reportNack(t, f, detail)
	// gRPC has applied what was good; LDS and CDS on state of the world are one
	// set, which is not sent again until something in it changes.
	if st.delta || st.kind.envoy && t == eds {
		st.isolate(t, len(f.items), st.suspects(t, f, ts.inflight[i+1:]))
	}
}

// suspects are the members of a rejected response that no later response
// carries, and that would not be sent again anyway.
func (st *stream) suspects(t typ, f *inflight, later []*inflight) []item {
	return slices.DeleteFunc(slices.Clone(f.items), func(it item) bool {
		r := st.records.find(it.id)
		if r == nil || r.any(t, dirty) || !r.any(t, held) {
			return true
		}
		return slices.ContainsFunc(later, func(l *inflight) bool {
			return slices.ContainsFunc(l.items, func(o item) bool { return o.id == it.id })
		})
	})
}

// isolate queues suspects for being sent again in smaller responses, or sets the
// culprit apart. One that is left of more than itself was not rejected alone: its
// companions may have been the culprits, and have left since.
func (st *stream) isolate(t typ, carried int, suspects []item) {
	if len(suspects) == 0 {
		return
	}
	ts := &st.typ[t]
	if ts.isolation == nil {
		ts.isolation = &isolation{alone: make(map[nameID]*lone)}
	}
	iso := ts.isolation
	switch n := len(suspects); {
	case carried == 1:
		st.setApart(t, suspects[0])
	case n > bisectAbove:
		iso.queue = append(iso.queue, suspects[:n/2], suspects[n/2:])
	default:
		for i := range suspects {
			iso.queue = append(iso.queue, suspects[i:i+1])
		}
	}
}

func (st *stream) setApart(t typ, it item) {
	ts := &st.typ[t]
	ts.isolation.alone[it.id] = &lone{}
	r := st.records.find(it.id)
	if !it.news {
		return
	}
	// The client does not hold what it refused when it had nothing before.
	r.clear(t, held|fresh)
	if t == cds {
		st.routesDirty(withdrawal)
	}
}

// accepted ends an isolation, or a step of it.
func (st *stream) accepted(t typ, f *inflight) {
	iso := st.typ[t].isolation
	if iso == nil || iso.open != f.serial {
		return
	}
	iso.open = 0
	for _, it := range f.items {
		if l := iso.alone[it.id]; l != nil && l.due {
			st.typ[t].dirty = append(st.typ[t].dirty, it.id)
		}
		delete(iso.alone, it.id)
	}
}

// alone reports whether a dirty name travels alone, and makes it due.
func (p *pass) alone(t typ, r *record) bool {
	iso := p.st.typ[t].isolation
	if iso == nil || iso.alone[r.id] == nil {
		return false
	}
	iso.alone[r.id].due = true
	return true
}

// isolated sends the next response of an isolation, one at a time.
func (p *pass) isolated(t typ) {
	st := p.st
	ts := &st.typ[t]
	for iso := ts.isolation; iso != nil && iso.open == 0 && st.room(t, 1) && (t != cds || st.room(eds, 1)); iso = ts.isolation {
		group, single := iso.next()
		if group == nil {
			if len(iso.alone) == 0 {
				ts.isolation = nil
			}
			return
		}
		b := p.gather(t, group, single)
		if b.empty() {
			continue
		}
		iso.open = p.emit(t, b).serial
		if t == cds {
			if st.delta {
				p.deltaType(eds, owed)
			} else {
				p.sotwPart(eds, owed)
			}
		}
	}
}

// next takes the next group: suspects first, then names that travel alone.
func (iso *isolation) next() (group []item, single bool) {
	if len(iso.queue) > 0 {
		group = iso.queue[0]
		iso.queue = iso.queue[1:]
		return group, false
	}
	best := nameID(0)
	for id, l := range iso.alone {
		if l.due && (group == nil || id < best) {
			best, group = id, []item{{id: id}}
		}
	}
	if group != nil {
		iso.alone[best].due = false
	}
	return group, true
}

// gather resolves a group. Suspects that became dirty meanwhile go with the
// others of their kind.
func (p *pass) gather(t typ, group []item, single bool) *batch {
	st, b := p.st, p.batch()
	for _, it := range group {
		r := st.records.find(it.id)
		if r == nil || !single && (r.any(t, dirty) || !r.any(t, held)) {
			continue
		}
		f := p.resolve(t, it.id)
		switch {
		case !single && f.enc == nil:
		case !single:
			f.skip = false
			p.put(t, b, r, &f)
			b.items[len(b.items)-1].news = it.news
		case f.enc == nil:
			delete(st.typ[t].isolation.alone, it.id)
			p.takeAny(t, b, r, &f)
		default:
			p.takeAny(t, b, r, &f)
		}
	}
	return b
}

// takeAny is take in the stream's framing.
func (p *pass) takeAny(t typ, b *batch, r *record, f *found) {
	if p.st.delta {
		p.take(t, b, r, f)
		return
	}
	if f.enc == nil && !p.farewell(t, r, f) || f.skip {
		r.clear(t, dirty)
		return
	}
	p.put(t, b, r, f)
}

// reportNack tells the driver of metrics and logs.
func (st *stream) reportNack(t typ, f *inflight, detail string) {
	on := st.srv.cfg.Events.Nack
	if on == nil {
		return
	}
	names := make([]string, 0, min(len(f.items), 8))
	for _, it := range f.items[:min(len(f.items), 8)] {
		if st.records.find(it.id) != nil {
			names = append(names, st.srv.feed.index.lookup(it.id).text)
		}
	}
	on(Rejection{Client: st.who, Node: st.node.id, Kind: st.kind.name, Type: t.String(), Names: names, Resources: len(f.items), Detail: detail})
}
