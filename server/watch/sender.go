package watch

import (
	"maps"
	"slices"

	"github.com/sightlinedev/sightline/identity/authz"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/views"
	"github.com/sightlinedev/sightline/views/wire"
)

// sender is what a stream remembers of what it sent. Its goroutine is the only
// one that touches it.
type sender struct {
	w      *watcher
	filter *filter // in force; nil before the first
	policy *authz.Policy
	held   map[views.Name]holding // what the client holds
	lanes  [views.Additions + 1]lane
	// through: every change at or below it is in dirty, or was sent.
	through views.Version
	marked  views.Version // of the last bookmark
	answer  bool          // the filter in force has not been answered yet
	told    bool          // something was sent since the last bookmark
	ahead   views.Version // newest version that was sent, perhaps above through
	resync  *viewv1.Resync
}

// lane is the set of names of one lane that are to be looked at. A name may be
// in both: who is brought to the newest state by one finds nothing to do in the
// other.
type lane struct {
	deleted map[views.Name]views.Version // the version of a deletion, or zero
	queue   []views.Name                 // the same names, in the order in which they came
}

func (l *lane) add(n views.Name, deleted views.Version) {
	if _, there := l.deleted[n]; !there {
		l.queue = append(l.queue, n)
	}
	l.deleted[n] = deleted
}

func (l *lane) pop() (n views.Name, deleted views.Version, ok bool) {
	if len(l.queue) == 0 {
		return n, deleted, false
	}
	n = l.queue[0]
	l.queue = l.queue[1:]
	deleted = l.deleted[n]
	delete(l.deleted, n)
	return n, deleted, true
}

func newSender(w *watcher) sender {
	s := sender{w: w, held: map[views.Name]holding{}}
	for i := range s.lanes {
		s.lanes[i].deleted = map[views.Name]views.Version{}
	}
	return s
}

// round gathers what changed and sends it, withdrawals first, then a bookmark.
// What was nothing to this client moves its bookmark only when the stream idles.
func (s *sender) round(idle bool) error {
	if s.filter == nil {
		return nil
	}
	if s.resync != nil {
		m := &viewv1.WatchResponse{Event: &viewv1.WatchResponse_Resync{Resync: s.resync}}
		s.resync = nil
		if err := s.w.push("resync", m); err != nil {
			return err
		}
	}
	s.w.takeUrgent()
	s.collect()
	if err := s.drain(); err != nil {
		return err
	}
	if s.answer || s.told || s.marked.Less(s.ahead) || idle && s.marked != s.through {
		return s.bookmark()
	}
	return nil
}

// adopt puts a filter into force. The stream is subscribed before anything is
// read, so that no change falls between the two.
func (s *sender) adopt(f *filter) {
	before := s.filter
	s.filter, s.answer = f, true
	s.w.feed.subscribe(s.w, f.names)
	for n, h := range f.held {
		if _, sent := s.held[n]; !sent {
			s.held[n] = h
		}
	}
	if before == nil {
		s.policy = s.w.feed.c.Policy()
		if s.resume() {
			return
		}
		_, s.through, _ = s.w.feed.c.Since(views.Version{})
	}
	s.lookAtAll()
}

// resume takes over from the token of an earlier stream: what changed since is
// dirty, everything else is held. It reports whether that was possible.
func (s *sender) resume() bool {
	token := s.filter.resume
	if token.IsZero() || len(s.filter.held) > 0 {
		return false
	}
	changes, through, ok := s.w.feed.c.Since(token)
	reason := s.w.feed.resumable(token)
	if !ok {
		reason = "the version is unknown here, or older than the changes that are remembered"
	}
	if reason != "" {
		s.resync = &viewv1.Resync{Requested: token.String(), Reason: reason}
		return false
	}
	s.through = through
	for v := range s.w.feed.c.Snapshot().All() {
		switch {
		case !s.filter.covers(v.Name) || !s.allowed(v.Name, v):
		case through.Less(v.Version()):
			s.held[v.Name] = holding{} // published since the reading, and found by the next one
		default:
			s.held[v.Name] = holding{endpoint: v.Endpoint, config: v.Config}
		}
	}
	for _, c := range changes {
		if s.filter.covers(c.Name) && s.allowed(c.Name, nil) {
			s.held[c.Name] = holding{} // some older version
			s.mark(c)
		}
	}
	return true
}

// lookAtAll makes dirty whatever the client holds or might be given.
func (s *sender) lookAtAll() {
	for _, n := range slices.SortedFunc(maps.Keys(s.held), views.Name.Compare) {
		s.lanes[views.Withdrawals].add(n, views.Version{})
	}
	snap := s.w.feed.c.Snapshot()
	var fresh []views.Name
	if s.filter.names == nil {
		for v := range snap.All() {
			fresh = append(fresh, v.Name)
		}
	} else {
		fresh = slices.Collect(maps.Keys(s.filter.names))
	}
	slices.SortFunc(fresh, views.Name.Compare)
	for _, n := range fresh {
		if _, held := s.held[n]; !held {
			s.lanes[views.Additions].add(n, views.Version{})
		}
	}
}

// rescope looks at everything again when the policy was replaced.
func (s *sender) rescope() {
	if p := s.w.feed.c.Policy(); p != s.policy {
		s.policy = p
		s.lookAtAll()
	}
}

// collect reads the ring from where the stream stands.
func (s *sender) collect() {
	changes, through, ok := s.w.feed.c.Since(s.through)
	if !ok {
		s.lookAtAll() // the ring left the stream behind
	}
	s.through = through
	for _, c := range changes {
		s.mark(c)
	}
}

// interrupt takes in the withdrawals that came while a round is being sent.
// What it finds above through is found again by the next round, and skipped.
func (s *sender) interrupt() {
	if !s.w.takeUrgent() {
		return
	}
	s.w.nudge() // what is not urgent belongs to the next round
	changes, _, ok := s.w.feed.c.Since(s.through)
	if !ok {
		return
	}
	for _, c := range changes {
		if c.Lane == views.Withdrawals {
			s.mark(c)
		}
	}
}

// mark makes a change's service dirty.
func (s *sender) mark(c views.Change) {
	if _, held := s.held[c.Name]; !held && !s.filter.covers(c.Name) {
		return
	}
	var deleted views.Version
	if c.Deleted {
		deleted = c.Version
	}
	s.lanes[c.Lane].add(c.Name, deleted)
}

// drain sends the newest state of every dirty name, until none is left: the
// withdrawals, also those that come meanwhile, ahead of everything else.
func (s *sender) drain() error {
	for {
		s.rescope()
		n, deleted, ok := s.lanes[views.Withdrawals].pop()
		if !ok {
			n, deleted, ok = s.lanes[views.Additions].pop()
		}
		if !ok {
			return nil
		}
		if err := s.tell(n, deleted); err != nil {
			return err
		}
		s.interrupt()
	}
}

// tell brings the client to the newest state of one service; deleted is the
// version of its deletion, if that is what made it dirty.
func (s *sender) tell(n views.Name, deleted views.Version) error {
	snap := s.w.feed.c.Snapshot()
	v := snap.Get(n)
	if v != nil && !(s.filter.covers(n) && s.allowed(n, v)) {
		v = nil
	}
	h, held := s.held[n]
	if v == nil && !held || v != nil && held && h.is(v) {
		return nil
	}
	s.told = true
	if v == nil {
		delete(s.held, n)
		if deleted.IsZero() {
			deleted = snap.Version()
		}
		s.sent(deleted)
		return s.w.push("removed", &viewv1.WatchResponse{Event: &viewv1.WatchResponse_Removed{Removed: wire.Removed(n, deleted)}})
	}
	s.sent(v.Version())
	s.held[n] = holding{v.Endpoint, v.Config, v}
	if held && h.view != nil && s.filter.deltas {
		if d := views.MakeDelta(h.view, v); len(d.Changed)+len(d.Removed) < len(v.Members) {
			return s.w.push("delta", &viewv1.WatchResponse{Event: &viewv1.WatchResponse_Delta{Delta: wire.Delta(d)}})
		}
	}
	return s.w.push("view", &viewv1.WatchResponse{Event: &viewv1.WatchResponse_View{View: wire.View(v)}})
}

// sent remembers the newest version that the client was brought to: a bookmark
// that covers it is still owed.
func (s *sender) sent(v views.Version) {
	if s.ahead.Less(v) {
		s.ahead = v
	}
}

// allowed asks the policy in force about a service; v is nil when it is gone.
func (s *sender) allowed(n views.Name, v *views.View) bool {
	asked := authz.Service{Namespace: n.Namespace, Name: n.Service, DNSAnonymous: v != nil && v.DNSAnonymous}
	d := s.policy.CanResolve(s.w.who, asked)
	if !d.Allowed && v != nil && s.filter.names != nil && s.w.feed.c.Events.Refused != nil {
		s.w.feed.c.Events.Refused(s.w.who, n, d.Rule)
	}
	return d.Allowed
}

// bookmark says how far the client has come.
func (s *sender) bookmark() error {
	b := &viewv1.Bookmark{
		Version: s.through.String(), SnapshotComplete: s.answer, FilterId: s.filter.id,
		Generations: wire.Generations(s.w.feed.c.Snapshot().Generations()), Region: s.w.feed.c.Region,
	}
	s.marked, s.answer, s.told = s.through, false, false
	s.w.mu.Lock()
	s.w.shown.Sent = s.through
	s.w.mu.Unlock()
	return s.w.push("bookmark", &viewv1.WatchResponse{Event: &viewv1.WatchResponse_Bookmark{Bookmark: b}})
}
