package xds

import (
	"time"

	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// What clients that come back need beside their resume lane.

// stampingWait is how long clients that know a service at a higher version wait
// for its new one before they are answered under ours.
const stampingWait = 10 * time.Second

// stamping is a service whose new version is on its way.
type stamping struct {
	above views.Version // the new one is higher than this
	until time.Time
}

// stampAnew asks for a new version of a service that a client knows at a higher
// one than we do, which is at. It reports whether one is on its way: the
// publication brings the answer then. It is asked for once, and waited for by
// everybody who asks before it is there.
func (s *Server) stampAnew(n views.Name, at views.Version, now time.Time) bool {
	if s.cfg.Restamp == nil {
		return false
	}
	s.mu.Lock() // also while it is asked for, so that nobody passes in between
	defer s.mu.Unlock()
	if w, ok := s.stamping[n]; ok {
		if !w.above.Less(at) && now.Before(w.until) {
			return true
		}
		delete(s.stamping, n)
	}
	above := at
	if v := s.cfg.Snapshot().Get(n); v != nil {
		above = maxVersion(at, v.Version())
	}
	if !s.cfg.Restamp(n) {
		return false
	}
	s.stamping[n] = stamping{above: above, until: now.Add(stampingWait)}
	return true
}

const (
	// clustersWait is how long an Envoy that came back, and asked for listeners and
	// assignments, may take to ask for Clusters.
	clustersWait = 15 * time.Second
	// keptReminded bounds the clients that are remembered; beyond it one may be
	// ended a second time.
	keptReminded = 10000
)

// forgetful returns why the stream is to be ended of an Envoy that came back
// without asking for Clusters, or nil. Some do so after a rejected Cluster
// (envoy#34334), serve what they have for ever, and ask again on their next
// stream. A client that is ended for it and does it again has none to ask for.
func (st *stream) forgetful(now time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.kind.envoy || !st.resumed || st.typ[cds].seen || !st.typ[eds].seen || !st.typ[lds].seen || now.Sub(st.opened) < clustersWait {
		return nil
	}
	if !st.srv.remind(st.who.ID.String() + " " + st.node.id) {
		return nil
	}
	return status.Errorf(status.StreamStalled, "no request for Clusters within %s, although assignments and listeners were asked for", clustersWait)
}

// remind reports whether the client was not reminded before.
func (s *Server) remind(client string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.reminded[client]; again {
		return false
	}
	if len(s.reminded) >= keptReminded {
		clear(s.reminded)
	}
	s.reminded[client] = struct{}{}
	return true
}
