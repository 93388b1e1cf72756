package store

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/sightlinedev/sightline/views"
)

// settle waits until what is queued has been written: the second marker can
// only be met after the batch of the first was.
func settle(t *testing.T, s *Store) {
	t.Helper()
	for range 2 {
		met := make(chan struct{})
		s.queue(Checkpoints, 1, func(pebble.Reader, *pebble.Batch) error { close(met); return nil })
		select {
		case <-met:
		case <-time.After(10 * time.Second):
			t.Fatal("the write-behind goroutine does not get on")
		}
	}
}

func TestViewsUnderTheirVersions(t *testing.T) {
	fs := vfs.NewMem()
	s, _ := open(t, fs, nil)
	var old *views.View
	for seq := uint64(1); seq <= 3; seq++ {
		p := publication(views.Version{Epoch: 2e9, Seq: seq * 10}, old, int(seq))
		s.PutView(p)
		old = p.New
	}
	gone := views.Version{Epoch: 3e9, Seq: 40}
	s.PutView(views.Publication{Version: gone, Name: checkout, Old: old, Lane: views.Withdrawals, Kinds: views.Withdraw})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, fs, nil)
	for _, test := range []struct {
		at      views.Version
		seq     uint64
		members int
	}{{views.Version{Epoch: 2e9, Seq: 10}, 10, 1}, {views.Version{Epoch: 2e9, Seq: 25}, 20, 2}, {views.Version{Epoch: 3e9, Seq: 1}, 30, 3}, {gone, 40, -1}} {
		got, ok, err := s.ViewAt(t.Context(), checkout, test.at)
		if err != nil || !ok || got.Version.Seq != test.seq {
			t.Fatalf("at %s: %+v %v %v", test.at, got, ok, err)
		}
		if members := -1; got.View != nil {
			if members = len(got.View.Members); members != test.members || got.View.Members[0].Evidence.Rule != "R7" {
				t.Errorf("at %s: %d members, want %d", test.at, members, test.members)
			}
		} else if test.members != -1 {
			t.Errorf("at %s: deleted", test.at)
		}
	}
	if _, ok, err := s.ViewAt(t.Context(), checkout, views.Version{Epoch: 2e9, Seq: 9}); ok || err != nil {
		t.Errorf("before the first version: %v %v", ok, err)
	}
	if latest, _, err := s.LatestViews(t.Context()); err != nil || len(latest) != 0 {
		t.Errorf("latest of a deleted service: %+v %v", latest, err)
	}
	changes, complete, err := s.ChangesSince(t.Context(), views.Version{Epoch: 2e9, Seq: 20})
	if err != nil || !complete || len(changes) != 2 || changes[0].Version.Seq != 30 || !changes[1].Deleted {
		t.Errorf("changes %+v %v %v", changes, complete, err)
	}
	if changes, complete, _ = s.ChangesSince(t.Context(), views.Version{Epoch: 2e9, Seq: 9}); complete || len(changes) != 4 {
		t.Errorf("changes from before the ring: %d, complete %v", len(changes), complete)
	}
	again := publication(views.Version{Epoch: 3e9, Seq: 50}, nil, 1)
	s.PutView(again)
	settle(t, s)
	want := views.Stored{Endpoint: again.Version, Config: again.Version, EndpointHash: again.New.EndpointHash}
	if latest, _, err := s.LatestViews(t.Context()); err != nil || latest[checkout] != want {
		t.Errorf("latest: %+v %v", latest, err)
	}
	s.DropViews()
	settle(t, s)
	if latest, _, err := s.LatestViews(t.Context()); err != nil || len(latest) != 0 {
		t.Errorf("after dropping: %+v %v", latest, err)
	}
}

func TestRetention(t *testing.T) {
	published := func(seq uint64) time.Time { return start.Add(time.Duration(seq) * time.Second) }
	for _, test := range []struct {
		name     string
		change   func(*Config)
		now      time.Time
		oldest   uint64 // version that is still there
		ring     int
		deletion bool // the tombstone is still there
	}{
		{"nothing is due", func(*Config) {}, published(2000), 1, 100, true},
		{"age", func(c *Config) { c.ViewAge = 50 * time.Second }, published(100), 50, 100, true},
		{"age of a tombstone", func(c *Config) { c.ViewAge = time.Second }, published(5000), 99, 100, false},
		{"bytes", func(c *Config) { c.ViewBytes = 1 }, published(100), 99, 100, false},
		{"ring", func(c *Config) { c.RingLength = 7 }, published(100), 1, 7, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, _ := open(t, vfs.NewMem(), test.change)
			second := publication(views.Version{Epoch: 2e9, Seq: 1}, nil, 1)
			second.Name = other
			s.PutView(second)
			var old *views.View
			for seq := uint64(1); seq <= 99; seq++ {
				p := publication(views.Version{Epoch: 2e9, Seq: seq}, old, 1)
				if seq == 99 {
					p.New = nil
				}
				p2 := p
				if p2.New == nil {
					s.queue(Views, 1, func(db pebble.Reader, b *pebble.Batch) error { return addView(db, b, p2, published(seq)) })
				} else {
					s.PutView(p2)
				}
				old = p.New
			}
			settle(t, s)
			r := s.openRetention(s.opening)
			r.sweep(test.now)
			if test.oldest > 1 {
				if got, ok, err := s.ViewAt(t.Context(), checkout, views.Version{Epoch: 2e9, Seq: test.oldest - 1}); ok || err != nil {
					t.Errorf("version %d should be gone: %v %v", test.oldest-1, got.Version, err)
				}
			}
			_, ok, err := s.ViewAt(t.Context(), checkout, views.Version{Epoch: 2e9, Seq: test.oldest})
			if err != nil || ok != (test.oldest < 99 || test.deletion) {
				t.Errorf("version %d: %v %v", test.oldest, ok, err)
			}
			latest, _, _ := s.LatestViews(t.Context())
			if _, ok := latest[other]; len(latest) != 1 || !ok {
				t.Errorf("latest %+v", latest)
			}
			changes, _, err := s.ChangesSince(t.Context(), views.Version{})
			if err != nil || len(changes) != min(test.ring, 99) {
				t.Errorf("ring of %d, want %d, %v", len(changes), test.ring, err)
			}
		})
	}
}

// TestADroppedViewCutsTheRing: a ring with a hole must not answer "these are all".
func TestADroppedViewCutsTheRing(t *testing.T) {
	var dropped int
	s, _ := open(t, vfs.NewMem(), func(c *Config) {
		c.QueueBytes = 1 << 15
		c.Events.Dropped = func(q Queue) {
			if q == Views {
				dropped++
			}
		}
	})
	s.PutView(publication(views.Version{Epoch: 2e9, Seq: 1}, nil, 1))
	settle(t, s)
	s.PutView(publication(views.Version{Epoch: 2e9, Seq: 2}, nil, 1<<12))
	s.PutView(publication(views.Version{Epoch: 2e9, Seq: 3}, nil, 1))
	s.PutView(publication(views.Version{Epoch: 2e9, Seq: 4}, nil, 1))
	settle(t, s)
	changes, complete, err := s.ChangesSince(t.Context(), views.Version{Epoch: 2e9, Seq: 1})
	if err != nil || complete || len(changes) != 2 || dropped != 1 {
		t.Errorf("changes %+v, complete %v, dropped %d, %v", changes, complete, dropped, err)
	}
	if _, complete, _ = s.ChangesSince(t.Context(), views.Version{Epoch: 2e9, Seq: 3}); !complete {
		t.Error("after the hole the ring is complete again")
	}
}

// TestTheViewOfAnEarlierStartExpires: after a start the Publisher does not know
// what its first publication replaces; the store does.
func TestTheViewOfAnEarlierStartExpires(t *testing.T) {
	fs := vfs.NewMem()
	s, l := open(t, fs, nil)
	first := publication(views.Version{Epoch: l.Epoch, Seq: 1}, nil, 1)
	s.PutView(first)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, l = open(t, fs, nil)
	kept := first
	kept.New = &views.View{Name: checkout} // must not overwrite what is stored
	s.PutView(kept)
	settle(t, s)
	if got, ok, err := s.ViewAt(t.Context(), checkout, first.Version); err != nil || !ok || len(got.View.Members) != 1 {
		t.Errorf("kept view: %+v %v %v", got, ok, err)
	}
	s.PutView(publication(views.Version{Epoch: l.Epoch, Seq: 2}, nil, 1))
	settle(t, s)
	s.openRetention(s.opening).sweep(start.Add(48 * time.Hour))
	if got, ok, _ := s.ViewAt(t.Context(), checkout, first.Version); ok {
		t.Errorf("still there: %+v", got)
	}
	if _, ok, _ := s.ViewAt(t.Context(), checkout, views.Version{Epoch: l.Epoch, Seq: 2}); !ok {
		t.Error("the newest view is never dropped")
	}
}

// TestAKilledProcessForgetsNoView: what was published a moment before a crash
// is the newest at the next start, so that an older view's version cannot come
// back with a view that happens to be equal to it.
func TestAKilledProcessForgetsNoView(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s, l := open(t, fs, nil)
	first := publication(views.Version{Epoch: l.Epoch, Seq: 1}, nil, 1)
	second := publication(views.Version{Epoch: l.Epoch, Seq: 2}, first.New, 2)
	s.PutView(first)
	s.PutView(second)
	settle(t, s)
	dead := fs.CrashClone(vfs.CrashCloneCfg{}) // nothing that was not synced
	s, _ = open(t, dead, nil)
	newest, _, err := s.LatestViews(t.Context())
	if err != nil || newest[checkout].Endpoint.Seq != 2 {
		t.Errorf("after the crash the newest view is %+v, want seq 2 (%v)", newest[checkout], err)
	}
}

// TestAfterADroppedViewVersionsAreNotKept: a service whose newest view may be
// the dropped one is stamped anew at the next start, once.
func TestAfterADroppedViewVersionsAreNotKept(t *testing.T) {
	fs := vfs.NewMem()
	small := func(c *Config) { c.QueueBytes = 1 << 15 }
	s, l := open(t, fs, small)
	first := publication(views.Version{Epoch: l.Epoch, Seq: 1}, nil, 1)
	s.PutView(first)
	settle(t, s)
	s.PutView(publication(views.Version{Epoch: l.Epoch, Seq: 2}, first.New, 1<<12)) // too large for the queue
	s.PutView(publication(views.Version{Epoch: l.Epoch, Seq: 3}, nil, 1))
	settle(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, l = open(t, fs, small)
	newest, _, err := s.LatestViews(t.Context())
	if got, ok := newest[checkout]; err != nil || !ok || got.EndpointHash != [32]byte{} {
		t.Errorf("after a dropped view: %+v %v %v, want the service known and its hash not", got, ok, err)
	}
	s.PutView(publication(views.Version{Epoch: l.Epoch, Seq: 9}, nil, 1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, fs, small)
	newest, _, err = s.LatestViews(t.Context())
	if newest[checkout].EndpointHash == [32]byte{} || err != nil {
		t.Errorf("the epoch after: %+v %v, want its hash", newest[checkout], err)
	}
}
