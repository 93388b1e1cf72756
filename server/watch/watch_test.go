package watch

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

func TestWatchFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.publish("a", 1)
		r.publish("b", 1)
		one, all := r.open(cart, filterOf("a", "nothing")), r.open(cart, &viewv1.Filter{FilterId: 9})
		one.saw("a", "@7.2 complete 1")
		all.saw("a", "b", "@7.2 complete 9")
		r.publish("a", 2)
		one.saw("a", "@7.3")
		all.saw("a", "@7.3")
		r.publish("b", 2)
		one.saw()
		all.saw("b", "@7.4")
		r.publish("nothing", 0)
		one.saw("nothing", "@7.5")
		all.saw("nothing", "@7.5")
		r.publish("a", -1)
		one.saw("-a", "@7.6")
		all.saw("-a", "@7.6")
		r.publish("b", 3)
		time.Sleep(bookmarkEvery)
		one.saw("@7.7") // nothing of its own, and still how far the region has come
		all.saw("b", "@7.7")
	})
}

func TestFilterChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		for _, s := range []string{"a", "b", "c"} {
			r.publish(s, 1)
		}
		c := r.open(cart, filterOf("a", "b"))
		c.saw("a", "b", "@7.3 complete 1")
		f := filterOf("b", "c")
		f.FilterId = 2
		c.want(f)
		c.saw("-a", "c", "@7.3 complete 2")
		r.publish("a", 5)
		c.saw()
		c.want(&viewv1.Filter{FilterId: 3})
		c.saw("a", "@7.4 complete 3")
		if got := r.feed.Watchers(); len(got) != 1 || !got[0].All || got[0].Who.ID.String() != cart || got[0].Sent.Seq != 4 {
			t.Errorf("watchers %+v", got)
		}
		c.send(&viewv1.WatchRequest{Frame: &viewv1.WatchRequest_Applied{Applied: "7.4"}})
		synctest.Wait()
		if got := r.feed.Watchers()[0].Applied; got != (views.Version{Epoch: 7, Seq: 4}) {
			t.Errorf("applied %v", got)
		}
		c.cancel()
		synctest.Wait()
		if got := r.feed.Watchers(); len(got) != 0 || len(r.feed.byName)+len(r.feed.wild)+len(r.feed.sources) != 0 {
			t.Errorf("left behind: %+v", got)
		}
	})
}

func TestDeltas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.publish("a", 20)
		f := filterOf("a")
		f.AcceptDeltas = true
		c := r.open(cart, f)
		c.saw("a", "@7.1 complete 1")
		r.publish("a", 21)
		c.saw("~a", "@7.2")
		r.publish("a", 2) // more goes than stays: whole
		c.saw("a", "@7.3")
	})
}

// TestWhatIsSaidOfAView: confidence, guard, states, weights and capability reach
// a mirror whole and by delta.
func TestWhatIsSaidOfAView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		n := views.Name{Namespace: "shop", Service: "a"}
		v := &views.View{Name: n, ListedCount: 20, Confidence: views.ConfidenceSingleClass}
		for uid := range 20 {
			v.Members = append(v.Members, &views.Member{UID: views.UID(uid + 1), Endpoint: views.Endpoint{Host: "h"}, BaseWeight: 100,
				Weight: 100, State: views.Eligible, Listed: true, Capability: "probed"})
		}
		r.feed.Publish(r.offer(views.Candidate{Name: n, View: v}))
		f := filterOf("a")
		f.AcceptDeltas = true
		c := r.open(cart, f)
		c.saw("a", "@7.1 complete 1")
		if got := c.held[n]; got.Confidence != views.ConfidenceSingleClass || got.Members[0].Capability != "probed" {
			t.Errorf("view %+v, member %+v", got, got.Members[0])
		}
		next := *v
		next.Confidence, next.Guard = views.ConfidenceDegraded, views.Guard{Tripped: true, Zones: []string{"a"}, Floor: 50, Serving: 19, Members: 20}
		next.Members = slices.Clone(v.Members)
		worse := *v.Members[3]
		worse.Weight, worse.State, worse.LastResort, worse.Capability = 1, views.Ineligible, true, "silent"
		next.Members[3] = &worse
		r.feed.Publish(r.offer(views.Candidate{Name: n, View: &next}))
		synctest.Wait()
		c.saw("~a", "@7.2")
		got := c.held[n]
		m := got.Members[3]
		if got.Confidence != views.ConfidenceDegraded || !got.Guard.Tripped || got.Guard.Serving != 19 ||
			m.Weight != 1 || m.State != views.Ineligible || !m.LastResort || m.Capability != "silent" {
			t.Errorf("view %+v, member %+v", got, m)
		}
	})
}

func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		for _, s := range []string{"a", "b", "c"} {
			r.publish(s, 1)
		}
		c := r.open(cart, &viewv1.Filter{})
		c.saw("a", "b", "c", "@7.3 complete 0")
		c.cancel()
		r.publish("b", 2)
		r.publish("c", -1)
		r.publish("d", 1)
		// By token: only what changed since.
		again := r.open(cart, &viewv1.Filter{ResumeFrom: c.token})
		again.saw("-c", "b", "d", "@7.6 complete 0")
		r.publish("a", 2)
		again.saw("a", "@7.7")
		// A token that tells nothing here: everything, after a resync.
		for _, token := range []string{"6.3", "7.99", "9.1"} {
			r.open(cart, &viewv1.Filter{ResumeFrom: token}).saw("resync", "a", "b", "d", "@7.7 complete 0")
		}
		// By what is held: the same is left out, what is gone is removed.
		held := []*viewv1.Held{
			{Service: "shop/a", EndpointVersion: "7.7", ConfigVersion: "7.1"},
			{Service: "shop/b", EndpointVersion: "7.2", ConfigVersion: "7.2"},
			{Service: "shop/c", EndpointVersion: "7.3", ConfigVersion: "7.3"},
		}
		r.open(cart, &viewv1.Filter{Held: held, ResumeFrom: "6.1"}).saw("b", "-c", "d", "@7.7 complete 0")
		// With another policy a token is worth nothing.
		last := again.token
		r.policy.Store(&authz.Policy{TrustDomain: "example.org", Default: authz.WholeTrustDomain, Generation: 2})
		r.feed.PolicyChanged()
		r.open(cart, &viewv1.Filter{ResumeFrom: last}).saw("resync", "a", "b", "d", "@7.7 complete 0")
	})
}

// TestResumeDuringPublication: what is published between the reading of the ring
// and that of the views is not taken for something that the client holds.
func TestResumeDuringPublication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *region
		between := func() {}
		r = newRegion(t, func(c *Config) {
			since := c.Since
			c.Since = func(v views.Version) ([]views.Change, views.Version, bool) {
				defer between()
				return since(v)
			}
		})
		r.publish("a", 1)
		first := r.open(cart, &viewv1.Filter{})
		first.saw("a", "@7.1 complete 0")
		first.cancel()
		synctest.Wait()
		between = func() {
			between = func() {}
			r.swap("a", 2)
		}
		r.open(cart, &viewv1.Filter{ResumeFrom: first.token}).saw("a", "@7.2 complete 0")
	})
}

// TestResumeOverRestart: the ring may reach over a start, but not what the
// caller was allowed to see before it.
func TestResumeOverRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := views.Name{Namespace: "shop", Service: "a"}
		r := newRegionFrom(t, views.PublisherConfig{Epoch: 7, Recent: []views.Change{
			{Version: views.Version{Epoch: 6, Seq: 1}, Name: a}, {Version: views.Version{Epoch: 6, Seq: 2}, Name: a}}}, nil)
		r.publish("a", 1)
		if _, _, ok := r.p.Since(views.Version{Epoch: 6, Seq: 2}); !ok {
			t.Fatal("the ring does not reach over the start")
		}
		r.open(cart, &viewv1.Filter{ResumeFrom: "6.2"}).saw("resync", "a", "@7.1 complete 0")
	})
}

func TestScope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused []string
		r := newRegion(t, func(c *Config) {
			c.Events.Refused = func(_ identity.Principal, n views.Name, _ string) { refused = append(refused, n.String()) }
		})
		r.publish("a", 1)
		r.publish("b", 1)
		const stranger = "spiffe://example.org/ns/bank/sa/teller"
		all, named := r.open(stranger, &viewv1.Filter{}), r.open(stranger, filterOf("a", "ghost"))
		all.saw("a", "b", "@7.2 complete 0")
		named.saw("a", "@7.2 complete 1")
		// The policy is replaced: what was seen is taken away, without a publication.
		only := func(service string) *authz.Policy {
			return &authz.Policy{TrustDomain: "example.org", Grants: []authz.Grant{{
				Caller: identity.Pattern{Kind: identity.AnyCaller}, Callee: authz.Callee{Namespace: "shop", Name: service}}}}
		}
		r.policy.Store(only("b"))
		r.feed.PolicyChanged()
		all.saw("-a", "@7.2")
		named.saw("-a", "@7.2")
		r.publish("a", 2)
		all.saw()
		named.saw() // nothing of it, as for a name that does not exist
		if !slices.Contains(refused, "shop/a") || slices.Contains(refused, "shop/ghost") {
			t.Errorf("refused %q", refused)
		}
		r.policy.Store(only("a"))
		r.feed.PolicyChanged()
		all.saw("-b", "a", "@7.3")
		named.saw("a", "@7.3")
	})
}

// TestStuckReader: a client that does not read is ended, and nobody else waits
// for it.
func TestStuckReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		r.publish("big", 2000) // beyond any window
		stuck := r.openMute(cart)
		stuck.want(&viewv1.Filter{})
		synctest.Wait()
		other := r.open(cart, filterOf("small"))
		other.saw("@7.1 complete 1")
		start := time.Now()
		for n := range 50 {
			r.publish("small", n)
			other.saw("small", fmt.Sprintf("@7.%d", n+2))
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("the others waited %v", took)
		}
		go stuck.follow2()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := r.feed.Watchers(); len(got) != 1 {
			t.Errorf("%d streams are left, want the other's", len(got))
		}
	})
}

// follow2 waits for the end of the stream without reading a message.
func (c *client) follow2() { <-c.stream.Context().Done() }

// TestWithdrawalsFirst: what is withdrawn while a large answer is under way goes
// ahead of what is still to be sent.
func TestWithdrawalsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		for n := range 30 {
			r.publish(fmt.Sprintf("s%02d", n), 100)
		}
		c := r.openMute(cart)
		c.want(&viewv1.Filter{})
		synctest.Wait() // stuck in the middle of the answer
		r.publish("s00", 10)
		r.publish("s29", 10)
		r.publish("s28", 120)
		go c.follow()
		synctest.Wait()
		first, last := slices.Index(c.log, "s29"), slices.Index(c.log, "s28")
		again := slices.Index(c.log[1:], "s00") + 1
		if c.log[0] != "s00" || first > 20 || again > 20 || last < 25 {
			t.Errorf("order: %q", c.log)
		}
		if !slices.Equal(c.log[len(c.log)-1:], []string{"@7.33"}) {
			t.Errorf("last: %q", c.log[len(c.log)-2:])
		}
		if d := views.Verify(r.p.Snapshot(), c.held); len(d) > 0 {
			t.Errorf("holds something else: %+v", d)
		}
	})
}

// TestCompleteThrough: a bookmark covers what was published before it, also
// where the Feed is told later, in another order.
func TestCompleteThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		c := r.open(cart, &viewv1.Filter{})
		c.saw("@7.0 complete 0")
		first, second := r.swap("a", 1), r.swap("b", 1)
		r.feed.Publish(second)
		c.saw("a", "b", "@7.2")
		r.feed.Publish(first)
		c.saw()
	})
}

// TestRingLeftBehind: a stream that was stuck for longer than the ring reaches
// compares everything.
func TestRingLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forget := false
		r := newRegion(t, func(c *Config) {
			since := c.Since
			c.Since = func(v views.Version) ([]views.Change, views.Version, bool) {
				changes, through, ok := since(v)
				if forget {
					return nil, through, false
				}
				return changes, through, ok
			}
		})
		r.publish("a", 1)
		r.publish("b", 1)
		c := r.open(cart, &viewv1.Filter{})
		c.saw("a", "b", "@7.2 complete 0")
		r.swap("a", -1)
		r.swap("b", 2)
		r.swap("c", 1)
		forget = true
		r.feed.Publish(r.swap("d", 1))
		c.saw("-a", "b", "c", "d", "@7.6")
	})
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, func(c *Config) { c.MaxFilter, c.StreamsPerSource = 2, 2 })
		r.open("", filterOf("a")).failed(codes.Unauthenticated, status.NoIdentity)
		r.open(cart, filterOf("a", "b", "c")).failed(codes.ResourceExhausted, status.LimitExceeded)
		r.open(cart, filterOf("UPPER")).failed(codes.InvalidArgument, status.InvalidField)
		r.open(cart, &viewv1.Filter{NodeId: strings.Repeat("n", 257)}).failed(codes.InvalidArgument, status.InvalidField)
		r.open(cart, &viewv1.Filter{ResumeFrom: "x"}).failed(codes.InvalidArgument, status.InvalidField)
		r.open(cart, &viewv1.Filter{Held: []*viewv1.Held{{Service: "shop/a"}}}).failed(codes.InvalidArgument, status.InvalidField)
		early := r.open(cart, nil)
		early.send(&viewv1.WatchRequest{Frame: &viewv1.WatchRequest_Applied{Applied: "7.1"}})
		early.failed(codes.InvalidArgument, status.InvalidRequest)
		silent := r.open(cart, nil)
		silent.send(&viewv1.WatchRequest{})
		silent.failed(codes.InvalidArgument, status.InvalidRequest)

		one, two := r.open(cart, filterOf("a")), r.open(cart, filterOf("a"))
		r.open(cart, filterOf("a")).failed(codes.ResourceExhausted, status.LimitExceeded)
		other := r.open("spiffe://example.org/ns/shop/sa/other", filterOf("a"))
		other.saw("@7.0 complete 1")
		if err := one.stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		one.failed(codes.Unknown, 0) // io.EOF: the stream ended well
		if !errors.Is(one.err, io.EOF) {
			t.Errorf("ended with %v", one.err)
		}
		r.open(cart, filterOf("a")).saw("@7.0 complete 1")
		r.feed.Close()
		two.failed(codes.Unavailable, status.Stopping)
		r.open(cart, filterOf("a")).failed(codes.Unavailable, status.Stopping)
		r.feed.Close()
	})
}

func TestNotComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, func(c *Config) { c.Snapshot = func() *views.Snapshot { return views.NewSnapshot(false) } })
		r.open(cart, filterOf("a")).failed(codes.Unavailable, status.ViewsLoading)
	})
}

// TestConvergence: clients of every kind that come, go, resume and change their
// filters hold what the Snapshot says, whenever nothing moves.
func TestConvergence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, nil)
		seed := uint32(1)
		roll := func(n int) int { seed = seed*1664525 + 1013904223; return int(seed>>8) % n }
		clients := []*client{r.open(cart, &viewv1.Filter{}), r.open(cart, &viewv1.Filter{AcceptDeltas: true})}
		for step := range 400 {
			switch roll(10) {
			case 0:
				i := roll(len(clients))
				old := clients[i]
				old.cancel()
				<-old.done
				f := &viewv1.Filter{ResumeFrom: old.token, AcceptDeltas: roll(2) == 0}
				if old.token == "" || roll(2) == 0 {
					f.ResumeFrom, f.Held = "", old.holds()
				}
				next := r.openMute(cart)
				next.held, next.token = old.held, old.token
				next.want(f)
				go next.follow()
				clients[i] = next
			case 1:
				c := clients[roll(len(clients))]
				f := filterOf("s1", "s2")
				f.FilterId = narrow
				c.want(f)
				c.want(&viewv1.Filter{AcceptDeltas: roll(2) == 0})
				synctest.Wait() // who narrows a filter has no token until it is answered
			default:
				name := fmt.Sprintf("s%d", roll(8))
				members := step%50 + 1
				if roll(6) == 0 && r.p.Snapshot().Get(views.Name{Namespace: "shop", Service: name}) != nil {
					members = -1
				}
				r.publish(name, members)
			}
			if roll(4) > 0 {
				continue
			}
			synctest.Wait()
			for i, c := range clients {
				if d := views.Verify(r.p.Snapshot(), c.held); len(d) > 0 {
					t.Fatalf("step %d, client %d: %v %s; saw %q", step, i, d[0].Name, d[0].Reason, c.log)
				}
				c.log = nil
			}
		}
	})
}
