package xds

import (
	"slices"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/views"
)

// ClientState is what an operator may know of one stream. What the node says of
// itself is the client's own word; Principal is verified.
type ClientState struct {
	ID          uint32 // of the stream, while it lives
	Principal   identity.Principal
	Node        string
	Cluster     string
	Region      string
	Zone        string
	UserAgent   string
	Kind        string // how it is served
	Protocol    string // delta or sotw
	Since       time.Time
	Resumed     bool // it came back with versions
	UnackedSize int  // bytes of responses that were not settled
	HeldBack    int  // Clusters that are gone and wait for the routes to leave them
	Types       []ClientType
}

// ClientType is the part of a ClientState about one resource type.
type ClientType struct {
	Type      string
	Wildcard  bool
	Names     int // subscribed by name
	Held      int // that the client was sent and not told the removal of
	Unacked   int // responses
	Urgent    int // names that wait in the urgent lane
	Waiting   int // names that wait in the lane of additions
	Acked     views.Version
	Rejected  []string // names that the client refused, and that travel alone
	Nacks     int
	LastError string // of the newest refusal, in the client's words
}

// Clients lists the open streams, in order of node and id. It takes each
// stream's lock in turn, so that the parts of one ClientState belong together.
func (s *Server) Clients() []ClientState {
	var list []ClientState
	for _, st := range s.feed.open() {
		if c, ok := st.state(); ok {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b ClientState) int {
		if c := strings.Compare(a.Node, b.Node); c != 0 {
			return c
		}
		return int(a.ID) - int(b.ID)
	})
	return list
}

func (st *stream) state() (ClientState, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed || !st.met {
		return ClientState{}, false
	}
	c := ClientState{
		ID: st.id, Principal: st.who, Node: st.node.id, Cluster: st.node.cluster, Region: st.node.region,
		Zone: st.node.zone, UserAgent: st.node.userAgent, Kind: st.kind.name, Protocol: st.protocol(),
		Since: st.opened, Resumed: st.resumed, UnackedSize: st.unacked, HeldBack: len(st.holds),
	}
	for t := range types {
		if st.typ[t].seen {
			c.Types = append(c.Types, st.typeState(t))
		}
	}
	return c, true
}

func (st *stream) typeState(t typ) ClientType {
	ts := &st.typ[t]
	c := ClientType{
		Type: t.String(), Wildcard: ts.wildcard, Names: ts.subscribed, Unacked: len(ts.inflight),
		Acked: ts.acked, Nacks: ts.nacks, LastError: ts.lastNack,
	}
	for i := range st.records {
		r := &st.records[i]
		if r.any(t, held) {
			c.Held++
		}
		switch {
		case r.any(t, urgent):
			c.Urgent++
		case r.any(t, patient):
			c.Waiting++
		}
	}
	if ts.isolation != nil {
		for id := range ts.isolation.alone {
			c.Rejected = append(c.Rejected, st.srv.feed.index.lookup(id).text)
		}
		slices.Sort(c.Rejected)
	}
	return c
}

// Streams is the number of open streams.
func (s *Server) Streams() int { return len(s.feed.open()) }
