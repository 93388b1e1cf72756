package shard

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

var (
	probed  = registry.ClassSet(0).With(registry.ClassProbe)
	counted = registry.ClassSet(0).With(registry.ClassCallers)
)

// zoned is rows with the zones of the instances.
func zoned(n registry.Name, revision uint64, supplies registry.ClassSet, zones map[registry.UID]string) registry.Change {
	c := rows(n, revision, 0, supplies)
	for uid, zone := range zones {
		one := rows(n, revision, 0, supplies, uid).Instances[0]
		one.Row.Zone = zone
		c.Instances = append(c.Instances, one)
	}
	c.Contract = c.Contract.WithDefaults()
	return c
}

var probers = []health.Prober{{Name: "pa", Zone: "za"}, {Name: "pb", Zone: "zb"}}

// probe lets time pass in seconds, while each prober says of each instance what
// see makes of it.
func (r *region) probe(d time.Duration, n registry.Name, uids []registry.UID, see func(health.Prober, registry.UID) health.ProbeResult) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, p := range probers {
			var batch []health.Sample
			for _, uid := range uids {
				batch = append(batch, health.Sample{UID: uid, Class: registry.ClassProbe, At: time.Now(), Prober: p, Result: see(p, uid)})
			}
			r.set.Submit(n, batch)
		}
		time.Sleep(time.Second)
	}
	synctest.Wait()
}

func good(health.Prober, registry.UID) health.ProbeResult { return health.ProbeOK }

// A prober that fails everything everywhere is blind: a person hears of it, its
// word takes nobody out, and it speaks again when it sees.
func TestABlindProberTakesNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stances []*health.Stance
		var incidents []string
		var mu sync.Mutex
		r := newRegion(t, func(c *Config) {
			c.Events.Stance = func(s *health.Stance) { mu.Lock(); defer mu.Unlock(); stances = append(stances, s) }
			c.Events.ObserverIncident = func(i health.ObserverIncident) {
				mu.Lock()
				defer mu.Unlock()
				incidents = append(incidents, fmt.Sprintf("%s %s %v", i.Kind, i.Zone, i.Over))
			}
		})
		zones := map[registry.UID]string{1: "za", 2: "za", 3: "zb", 4: "zb", 5: "zc", 6: "zc"}
		uids := []registry.UID{1, 2, 3, 4, 5, 6}
		r.start(Boot{Services: []registry.Change{zoned(checkout, 1, probed, zones)}})
		r.probe(20*time.Second, checkout, uids, good)
		r.expectListed(uids...)
		if len(incidents) > 0 || r.set.Stance() != nil && len(r.set.Stance().Blind) > 0 {
			t.Fatalf("all is well, and yet %v, %+v", incidents, r.set.Stance())
		}
		r.probe(30*time.Second, checkout, uids, func(p health.Prober, _ registry.UID) health.ProbeResult {
			if p.Name == "pa" {
				return health.ProbeTimeout
			}
			return health.ProbeOK
		})
		r.expectListed(uids...)
		if s := r.set.Stance(); s == nil || !s.Blind["pa"] || s.Blind["pb"] || stances[len(stances)-1] != s {
			t.Errorf("stance %+v, told %d times", s, len(stances))
		}
		if !slices.Equal(incidents, []string{"blind-probers za false"}) {
			t.Errorf("incidents %v", incidents)
		}
		// A service that comes now is judged by the same stance.
		late := registry.Name{Namespace: "shop", Service: "late"}
		r.set.SubmitChange(zoned(late, 2, probed, map[registry.UID]string{11: "za"}))
		r.probe(5*time.Second, late, []registry.UID{11}, func(p health.Prober, _ registry.UID) health.ProbeResult {
			if p.Name == "pa" {
				return health.ProbeTimeout
			}
			return health.ProbeOK
		})
		if i, ok, err := r.set.Inspect(context.Background(), late); err != nil || !ok || !i.Instances[0].Verdict.Member || i.Instances[0].Verdict.State != health.Eligible {
			t.Errorf("the new service: %v, %v, %+v", ok, err, i.Instances)
		}
		r.probe(60*time.Second, checkout, uids, good)
		if s := r.set.Stance(); s.Blind["pa"] {
			t.Errorf("it sees again: %+v", s)
		}
		// What the late one said last is silence by now, and no sight at all.
		r.expectListed(uids...)
		r.stop()
	})
}

// Every tick's withdrawals are counted once, over all shards: when a fifth of the
// region goes by observation the brake holds the rest back, until an operator
// says otherwise.
func TestTheBrakeHoldsOverShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t, func(c *Config) { c.Shards = 3 })
		var boot Boot
		var names []registry.Name
		var uids []registry.UID
		for k := range registry.UID(10) {
			n := registry.Name{Namespace: "shop", Service: fmt.Sprintf("s%d", k)}
			zones := make(map[registry.UID]string)
			for i := range registry.UID(24) {
				uid := k*100 + i + 1
				zones[uid] = fmt.Sprintf("z%d", i%2)
				uids = append(uids, uid)
			}
			names = append(names, n)
			boot.Services = append(boot.Services, zoned(n, 1, probed, zones))
		}
		r.start(boot)
		// Two of three of every service fail, whoever looks: neither the probers nor
		// a zone are to blame.
		see := good
		for second := range 50 {
			if second == 15 {
				see = func(_ health.Prober, uid registry.UID) health.ProbeResult {
					if uid%3 != 0 {
						return health.ProbeFailed
					}
					return health.ProbeOK
				}
			}
			for _, n := range names {
				for _, p := range probers {
					var batch []health.Sample
					for _, uid := range uids {
						if n == names[uid/100] {
							batch = append(batch, health.Sample{UID: uid, Class: registry.ClassProbe, At: time.Now(), Prober: p, Result: see(p, uid)})
						}
					}
					r.set.Submit(n, batch)
				}
				time.Sleep(100 * time.Millisecond) // not all within one tick
			}
		}
		synctest.Wait()
		s := r.set.Stance()
		if s == nil || !s.Braked {
			t.Fatalf("stance %+v", s)
		}
		out := func() (n int) {
			for _, name := range names {
				i, _, err := r.set.Inspect(context.Background(), name)
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range i.Instances {
					if x.Verdict.State == health.Ineligible {
						n++
					}
				}
			}
			return n
		}
		held := out()
		if held < 48 || held >= 160 {
			t.Errorf("%d of the 160 that fail are out while the brake holds: %s", held, s.BrakeDetail)
		}
		if !r.set.ReleaseBrake() {
			t.Error("it was not engaged")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if now := out(); now != 160 {
			t.Errorf("%d of 160 are out after its release, %d before", now, held)
		}
		if r.set.ReleaseBrake() {
			t.Error("released twice")
		}
		r.stop()
	})
}

// report is one caller's counts on instances, 50 calls each.
func callerReport(who string, failed map[registry.UID]bool, uids ...registry.UID) *health.Outcomes {
	o := &health.Outcomes{Reporter: health.Reporter{Identity: identity.MustParse("spiffe://t/ns/shop/sa/" + who)}, At: time.Now(), Interval: 2 * time.Second}
	for _, uid := range uids {
		e := health.Outcome{UID: uid, Issued: 50, OK: 50}
		if failed[uid] {
			e.OK, e.Failed = 25, 25
		}
		o.Entries = append(o.Entries, e)
	}
	return o
}

// What callers count reaches the evaluator and takes out the one that fails them.
func TestOutcomesReachTheEvaluator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var observed, refused int
		r := newRegion(t, func(c *Config) {
			c.Events.Observed = func(n int) { observed += n }
			c.Events.OutcomesRefused = func(n int) { refused += n }
		})
		uids := []registry.UID{1, 2, 3, 4}
		r.start(Boot{Services: []registry.Change{zoned(checkout, 1, counted, map[registry.UID]string{1: "za", 2: "za", 3: "za", 4: "za"})}})
		call := func(d time.Duration, failed map[registry.UID]bool) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(2 * time.Second) {
				for _, who := range []string{"a", "b", "c"} {
					r.set.SubmitOutcomes(checkout, callerReport(who, failed, uids...))
				}
			}
			synctest.Wait()
		}
		call(80*time.Second, nil)
		r.expectListed(uids...)
		before := observed
		if before != 40*3*4 || refused != 0 {
			t.Errorf("%d counts observed, %d refused", before, refused)
		}
		call(10*time.Second, map[registry.UID]bool{3: true})
		r.expectListed(1, 2, 4)
		r.set.SubmitOutcomes(checkout, callerReport("a", nil, 77))
		time.Sleep(time.Second)
		synctest.Wait()
		if refused != 1 {
			t.Errorf("%d refused of an instance that never was", refused)
		}
		r.stop()
	})
}

// A report whose counts have no room is dropped whole and counted; refused
// connections are kept, the newest of each instance and prober.
func TestTheInboxIsBoundedByCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newInbox(10)
		if n := b.putOutcomes(checkout, callerReport("a", nil, 1, 2, 3, 4, 5, 6, 7)); n != 0 {
			t.Errorf("%d dropped with room", n)
		}
		if n := b.putOutcomes(checkout, callerReport("a", nil, 1, 2, 3, 4)); n != 4 {
			t.Errorf("%d dropped of four without room", n)
		}
		select {
		case <-b.wake:
		default:
			t.Error("an inbox that is more than half full rings")
		}
		now := time.Now()
		refuse := func(uid registry.UID, prober string, at time.Duration) health.Sample {
			return health.Sample{UID: uid, Class: registry.ClassProbe, Result: health.ProbeRefused, Prober: health.Prober{Name: prober}, At: now.Add(at)}
		}
		ordinary := health.Sample{UID: 1, Class: registry.ClassProbe, Result: health.ProbeOK, At: now}
		if n := b.putSamples(checkout, []health.Sample{ordinary, ordinary, ordinary, ordinary, refuse(1, "pa", 0), refuse(1, "pa", 2), refuse(1, "pa", 1), refuse(1, "pb", 0), refuse(2, "pa", 0)}); n != 1 {
			t.Errorf("%d dropped, one ordinary result has no room", n)
		}
		d := b.take()
		m := d.mail[checkout]
		if len(m.outcomes) != 1 || len(m.outcomes[0].Entries) != 7 || len(m.samples) != 3 || len(m.urgent) != 3 {
			t.Errorf("%d reports, %d samples, %d urgent", len(m.outcomes), len(m.samples), len(m.urgent))
		}
		if kept := m.urgent[urgentKey{1, 0, "pa"}]; !kept.At.Equal(now.Add(2)) {
			t.Errorf("kept %+v", kept)
		}
	})
}

// The inbox copies a report into memory that it uses again, and what comes later
// finds nothing of what was there.
func TestTheInboxUsesItsMemoryAgain(t *testing.T) {
	b := newInbox(1000)
	o := &health.Outcomes{Entries: make([]health.Outcome, 200)}
	s := []health.Sample{{UID: 1, Class: registry.ClassSelf, Status: health.NotServing}, {UID: 2, Class: registry.ClassSelf, Status: health.Serving, Degraded: []string{"db"}}}
	round := func() {
		b.putOutcomes(checkout, o)
		b.putSamples(checkout, s)
		b.putRenewal(checkout, 1, time.Unix(1, 0))
		b.giveBack(b.take())
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
	b.putOutcomes(checkout, &health.Outcomes{Entries: []health.Outcome{{UID: 9}}})
	m := b.take().mail[checkout]
	if len(m.outcomes) != 1 || !slices.Equal(m.outcomes[0].Entries, []health.Outcome{{UID: 9}}) || len(m.samples)+len(m.urgent)+len(m.renewals) != 0 || m.change != nil {
		t.Errorf("after a round: %+v", m)
	}
}

// Reports that somebody called nobody have no counts, and are bounded all the same.
func TestEmptyReportsAreBounded(t *testing.T) {
	b := newInbox(100)
	for range 1000 {
		if n := b.putOutcomes(checkout, &health.Outcomes{}); n != 0 {
			t.Fatalf("%d counts of none were dropped", n)
		}
	}
	if n := len(b.take().mail[checkout].outcomes); n != 100 {
		t.Errorf("%d reports wait", n)
	}
}

// A flood leaves no room behind: large reports and many samples take their memory
// with them.
func TestTheInboxForgetsAFlood(t *testing.T) {
	b := newInbox(1 << 20)
	large := &health.Outcomes{Entries: make([]health.Outcome, 10*keptRoom)}
	for round := range 3 {
		for k := range 20 {
			n := registry.Name{Namespace: "shop", Service: fmt.Sprintf("s%d", k)}
			b.putOutcomes(n, large)
			b.putSamples(n, make([]health.Sample, 10*keptRoom))
			for range 2 * keptRoom {
				b.putOutcomes(n, &health.Outcomes{Entries: make([]health.Outcome, 1)})
			}
		}
		b.giveBack(b.take())
		for _, o := range b.spare {
			if cap(o.Entries) > keptRoom {
				t.Fatalf("round %d: a spare report has room for %d counts", round, cap(o.Entries))
			}
		}
		for _, m := range b.spareMail {
			if cap(m.samples) > keptRoom || cap(m.outcomes) > keptRoom {
				t.Fatalf("round %d: spare mail has room for %d samples and %d reports", round, cap(m.samples), cap(m.outcomes))
			}
		}
	}
	if len(b.spare) == 0 || len(b.spareMail) == 0 {
		t.Error("nothing is kept at all")
	}
}

// An inbox that fills between two ticks is taken in at once, and judged at the
// tick: nothing is dropped, and the evaluator is not asked more often.
func TestAFloodIsTakenInBetweenTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		observed := 0
		r := newRegion(t, func(c *Config) {
			c.Samples = 100
			c.Events.Observed = func(n int) { observed += n }
		})
		r.start(Boot{Services: []registry.Change{zoned(checkout, 1, counted, map[registry.UID]string{1: "za", 2: "za"})}})
		time.Sleep(time.Second)
		synctest.Wait()
		start := time.Now()
		for range 50 { // 1,000 counts between two ticks of an inbox of 100
			for range 10 {
				r.set.SubmitOutcomes(checkout, callerReport("a", nil, 1, 2))
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		if time.Since(start) >= 250*time.Millisecond {
			t.Fatal("the flood has to fit between two ticks")
		}
		if r.dropped != 0 || observed < 900 {
			t.Errorf("%d dropped, %d observed within %s", r.dropped, observed, time.Since(start))
		}
		r.stop()
	})
}

// Probers are told of every row and its contract, in order, before anything of
// the service is wished of them.
func TestProbersAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		var mu sync.Mutex
		note := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf(format, args...))
		}
		r := newRegion(t, func(c *Config) {
			c.Events.Changed = func(c registry.Change) { note("rows %d deleted %v", len(c.Instances), c.Service == nil) }
			c.Events.Contract = func(_ registry.Name, c registry.Contract, zone string) {
				note("contract %q %s", zone, c.Probe.Interval)
			}
			c.Events.Probing = func(_ registry.Name, p []health.Probing) {
				for _, w := range p {
					note("%s third %v gone %v", w.UID, w.Third, w.Gone)
				}
			}
		})
		r.start(Boot{Services: []registry.Change{zoned(checkout, 1, probed, map[registry.UID]string{1: "za", 2: "za", 3: "zb"})}})
		if want := []string{"rows 3 deleted false", `contract "" 2s`}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		told = nil
		r.probe(20*time.Second, checkout, []registry.UID{1, 2, 3}, good)
		r.probe(25*time.Second, checkout, []registry.UID{1, 2, 3}, func(p health.Prober, uid registry.UID) health.ProbeResult {
			if p.Name == "pa" && uid == 3 {
				return health.ProbeFailed
			}
			return health.ProbeOK
		})
		if !slices.Equal(told, []string{"i3 third true gone false"}) {
			t.Errorf("two disagree: told %q", told)
		}
		told = nil
		r.set.SubmitChange(registry.Change{Name: checkout, Revision: 9, Removal: registry.ServiceDeleted})
		time.Sleep(time.Second)
		synctest.Wait()
		if len(told) == 0 || told[0] != "rows 0 deleted true" {
			t.Errorf("deleted: told %q", told)
		}
		r.stop()
	})
}
