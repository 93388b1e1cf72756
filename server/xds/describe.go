package xds

import (
	"cmp"
	"slices"

	"github.com/sightlinedev/sightline/views"
)

// ResourceState is one name that a stream knows, for one type.
type ResourceState struct {
	Type       string
	Name       string
	Service    views.Name // that it stands for; zero: none
	Subscribed bool       // by name; not through a wildcard alone
	Held       bool       // the client was sent it, and was not told its removal
	Waiting    bool       // a change of it is to be sent
	Rejected   bool       // the client refused it; it travels alone
}

// Resources lists what an open stream knows, by type and name. It is not ok
// for a stream that is not open.
func (s *Server) Resources(id uint32) (list []ResourceState, ok bool) {
	for _, st := range s.feed.open() {
		if st.id == id {
			list, ok = st.resources()
		}
	}
	slices.SortFunc(list, func(a, b ResourceState) int { return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name)) })
	return list, ok
}

func (st *stream) resources() (list []ResourceState, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return nil, false
	}
	for i := range st.records {
		r := &st.records[i]
		var n name
		for t := range types {
			if !r.any(t, allFlags) {
				continue
			}
			if n.text == "" {
				n = st.srv.feed.index.lookup(r.id)
			}
			state := ResourceState{
				Type: t.String(), Name: n.text, Subscribed: r.any(t, subscribed), Held: r.any(t, held), Waiting: r.any(t, dirty),
			}
			if n.valid {
				state.Service = n.service
			}
			if iso := st.typ[t].isolation; iso != nil {
				_, state.Rejected = iso.alone[r.id]
			}
			list = append(list, state)
		}
	}
	return list, true
}
