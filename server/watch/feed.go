package watch

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// Config is what the Feed needs; Snapshot, Since and Policy are required.
type Config struct {
	Snapshot func() *views.Snapshot
	// Since is Publisher.Since: the changes above a version, and through which
	// version the Snapshot holds every change.
	Since  func(views.Version) (changes []views.Change, through views.Version, ok bool)
	Policy func() *authz.Policy
	Region string
	// MaxFilter is how many services a filter may name (limits.API.WatchFilter),
	// StreamsPerSource how many streams one identity at one address may have
	// open (limits.API.WatchesPerSource); zero: no limit.
	MaxFilter, StreamsPerSource int
	// A Send that lasts longer than StallAfter and the message's size over
	// StallRate bytes a second ends the stream (limits.XDS); zero: never.
	StallAfter time.Duration
	StallRate  int
	Events     Events
}

// Events report what happens; each may be nil. They are called from streams'
// goroutines, without a lock.
type Events struct {
	// Opened and Closed bracket a stream; the error is why it ended, nil when
	// the client closed it.
	Opened func(who identity.Principal)
	Closed func(who identity.Principal, err error)
	// Sent counts a message by its kind: view, delta, removed, bookmark, resync.
	Sent func(kind string)
	// Refused: a service that the filter names exists, and the rule keeps it from
	// the caller. Whoever records it bounds it.
	Refused func(who identity.Principal, n views.Name, rule string)
}

// Feed implements viewv1.ViewServiceServer and carries publications to its
// streams.
type Feed struct {
	viewv1.UnimplementedViewServiceServer
	c Config

	mu       sync.RWMutex
	closed   bool
	watchers map[*watcher]struct{}
	byName   map[views.Name]map[*watcher]struct{}
	wild     map[*watcher]struct{} // those that want all they may see
	sources  map[identity.Principal]int
	policyAt views.Version // newest version published when the policy was last replaced

	running sync.WaitGroup // readers and senders
}

// New returns the Feed.
func New(c Config) *Feed {
	return &Feed{
		c:        c,
		watchers: map[*watcher]struct{}{},
		byName:   map[views.Name]map[*watcher]struct{}{},
		wild:     map[*watcher]struct{}{},
		sources:  map[identity.Principal]int{},
	}
}

// Publish wakes the streams that a publication concerns. The Snapshot must hold
// the new view already. It never blocks on a stream, and may be called from
// several goroutines.
func (f *Feed) Publish(p views.Publication) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for w := range f.byName[p.Name] {
		w.rouse(p.Lane == views.Withdrawals)
	}
	for w := range f.wild {
		w.rouse(p.Lane == views.Withdrawals)
	}
}

// PolicyChanged makes every stream ask again what its caller may see. The new
// policy must be what Config.Policy returns already.
func (f *Feed) PolicyChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.policyAt = f.c.Snapshot().Version()
	for w := range f.watchers {
		w.rouse(true)
	}
}

// Close ends every stream with UNAVAILABLE and waits until their goroutines
// are gone. Streams that are opened later are refused. It may be called twice.
func (f *Feed) Close() {
	f.mu.Lock()
	f.closed = true
	for w := range f.watchers {
		w.end(status.Errorf(status.Stopping, "the server is stopping"))
	}
	f.mu.Unlock()
	f.running.Wait()
}

// enter adds a stream, if its source may have one more.
func (f *Feed) enter(w *watcher) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch limit := f.c.StreamsPerSource; {
	case f.closed:
		return status.Errorf(status.Stopping, "the server is stopping")
	case limit > 0 && f.sources[w.who] >= limit:
		return status.Limit("API.WatchesPerSource", "too many open Watch streams of one identity at one address")
	}
	f.sources[w.who]++
	f.watchers[w] = struct{}{}
	f.running.Add(2)
	return nil
}

func (f *Feed) exit(w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unsubscribe(w)
	delete(f.watchers, w)
	if f.sources[w.who]--; f.sources[w.who] <= 0 {
		delete(f.sources, w.who)
	}
}

// subscribe makes the stream known under the names of its filter, in place of
// those of the one before it; nil is all names.
func (f *Feed) subscribe(w *watcher, names map[views.Name]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unsubscribe(w)
	w.subscribed = names
	if _, open := f.watchers[w]; !open {
		return
	}
	if names == nil {
		f.wild[w] = struct{}{}
		return
	}
	for n := range names {
		if f.byName[n] == nil {
			f.byName[n] = map[*watcher]struct{}{}
		}
		f.byName[n][w] = struct{}{}
	}
}

// unsubscribe needs mu.
func (f *Feed) unsubscribe(w *watcher) {
	delete(f.wild, w)
	for n := range w.subscribed {
		if delete(f.byName[n], w); len(f.byName[n]) == 0 {
			delete(f.byName, n)
		}
	}
}

// resumable says why a token cannot be resumed from though the ring reaches
// back to it, or nothing. A policy that was replaced since, or by a start since,
// may have changed what the caller holds without any change in the ring.
func (f *Feed) resumable(token views.Version) string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch {
	case token.Epoch != f.c.Snapshot().Version().Epoch:
		return "the server was started since"
	case !f.policyAt.IsZero() && !f.policyAt.Less(token):
		return "the policy was replaced since"
	}
	return ""
}

// Watcher describes an open stream, for people.
type Watcher struct {
	Who       identity.Principal
	NodeID    string // as the client says; never its identity
	UserAgent string
	Services  int           // named by the filter; 0 with All
	All       bool          // the filter is all that the caller may see
	Sent      views.Version // of the last bookmark sent
	Applied   views.Version // of the last bookmark that the client confirmed
	Since     time.Time
}

// Watchers lists the open streams, oldest first.
func (f *Feed) Watchers() []Watcher {
	f.mu.RLock()
	defer f.mu.RUnlock()
	out := make([]Watcher, 0, len(f.watchers))
	for w := range f.watchers {
		out = append(out, w.describe())
	}
	slices.SortFunc(out, func(a, b Watcher) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Who.ID.String(), b.Who.ID.String()), cmp.Compare(a.NodeID, b.NodeID))
	})
	return out
}
