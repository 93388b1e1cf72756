package watch

import (
	"cmp"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/svid"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// bookmarkEvery is how often a stream that has nothing to send is told how far
// the region has come, so that its token stays within the ring.
const bookmarkEvery = 10 * time.Second

// watcher is one stream.
type watcher struct {
	// fixed
	feed    *Feed
	who     identity.Principal
	stream  grpc.BidiStreamingServer[viewv1.WatchRequest, viewv1.WatchResponse]
	filters chan *filter  // from the reader, which waits until one is adopted
	wake    chan struct{} // room for one
	ended   chan error    // room for one; what the handler returns

	// guarded by feed.mu
	subscribed map[views.Name]bool

	mu     sync.Mutex
	urgent bool    // a withdrawal, or another policy, is waiting
	shown  Watcher // what describe says

	// owned by the sender's goroutine
	sending sender
}

// Watch implements the RPC.
func (f *Feed) Watch(stream grpc.BidiStreamingServer[viewv1.WatchRequest, viewv1.WatchResponse]) error {
	who, ok := svid.PrincipalFrom(stream.Context())
	if !ok {
		return status.Errorf(status.NoIdentity, "Watch needs a verified caller")
	}
	if !f.c.Snapshot().Complete() {
		return status.Errorf(status.ViewsLoading, "the server is still building its views")
	}
	w := &watcher{feed: f, who: who, stream: stream, shown: Watcher{Who: who, Since: time.Now()},
		filters: make(chan *filter), wake: make(chan struct{}, 1), ended: make(chan error, 1)}
	w.sending = newSender(w)
	if err := f.enter(w); err != nil {
		return err
	}
	defer f.exit(w)
	if f.c.Events.Opened != nil {
		f.c.Events.Opened(who)
	}
	// Both end when the handler has returned: that cancels the stream's context.
	go func() { defer f.running.Done(); w.end(w.read()) }()
	go func() { defer f.running.Done(); w.end(w.send()) }()
	err := <-w.ended
	if f.c.Events.Closed != nil {
		f.c.Events.Closed(who, err)
	}
	return err
}

// end makes the handler return; the first reason counts.
func (w *watcher) end(err error) {
	select {
	case w.ended <- err:
	default:
	}
}

// rouse wakes the sender.
func (w *watcher) rouse(urgent bool) {
	w.mu.Lock()
	w.urgent = w.urgent || urgent
	w.mu.Unlock()
	w.nudge()
}

func (w *watcher) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// takeUrgent reports, once, that something urgent came.
func (w *watcher) takeUrgent() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	urgent := w.urgent
	w.urgent = false
	return urgent
}

func (w *watcher) describe() Watcher {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown
}

// read takes the client's frames until the stream ends.
func (w *watcher) read() error {
	for first := true; ; first = false {
		req, err := w.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		switch frame := req.GetFrame().(type) {
		case *viewv1.WatchRequest_Filter:
			f, err := parseFilter(frame.Filter, w.feed.c.MaxFilter)
			if err != nil {
				return err
			}
			if err := w.offer(f); err != nil {
				return err
			}
		case *viewv1.WatchRequest_Applied:
			at, err := views.ParseVersion(frame.Applied)
			if err != nil || first {
				return status.Field(status.InvalidRequest, "applied", "version", "must be the version of a bookmark of this stream")
			}
			w.mu.Lock()
			w.shown.Applied = at
			w.mu.Unlock()
		default:
			return status.Field(status.InvalidRequest, "frame", "one-of", "must be a filter or applied; this server knows no other")
		}
	}
}

// offer hands a filter to the sender, and waits until that has taken it: a
// client cannot pile up filters.
func (w *watcher) offer(f *filter) error {
	w.mu.Lock()
	w.shown.All, w.shown.Services = f.names == nil, len(f.names)
	w.shown.NodeID, w.shown.UserAgent = cmp.Or(f.nodeID, w.shown.NodeID), cmp.Or(f.userAgent, w.shown.UserAgent)
	w.mu.Unlock()
	select {
	case w.filters <- f:
		return nil
	case <-w.stream.Context().Done():
		return w.stream.Context().Err()
	}
}

// send runs rounds until the stream ends.
func (w *watcher) send() error {
	done := w.stream.Context().Done()
	idle := time.NewTicker(bookmarkEvery)
	defer idle.Stop()
	for {
		quiet := false
		select {
		case <-done:
			return w.stream.Context().Err()
		case f := <-w.filters:
			w.sending.adopt(f)
		case <-w.wake:
		case <-idle.C:
			quiet = true
		}
		if err := w.sending.round(quiet); err != nil {
			return err
		}
	}
}

// push sends one message. It may block for as long as the client does not
// read; beyond the limit the stream is ended from beside.
func (w *watcher) push(kind string, m *viewv1.WatchResponse) error {
	if c := w.feed.c; c.StallAfter > 0 {
		limit := c.StallAfter
		if c.StallRate > 0 {
			limit += time.Duration(proto.Size(m)) * time.Second / time.Duration(c.StallRate)
		}
		stalled := time.AfterFunc(limit, func() {
			w.end(status.Errorf(status.StreamStalled, "nothing was read for %v", limit))
		})
		defer stalled.Stop()
	}
	if err := w.stream.Send(m); err != nil {
		return err
	}
	if w.feed.c.Events.Sent != nil {
		w.feed.c.Events.Sent(kind)
	}
	return nil
}
