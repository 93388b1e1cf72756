package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/shard"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
	"github.com/sightlinedev/sightline/views/store"
)

// openStore opens the store and what a start needs of it.
func (s *Server) openStore(context.Context) error {
	l := s.cfg.Limits.Store
	st, loaded, err := store.Open(store.Config{
		Dir: filepath.Join(s.cfg.Data, "store"), Now: s.started,
		QueueLength: l.QueuedRecords, ViewAge: l.ViewRetention, ViewBytes: l.ViewBytes, RingLength: l.ChangeRing,
		RetryEvery: l.ReopenPollPeriod, Events: s.storeEvents(),
	})
	if err != nil {
		return startError(status.StoreUnopenable, "--data %s: %v", s.cfg.Data, err)
	}
	s.store = st
	s.onClose(st.Close)
	s.storeSince.Store(s.started.UnixNano())
	s.report.storeState(loaded.Status)
	for _, a := range loaded.Alarms {
		s.report.rowUnreadable("counters", a.Error(), nil)
	}
	return s.startPublisher(loaded)
}

// startPublisher reads what the last process published, so that views which
// have not changed keep their versions, and loads the desired rows. What cannot
// be read of the computed state is only missing: views get new versions.
func (s *Server) startPublisher(loaded store.Loaded) error {
	ctx, cancel := context.WithTimeout(context.Background(), loadWait)
	defer cancel()
	stored, damaged, err := s.store.LatestViews(ctx)
	s.report.computedLost("views", damaged, err)
	recent, err := s.store.RecentChanges(ctx)
	s.report.computedLost("changes", 0, err)
	memories, damaged, err := s.store.LoadCheckpoints(ctx)
	s.report.computedLost("checkpoints", damaged, err)
	s.boot = shard.Boot{Memories: memories, Lost: make(map[registry.Name][]*views.Member), Held: make(map[registry.Name]*views.View)}
	s.publisher = views.NewPublisher(views.PublisherConfig{
		Epoch: loaded.Epoch, Next: loaded.Next, Reserved: loaded.Reserved,
		Refill: func() { s.store.Refill(s.publisher.Reserve) },
		Stored: stored, Recent: recent, Events: s.report.publisherEvents(),
	})
	s.publisher.PolicyChanged(s.policy.Generation)
	rows := registry.Load(loaded.Base, slices.Values(loaded.Rows), loaded.Damaged)
	for _, d := range rows.Damaged {
		if !isDamaged(rows.Index, d.Key) { // its previous value governs
			s.report.rowUnreadable(fmt.Sprint(d.Key), d.Detail, nil)
			continue
		}
		s.report.rowUnreadable(fmt.Sprint(d.Key), d.Detail, func() (still bool) {
			s.writer.Read(func(ix *registry.Index) { still = isDamaged(ix, d.Key) })
			return still
		})
		s.keepLastGood(ctx, d.Key)
	}
	s.writer = desired.New(desired.Config{
		Loaded: rows, Commit: s.commit, Refusal: s.refusal, KindOf: kindOf,
		Tell:         func(c registry.Change) { s.shards.SubmitChange(c) },
		WriteTimeout: s.cfg.Limits.Registry.WriteTimeout, Events: s.report.writerEvents(),
	})
	return nil
}

func isDamaged(ix *registry.Index, k registry.RowKey) bool {
	_, is := ix.Damaged(k)
	return is
}

// keepLastGood makes a row that cannot be read cost nobody an answer: what was
// published last stands in for it until the row is put again.
func (s *Server) keepLastGood(ctx context.Context, k registry.RowKey) {
	if k.Kind != registry.ServiceRow && k.Kind != registry.InstanceRow {
		return // contracts and profiles have their own last good value, or a default
	}
	newest := views.Version{Epoch: math.MaxUint64, Seq: math.MaxUint64}
	last, ok, err := s.store.ViewAt(ctx, k.Name, newest)
	if err != nil || !ok || last.View == nil {
		return
	}
	if k.Kind == registry.ServiceRow {
		if anew := s.publisher.Hold(last.View); anew != nil {
			s.store.PutView(*anew)
		}
		s.boot.Held[k.Name] = s.publisher.Snapshot().Get(k.Name)
		return
	}
	for _, m := range last.View.Members {
		if m.UID == k.UID && m.Listed {
			s.boot.Lost[k.Name] = append(s.boot.Lost[k.Name], m)
		}
	}
}

// loadWait bounds reading the computed state at a start.
const loadWait = time.Minute

// buildCore builds the shards. Their feeds are the surfaces, which are built
// after them and before anything is published.
func (s *Server) buildCore(context.Context) error {
	l := s.cfg.Limits
	s.shards = shard.New(shard.Config{
		Shards: s.cfg.Shards, Samples: l.Reports.Inbox, CheckpointEvery: l.Store.CheckpointEvery,
		Publish: s.publisher.Publish, Complete: s.complete,
		Feeds: []func(views.Publication){
			func(p views.Publication) { s.xds.Feed().Publish(p) },
			func(p views.Publication) { s.watch.Publish(p) },
			s.store.PutView, s.report.published,
		},
		SaveCheckpoint: s.store.SaveCheckpoint, SaveMinute: s.store.SaveMinute, Minutes: s.store.Minutes,
		AgedOut: s.agedOut, Events: s.shardEvents(),
	})
	s.writer.Full(func(c registry.Change) { s.boot.Services = append(s.boot.Services, c) })
	return nil
}

// complete is called once, when every stored service has its view.
func (s *Server) complete() {
	for _, gone := range s.publisher.Complete() {
		s.store.PutView(gone) // or the next start would find them gone once more
	}
	s.completed.Store(true)
	s.serving()
	s.checks.set(checkViews, "")
}

// commit writes one group of desired rows and its audit records, synced.
func (s *Server) commit(ctx context.Context, rows []registry.Row, records []desired.Record) error {
	audit := make([]store.Record, 0, len(records))
	for _, r := range records {
		audit = append(audit, store.Record{At: r.At, Actor: r.Actor, Address: r.Address, Action: r.Action, Target: r.Target,
			Allowed: r.Allowed, Reason: r.Reason, Revision: r.Revision, Details: r.Details})
	}
	return s.store.Commit(ctx, rows, audit)
}

// refusal says why the store takes no writes now.
func (s *Server) refusal() error {
	if st := s.store.Status(); st.State != store.Writable {
		return &store.Unavailable{Status: st}
	}
	return nil
}

// kindOf sorts the store's errors for the writer.
func kindOf(err error) desired.Kind {
	if store.StateOf(err) == store.Full {
		return desired.Full
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return desired.Hung
	}
	return desired.Failing
}

func (s *Server) agedOut(n registry.Name, uids []registry.UID) {
	for _, uid := range uids {
		if err := s.writer.Lapsed(time.Now(), uid); err != nil {
			s.report.notRemoved(n, uid, err)
		}
	}
}

// restamp asks for a new version of a service whose client holds a higher one,
// at most once per service and start.
func (s *Server) restamp(n views.Name) bool {
	if s.Snapshot().Get(n) == nil || !s.restamped.first(n) {
		return false
	}
	s.shards.Restamp(n)
	return true
}

// onceEach remembers which names were seen. It is used from many goroutines.
type onceEach struct {
	mu   sync.Mutex
	seen map[views.Name]bool
}

func newOnceEach() *onceEach { return &onceEach{seen: make(map[views.Name]bool)} }

func (o *onceEach) first(n views.Name) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen[n] {
		return false
	}
	o.seen[n] = true
	return true
}
