package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var checkout = registry.Name{Namespace: "shop", Service: "checkout"}

// region is a Set between a fake registry and store and the real Publisher.
type region struct {
	t         *testing.T
	set       *Set
	publisher *views.Publisher
	cancel    context.CancelFunc
	done      chan struct{}

	mu           sync.Mutex
	publications []views.Publication
	at           []time.Time // of the publications
	completed    int
	memories     map[registry.Name][]byte
	aged         []registry.UID
	transitions  []string
	incidents    []string
	saves        int
	dropped      int
	gaps         int
	lost         int
	stale        int
}

func newRegion(t *testing.T, adjust func(*Config)) *region {
	r := &region{t: t, memories: make(map[registry.Name][]byte), done: make(chan struct{})}
	r.publisher = views.NewPublisher(views.PublisherConfig{Epoch: uint64(time.Now().Unix()), Next: 1, Reserved: 1 << 16})
	cfg := Config{
		Shards:  2,
		Publish: r.publisher.Publish,
		Complete: func() {
			r.locked(func() { r.completed++ })
			r.publisher.Complete()
		},
		Feeds: []func(views.Publication){func(p views.Publication) {
			r.locked(func() { r.publications, r.at = append(r.publications, p), append(r.at, time.Now()) })
		}},
		SaveCheckpoint: func(n registry.Name, b []byte) {
			r.locked(func() {
				r.saves++
				if r.memories[n] = b; b == nil {
					delete(r.memories, n)
				}
			})
		},
		AgedOut: func(_ registry.Name, uids []registry.UID) { r.locked(func() { r.aged = append(r.aged, uids...) }) },
		Events: Events{
			Transitions: func(_ registry.Name, v views.Version, ts []health.Transition) {
				r.locked(func() {
					for _, tr := range ts {
						r.transitions = append(r.transitions, fmt.Sprintf("%s %s->%s %v", tr.UID, tr.From, tr.To, !v.IsZero()))
					}
				})
			},
			HealthIncident: func(_ registry.Name, i health.Incident) {
				r.locked(func() { r.incidents = append(r.incidents, i.Kind.String()) })
			},
			ViewIncident: func(i views.Incident) { r.locked(func() { r.incidents = append(r.incidents, i.Kind.String()) }) },
			Dropped:      func(n int) { r.locked(func() { r.dropped += n }) },
			Gap:          func(int, time.Duration) { r.locked(func() { r.gaps++ }) },
			LostMemory:   func(registry.Name, error) { r.locked(func() { r.lost++ }) },
			Stale:        func(registry.Name, string) { r.locked(func() { r.stale++ }) },
		},
	}
	if adjust != nil {
		adjust(&cfg)
	}
	r.set = New(cfg)
	return r
}

func (r *region) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *region) start(boot Boot) {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		if err := r.set.Run(ctx, boot); err != nil {
			r.t.Errorf("Run: %v", err)
		}
	}()
	synctest.Wait()
}

func (r *region) stop() {
	r.cancel()
	<-r.done
}

// run lets time pass in ticks while the given instances renew and say SERVING.
func (r *region) run(d time.Duration, renewing ...registry.UID) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, uid := range renewing {
			r.set.SubmitRenewal(checkout, uid)
			r.say(health.Serving, uid)
		}
		time.Sleep(time.Second)
	}
	synctest.Wait()
}

func (r *region) say(s health.SelfStatus, uids ...registry.UID) {
	for _, uid := range uids {
		r.set.Submit(checkout, []health.Sample{{UID: uid, Class: registry.ClassSelf, Status: s, At: time.Now()}})
	}
}

func (r *region) listed() (uids []registry.UID) {
	v := r.publisher.Snapshot().Get(checkout)
	if v == nil {
		return nil
	}
	for _, m := range v.Members {
		if m.Listed {
			uids = append(uids, m.UID)
		}
	}
	return uids
}

func (r *region) expectListed(want ...registry.UID) {
	r.t.Helper()
	synctest.Wait()
	if got := r.listed(); !slices.Equal(got, want) {
		r.t.Errorf("listed %v, want %v", got, want)
	}
}

// rows is a change of a service with the given instances.
func rows(n registry.Name, revision uint64, lease time.Duration, supplies registry.ClassSet, uids ...registry.UID) registry.Change {
	c := registry.Change{
		Name: n, Revision: revision,
		Service:  &registry.Service{Name: n, Ports: []registry.Port{{Name: "grpc", Number: 8080, Protocol: registry.GRPC}}},
		Contract: registry.Contract{Name: n, GuardPercent: 50},
	}
	for _, uid := range uids {
		c.Instances = append(c.Instances, registry.InstanceChange{
			UID:     uid,
			Row:     &registry.Instance{UID: uid, Service: n, Lease: lease, Weight: 100, Zone: "z1", Proof: registry.ByAuthority},
			Profile: registry.Profile{Supplies: supplies},
		})
	}
	return c
}

func removal(n registry.Name, revision uint64, why registry.Removal, uids ...registry.UID) registry.Change {
	c := rows(n, revision, 0, 0)
	for _, uid := range uids {
		c.Instances = append(c.Instances, registry.InstanceChange{UID: uid, Removal: why})
	}
	return c
}

var self = registry.ClassSet(0).With(registry.ClassSelf)

// The instance's own word reaches the feed without waiting for a tick.
func TestWithdrawalReachesTheFeedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 0, self, 1, 2, 3, 4)}})
		r.run(3*time.Second, 1, 2, 3, 4)
		r.expectListed(1, 2, 3, 4)
		before := len(r.publications)
		at := time.Now()
		r.say(health.NotServing, 2)
		r.expectListed(1, 3, 4)
		if len(r.publications) != before+1 {
			t.Fatalf("%d publications, want one", len(r.publications)-before)
		}
		p := r.publications[before]
		if p.Lane != views.Withdrawals || p.Kinds&views.Withdraw == 0 || !r.at[before].Equal(at) {
			t.Errorf("lane %d, kinds %b after %s; want a withdrawal at once", p.Lane, p.Kinds, r.at[before].Sub(at))
		}
		if want := "i2 eligible->ineligible true"; !slices.Contains(r.transitions, want) {
			t.Errorf("transitions %v lack %q", r.transitions, want)
		}
		// It comes back after its hold, not before.
		r.run(14*time.Second, 1, 2, 3, 4)
		r.expectListed(1, 3, 4)
		r.run(3*time.Second, 1, 2, 3, 4)
		r.expectListed(1, 2, 3, 4)
		r.stop()
	})
}

// Surfaces answer once every stored view is there, and not before.
func TestCompleteIsSaidOnceAndLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		var boot Boot
		for k := range n {
			name := registry.Name{Namespace: "ns", Service: fmt.Sprintf("s%d", k)}
			boot.Services = append(boot.Services, rows(name, 1, 0, 0, registry.UID(k+1)))
		}
		var r *region
		r = newRegion(t, func(c *Config) {
			c.Shards = 5
			complete := c.Complete
			c.Complete = func() {
				if s := r.publisher.Snapshot(); s.Complete() || s.Len() != n {
					t.Errorf("at completion: complete %v, %d views", s.Complete(), s.Len())
				}
				complete()
			}
		})
		r.start(boot)
		r.run(5 * time.Second)
		if r.completed != 1 || !r.publisher.Snapshot().Complete() {
			t.Errorf("completed %d times", r.completed)
		}
		r.stop()
	})
}

func TestCompleteOfAnEmptyRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.start(Boot{})
		if r.completed != 1 {
			t.Errorf("completed %d times", r.completed)
		}
		r.stop()
	})
}

// However many samples wait, registry changes, renewals and NOT_SERVING are kept.
func TestFullInboxLosesOnlySamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, func(c *Config) { c.Samples = 10 })
		for range 1000 {
			r.say(health.Serving, 1, 2, 3, 4)
		}
		r.set.SubmitChange(rows(checkout, 2, 0, 0, 5))
		r.set.SubmitChange(removal(checkout, 3, registry.Deregistered, 4))
		r.set.SubmitChange(rows(checkout, 4, 0, 0, 6))
		time.Sleep(time.Millisecond)
		r.say(health.Draining, 3)
		time.Sleep(time.Millisecond)
		r.say(health.NotServing, 2, 3)
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 0, self, 1, 2, 3, 4)}})
		r.expectListed(1, 5, 6)
		if r.dropped != 3990 {
			t.Errorf("dropped %d samples, want 3990", r.dropped)
		}
		i, ok, err := r.set.Inspect(t.Context(), checkout)
		if err != nil || !ok {
			t.Fatalf("inspect: %v, %v", ok, err)
		}
		if x, _ := i.Instance(3); !x.Verdict.Draining || x.Verdict.State != health.Ineligible {
			t.Errorf("i3 said DRAINING and then NOT_SERVING: %+v", x)
		}
		// What was taken out makes room.
		for range 10 {
			r.say(health.Serving, 1)
		}
		if r.dropped != 3990 {
			t.Errorf("dropped %d samples of ten that fit", r.dropped-3990)
		}
		r.stop()
	})
}

// CASES C32: a dead instance goes 25 to 30 s after its last renewal, or after
// the server is back; and nobody who renews ever goes.
func TestLeasesOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boot := Boot{Services: []registry.Change{rows(checkout, 1, 25*time.Second, 0, 1, 2, 3, 4)}}
		r := newRegion(t, nil)
		r.start(boot)
		r.run(40*time.Second, 1, 2, 3, 4)
		r.run(24*time.Second, 1, 3, 4)
		r.expectListed(1, 2, 3, 4)
		r.run(5*time.Second, 1, 3, 4)
		r.expectListed(1, 3, 4)
		r.run(10*time.Second, 1, 3) // i4 is dead for 10 s
		r.stop()

		time.Sleep(45 * time.Second)
		boot.Memories = r.memories
		r = newRegion(t, nil)
		r.start(boot)
		r.expectListed(1, 3, 4)
		time.Sleep(24 * time.Second) // within a full term of readiness
		r.run(time.Second, 1, 3)
		r.expectListed(1, 3, 4)
		r.run(5*time.Second, 1, 3)
		r.expectListed(1, 3)
		if r.lost != 0 {
			t.Error("the checkpoint was not read")
		}
		r.stop()
	})
}

// A shard that did not run takes nobody out for what it did not hear.
func TestOwnGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hang atomic.Int64
		r := newRegion(t, func(c *Config) {
			publish := c.Publish
			c.Publish = func(now time.Time, cand views.Candidate) views.Result {
				time.Sleep(time.Duration(hang.Load()))
				return publish(now, cand)
			}
		})
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 25*time.Second, self, 1, 2)}})
		r.run(10*time.Second, 1, 2)
		hang.Store(int64(2 * time.Minute))
		r.set.SubmitChange(rows(checkout, 2, 25*time.Second, self, 3))
		time.Sleep(time.Second)
		hang.Store(0)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if r.gaps != 1 {
			t.Errorf("%d gaps, want one", r.gaps)
		}
		r.run(24*time.Second, 2)
		for _, m := range r.publisher.Snapshot().Get(checkout).Members {
			if m.State == health.Ineligible {
				t.Errorf("%s is out because nobody looked: %+v", m.UID, m.Evidence)
			}
		}
		r.stop()
	})
}

func TestCheckpointsAreSavedWhenTheyDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 0, self, 1, 2, 3)}})
		r.run(40*time.Second, 1, 2, 3)
		saves := r.saves
		if saves != 1 {
			t.Errorf("%d saves while nothing changed, want the first", saves)
		}
		r.say(health.NotServing, 1)
		synctest.Wait()
		r.stop() // at shutdown, without waiting for the ten seconds
		m, err := readMemory(r.memories[checkout], time.Now())
		if err != nil {
			t.Fatal(err)
		}
		e := health.New(checkout, time.Now(), m.health)
		e.Load(rows(checkout, 1, 0, self, 1, 2, 3))
		e.Judge(time.Now())
		if v := e.Verdicts()[0]; v.State != health.Ineligible || v.OutBy != health.R2 {
			t.Errorf("i1 after a start: %+v", v)
		}
	})
}

// A checkpoint that cannot be read admits, says so, and hurts nobody else.
func TestLostMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, bad := range []string{"{", `{"v":7}`, `{"v":1,"health":{"v":9}}`} {
			r := newRegion(t, nil)
			r.start(Boot{
				Services: []registry.Change{rows(checkout, 1, 0, self, 1, 2)},
				Memories: map[registry.Name][]byte{checkout: []byte(bad)},
			})
			r.expectListed(1, 2)
			if r.lost != 1 {
				t.Errorf("%s: lost %d", bad, r.lost)
			}
			r.stop()
		}
	})
}

func TestAgedOutMembersAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 5*time.Second, 0, 1, 2, 3, 4)}})
		r.run(20*time.Second, 1, 2, 3, 4)
		r.run(9*time.Minute, 1, 2, 3)
		if len(r.aged) != 0 {
			t.Errorf("%v aged out before ten minutes", r.aged)
		}
		r.run(90*time.Second, 1, 2, 3)
		if want := []registry.UID{4}; !slices.Equal(slices.Compact(r.aged), want) {
			t.Errorf("aged out %v, want %v", r.aged, want)
		}
		r.set.SubmitChange(removal(checkout, 2, registry.LapsedOut, 4))
		r.run(3*time.Minute, 1, 2, 3)
		if n := len(r.publisher.Snapshot().Get(checkout).Members); n != 3 {
			t.Errorf("%d members after the removal, want 3", n)
		}
		r.stop()
	})
}

// A service that goes and comes while the shard is busy is two services: no
// instance of the first is in the second.
func TestDeletedAndMadeAnewInOneDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.set.SubmitChange(registry.Change{Name: checkout, Revision: 3, Removal: registry.ServiceDeleted})
		r.set.SubmitChange(rows(checkout, 4, 0, 0, 7))
		r.start(Boot{Services: []registry.Change{rows(checkout, 2, 0, 0, 1, 2)}})
		time.Sleep(time.Second)
		r.expectListed(7)

		r.run(20 * time.Second)
		if len(r.memories) != 1 {
			t.Errorf("%d memories, want its own", len(r.memories))
		}
		r.set.SubmitChange(registry.Change{Name: checkout, Revision: 5, Removal: registry.ServiceDeleted})
		time.Sleep(time.Second)
		synctest.Wait()
		if r.publisher.Snapshot().Get(checkout) != nil {
			t.Error("the deleted service is still published")
		}
		if _, ok, err := r.set.Inspect(t.Context(), checkout); ok || err != nil {
			t.Errorf("inspect of a deleted service: %v, %v", ok, err)
		}
		r.run(20 * time.Second)
		if len(r.memories) != 0 {
			t.Errorf("its memory is kept: %v", r.memories)
		}
		r.stop()
	})
}

// What the start has read already is not taken back by what was told before.
func TestChangesOlderThanTheStartAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.set.SubmitChange(removal(checkout, 4, registry.Deregistered, 2))
		r.start(Boot{Services: []registry.Change{rows(checkout, 5, 0, 0, 1, 2)}})
		r.expectListed(1, 2)
		r.set.SubmitChange(removal(checkout, 6, registry.Deregistered, 2))
		r.expectListed(1)
		r.stop()
	})
}

// Withdrawals go at once, then one publication per 100 ms with the newest state.
func TestDeferredCandidatesAreOfferedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 0, 0, 1, 2, 3, 4, 5, 6)}})
		r.run(5 * time.Second)
		before, at := len(r.publications), time.Now()
		for k := range 4 {
			r.set.SubmitChange(removal(checkout, uint64(10+k), registry.Deregistered, registry.UID(k+1)))
			time.Sleep(10 * time.Millisecond)
		}
		i, _, err := r.set.Inspect(t.Context(), checkout)
		if err != nil || i.Until.IsZero() || i.Why == "" || len(i.Instances) != 2 {
			t.Errorf("while it waits: %+v, %v", i, err)
		}
		time.Sleep(200 * time.Millisecond)
		r.expectListed(5, 6)
		if n := len(r.publications) - before; n != 2 {
			t.Fatalf("%d publications, want 2", n)
		}
		if d := r.at[before+1].Sub(at); r.at[before].Sub(at) != 0 || d != 100*time.Millisecond {
			t.Errorf("published after %s and %s", r.at[before].Sub(at), d)
		}
		r.stop()
	})
}

func TestRestamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 0, 0, 1)}})
		first := r.publisher.Snapshot().Get(checkout).Version()
		r.set.Restamp(checkout)
		r.set.Restamp(registry.Name{Namespace: "no", Service: "such"})
		synctest.Wait()
		second := r.publisher.Snapshot().Get(checkout).Version()
		if !first.Less(second) {
			t.Errorf("version %s after %s", second, first)
		}
		r.set.Restamp(checkout)
		synctest.Wait()
		if v := r.publisher.Snapshot().Get(checkout).Version(); v != second {
			t.Errorf("restamped twice: %s", v)
		}
		r.stop()
	})
}

// A candidate computed from another base is offered once more from the right
// one; a refusal for good is reported and tried again.
func TestStaleCandidates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refuse atomic.Int64
		r := newRegion(t, func(c *Config) {
			publish := c.Publish
			c.Publish = func(now time.Time, cand views.Candidate) views.Result {
				if refuse.Add(-1) >= 0 {
					return views.Result{Outcome: views.Stale, Reason: "test", Held: cand.Base}
				}
				return publish(now, cand)
			}
		})
		r.start(Boot{Services: []registry.Change{rows(checkout, 1, 0, 0, 1, 2)}})
		time.Sleep(time.Second)
		refuse.Store(1)
		r.set.SubmitChange(removal(checkout, 2, registry.Deregistered, 1))
		r.expectListed(2)
		refuse.Store(2)
		r.set.SubmitChange(rows(checkout, 3, 0, 0, 3))
		r.expectListed(2)
		time.Sleep(2 * time.Second)
		r.expectListed(2, 3)
		if r.stale != 1 {
			t.Errorf("%d refusals reported, want 1", r.stale)
		}
		r.stop()
	})
}

func TestInspectAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := r.set.Inspect(ctx, checkout); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before the start: %v", err)
		}
		r.start(Boot{})
		r.stop()
		if _, _, err := r.set.Inspect(t.Context(), checkout); !errors.Is(err, ErrStopped) {
			t.Errorf("after the end: %v", err)
		}
		// Submitting to a Set that has stopped does nothing, and does not hang.
		r.say(health.NotServing, 1)
		r.set.SubmitRenewal(checkout, 1)
		r.set.SubmitChange(rows(checkout, 1, 0, 0, 1))
	})
}

// A start that is cancelled ends, is never complete, and saves nothing over
// what is stored.
func TestCancelledStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.set.Run(ctx, Boot{Services: []registry.Change{rows(checkout, 1, 0, 0, 1)}}); err != nil {
			t.Error(err)
		}
		if r.saves != 0 || r.completed != 0 {
			t.Errorf("%d saves, completed %d times", r.saves, r.completed)
		}
	})
}
