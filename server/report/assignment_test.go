package report_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/report"
)

// assigned checks that the probers hold exactly what the function of the set
// says, and returns how many targets there are of each.
func assigned(t *testing.T, w *world, uids []registry.UID, n int, all ...*prober) {
	t.Helper()
	set := w.service.Probers()
	for _, p := range all {
		want := 0
		for _, u := range uids {
			if is := set.Assigns(u, n, p.name); is {
				want++
				if p.targets[u.String()] == nil {
					t.Errorf("%s does not have %s", p.name, u)
				}
			}
		}
		if len(p.targets) != want {
			t.Errorf("%s has %d targets, the set of %d gives it %d", p.name, len(p.targets), set.Len(), want)
		}
	}
}

func uidsTo(n int) (all []registry.UID) {
	for u := range n {
		all = append(all, registry.UID(u+1))
	}
	return all
}

// TestAssignmentFollowsTheSet: three probers share forty targets; one falls
// silent and its targets go to the others after ten seconds; it comes back and
// has them again, and nothing else moves.
func TestAssignmentFollowsTheSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, uids := newWorld(limits.Reports{}), uidsTo(40)
		w.service.Changed(shop(uids...))
		w.service.Contract(cart, contract(registry.Probe{}), "")
		a, b, c := w.watch(t, "a", "za"), w.watch(t, "b", "zb"), w.watch(t, "c", "zc")
		alive(t, 2*time.Second, a, b, c)
		assigned(t, w, uids, 2, a, b, c)
		if w.probers.Load() != 3 || len(a.targets) == 0 || len(a.targets) == 40 || len(a.targets)+len(b.targets)+len(c.targets) != 80 {
			t.Fatalf("%d probers have %d, %d and %d targets", w.probers.Load(), len(a.targets), len(b.targets), len(c.targets))
		}
		before := len(a.targets)
		alive(t, 7*time.Second, a, b) // it was heard of two seconds ago
		if w.probers.Load() != 3 {
			t.Error("a prober left before ten seconds of silence were over")
		}
		alive(t, 4*time.Second, a, b)
		if w.probers.Load() != 2 || len(a.targets) != 40 || len(c.targets) != 0 {
			t.Errorf("%d probers, a has %d targets, the silent one %d", w.probers.Load(), len(a.targets), len(c.targets))
		}
		assigned(t, w, uids, 2, a, b, c)
		if got := c.report(t, ok, 1, 2, 3); got.GetAccepted() == 0 && w.service.Probers().Len() != 3 {
			t.Errorf("its word after a silence: %v", got)
		}
		alive(t, 2*time.Second, a, b, c)
		assigned(t, w, uids, 2, a, b, c)
		if last := a.messages[len(a.messages)-1]; len(a.targets) != before || len(last.GetTargets()) > 0 || len(last.GetRemovedUids()) != 40-before || last.GetFull() {
			t.Errorf("a has %d targets after all, was told to add %d and to drop %d", len(a.targets), len(last.GetTargets()), len(last.GetRemovedUids()))
		}
		for _, p := range []*prober{a, b, c} {
			p.stop()
		}
	})
}

// TestAProberThatIsNotToldLeaves: reports alone do not keep a prober at work,
// nor does a stream that came back in time make it go.
func TestAProberThatIsNotToldLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(limits.Reports{})
		w.service.Changed(shop(1))
		w.service.Contract(cart, contract(registry.Probe{}), "")
		a, b := w.watch(t, "a", "za"), w.watch(t, "b", "zb")
		if tally, err := w.probes(proberID("c"), &healthv1.ProbeBind{Instances: []string{"i1"}}, &healthv1.ProbeBatch{Instance: []uint32{0}, Result: []healthv1.ProbeResult{ok}}); err != nil || tally.GetOutOfScope() != 1 {
			t.Errorf("one that never watched: %v, %v", tally, err)
		}
		a.stop()
		alive(t, 8*time.Second, a, b)
		again := w.watch(t, "a", "za")
		alive(t, 8*time.Second, again, b)
		if w.service.Probers().Len() != 2 {
			t.Error("it was back in time")
		}
		again.stop()
		alive(t, 13*time.Second, again, b)
		if w.service.Probers().Len() != 1 || w.probers.Load() != 1 {
			t.Error("it watches no more")
		}
		b.stop()
	})
}

// TestTheFirstProberWaitsForAnother: after a start everything is not given to
// whoever is back first; when nobody of a second zone comes, it is.
func TestTheFirstProberWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(limits.Reports{})
		w.service.Changed(shop(uidsTo(4)...))
		w.service.Contract(cart, contract(registry.Probe{}), "")
		a := w.watch(t, "a", "za")
		alive(t, 9*time.Second, a)
		if len(a.messages) != 0 {
			t.Error("it was told before the others had time to come")
		}
		alive(t, 2*time.Second, a)
		if len(a.targets) != 4 {
			t.Errorf("it has %d targets", len(a.targets))
		}
		a.stop()

		w = newWorld(limits.Reports{})
		a, b := w.watch(t, "a", "za"), w.watch(t, "b", "zb")
		time.Sleep(600 * time.Millisecond)
		synctest.Wait()
		for _, p := range []*prober{a, b} {
			if len(p.messages) != 1 || !p.messages[0].GetFull() {
				t.Errorf("with two zones, without targets: %v", p.messages)
			}
			p.stop()
		}
	})
}

// TestCadence: what the contract says, ten seconds while callers decide, and a
// third prober where two disagree.
func TestCadence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(limits.Reports{})
		a, b := pair(t, w, 1)
		c := w.watch(t, "c", "zc")
		all := []*prober{a, b, c}
		has := func() (n int, probe *registryv1.Probe) {
			alive(t, time.Second, all...)
			for _, p := range all {
				if x := p.targets["i1"]; x != nil {
					n, probe = n+1, x.GetProbe()
				}
			}
			return n, probe
		}
		if n, p := has(); n != 2 || p.GetInterval().AsDuration() != 2*time.Second || p.GetTimeout().AsDuration() != time.Second {
			t.Errorf("%d probers, %v", n, p)
		}
		w.service.Probing(cart, []health.Probing{{UID: 1, Confirming: true}, {UID: 5, Third: true}})
		if n, p := has(); n != 2 || p.GetInterval().AsDuration() != 10*time.Second || p.GetTimeout().AsDuration() != time.Second {
			t.Errorf("confirming: %d probers, %v", n, p)
		}
		w.service.Probing(cart, []health.Probing{{UID: 1, Third: true}})
		if n, p := has(); n != 3 || p.GetInterval().AsDuration() != 2*time.Second {
			t.Errorf("with a third: %d probers, %v", n, p)
		}
		for _, p := range all {
			if got := p.report(t, ok, 1); got.GetAccepted() != 1 {
				t.Errorf("%s is one of three: %v", p.name, got)
			}
		}
		w.service.Probing(cart, []health.Probing{{UID: 1}})
		w.service.Contract(cart, contract(registry.Probe{Kind: registry.ProbeHTTP, Port: "web", Path: "/ok", Interval: 20 * time.Second, Timeout: 3 * time.Second}), "")
		w.service.Probing(cart, []health.Probing{{UID: 1, Confirming: true}})
		if n, p := has(); n != 2 || p.GetInterval().AsDuration() != 20*time.Second || p.GetPath() != "/ok" || a.port(b, c) != 80 {
			t.Errorf("another contract: %d probers, %v, port %d", n, p, a.port(b, c))
		}
		w.service.Contract(cart, contract(registry.Probe{Timeout: 700 * time.Millisecond}), "b")
		if _, p := has(); p.GetPath() != "/ok" {
			t.Errorf("a contract of another zone holds here: %v", p)
		}
		w.service.Contract(cart, contract(registry.Probe{Timeout: 700 * time.Millisecond}), "a")
		if _, p := has(); p.GetTimeout().AsDuration() != 700*time.Millisecond || p.GetInterval().AsDuration() != 10*time.Second || a.port(b, c) != 8080 {
			t.Errorf("a contract of this zone: %v, port %d", p, a.port(b, c))
		}
		for _, p := range all {
			p.stop()
		}
	})
}

// port is that of i1, as whoever has it was told.
func (p *prober) port(others ...*prober) uint32 {
	for _, p := range append(others, p) {
		if x := p.targets["i1"]; x != nil {
			return x.GetPort()
		}
	}
	return 0
}

// TestWhatIsProbed: by address, proof, profile and endpoint, in production and
// in dev.
func TestWhatIsProbed(t *testing.T) {
	at := func(addr string) func(*registry.InstanceChange) {
		return func(c *registry.InstanceChange) { c.Row.Endpoint.Addr = netip.MustParseAddr(addr) }
	}
	for name, row := range map[string]struct {
		change     func(*registry.InstanceChange)
		production string
		dev        string
	}{
		"an address":           {at("10.1.2.3"), "10.1.2.3:8080 probe", "10.1.2.3:8080 probe"},
		"its own number":       {func(c *registry.InstanceChange) { c.Row.Ports = []registry.PortNumber{{Name: "grpc", Number: 9}} }, "10.0.0.1:9 probe", "10.0.0.1:9 probe"},
		"loopback":             {at("127.0.0.1"), "", "127.0.0.1:8080 probe"},
		"loopback, mapped":     {at("::ffff:127.0.0.1"), "", "::ffff:127.0.0.1:8080 probe"},
		"loopback, v6":         {at("::1"), "", "::1:8080 probe"},
		"link-local":           {at("169.254.169.254"), "", "169.254.169.254:8080 probe"},
		"link-local, v6":       {at("fe80::1"), "", "fe80::1:8080 probe"},
		"metadata, v6":         {at("fd00:ec2::254"), "", "fd00:ec2::254:8080 probe"},
		"nowhere":              {at("0.0.0.0"), "", "0.0.0.0:8080 probe"},
		"a group":              {at("224.0.0.1"), "", "224.0.0.1:8080 probe"},
		"a host name":          {func(c *registry.InstanceChange) { c.Row.Endpoint = registry.Endpoint{Host: "db.example"} }, "db.example:8080 probe", "db.example:8080 probe"},
		"a url":                {func(c *registry.InstanceChange) { c.Row.Endpoint = registry.Endpoint{URL: "https://f.example"} }, "", ""},
		"no probes supplied":   {func(c *registry.InstanceChange) { c.Profile = registry.Profile{} }, "", ""},
		"not proved":           {func(c *registry.InstanceChange) { c.Row.Proof = registry.Unproved }, "10.0.0.1:8080 dial back", "10.0.0.1:8080 dial back"},
		"not proved, no probe": {func(c *registry.InstanceChange) { c.Row.Proof, c.Profile = registry.Unproved, registry.Profile{} }, "10.0.0.1:8080 dial back", "10.0.0.1:8080 dial back"},
		"nobody to be met":     {func(c *registry.InstanceChange) { c.Row.Proof, c.Row.Identity = registry.Unproved, identity.ID{} }, "", ""},
		"not proved, loopback": {func(c *registry.InstanceChange) {
			c.Row.Proof, c.Row.Endpoint.Addr = registry.Unproved, netip.MustParseAddr("127.0.0.1")
		}, "", "127.0.0.1:8080 dial back"},
		"not proved, external": {func(c *registry.InstanceChange) { c.Row.Proof, c.Profile.External = registry.Unproved, true }, "", ""},
	} {
		for mode, want := range map[bool]string{false: row.production, true: row.dev} {
			t.Run(fmt.Sprintf("%s, dev %v", name, mode), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(limits.Reports{})
					cfg := w.config(limits.Reports{})
					cfg.AnyAddress = mode
					w.service = report.New(cfg)
					c := shop(1)
					row.change(&c.Instances[0])
					w.service.Changed(c)
					w.service.Contract(cart, contract(registry.Probe{}), "")
					a, b := w.watch(t, "a", "za"), w.watch(t, "b", "zb")
					alive(t, time.Second, a, b)
					got := ""
					if x := a.targets["i1"]; x != nil {
						got = fmt.Sprintf("%s%s:%d", x.GetAddress(), x.GetHost(), x.GetPort())
						if x.GetProbe() != nil {
							got += " probe"
						}
						if x.GetDialBack() {
							got += " dial back"
						}
						if x.GetIdentity() != web.String() || x.GetService() != "shop/cart" || x.GetZone() != "a" {
							t.Errorf("told %v", x)
						}
					}
					if got != want {
						t.Errorf("%q, want %q", got, want)
					}
					a.stop()
					b.stop()
				})
			})
		}
	}
}

// TestDialBacks: an address is proved by whoever is to dial it, once; at most so
// many of one identity are dialled at a time, and the next when one is done.
func TestDialBacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limits.Default().Reports
		l.DialBacks = 2
		w := newWorld(l)
		a, b := pair(t, w, 9)
		unproved := shop(1, 2, 3, 4)
		for i := range unproved.Instances {
			unproved.Instances[i].Row.Proof = registry.Unproved
		}
		w.service.Changed(unproved)
		dialled := func() (uids []string) {
			alive(t, time.Second, a, b)
			for u, x := range a.targets {
				if x.GetDialBack() {
					uids = append(uids, u)
				}
			}
			slices.Sort(uids)
			return uids
		}
		if got := dialled(); !slices.Equal(got, []string{"i1", "i2"}) {
			t.Errorf("dialled: %v", got)
		}
		// One that is proved, one that is not its to dial, one that is not known.
		if _, err := w.probes(proberID("a"), &healthv1.ProbeBind{Instances: []string{"i2", "i9", "i99"}}, &healthv1.ProbeBatch{DialedBack: []uint32{0, 1, 2, 7}}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.probes(proberID("c"), &healthv1.ProbeBind{Instances: []string{"i1"}}, &healthv1.ProbeBatch{DialedBack: []uint32{0}}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(w.proved, []registry.UID{2}) {
			t.Errorf("proved: %v", w.proved)
		}
		w.service.Changed(shop(2))
		if got := dialled(); !slices.Equal(got, []string{"i1", "i3"}) || a.targets["i2"].GetProbe() == nil {
			t.Errorf("dialled after one is proved: %v", got)
		}
		gone := shop()
		gone.Instances = []registry.InstanceChange{{UID: 1, Removal: registry.LapsedOut}}
		w.service.Changed(gone)
		if got := dialled(); !slices.Equal(got, []string{"i3", "i4"}) {
			t.Errorf("dialled after one is gone: %v", got)
		}
		a.stop()
		b.stop()
	})
}

// TestWhoWasMet: a dial-back that meets another identity proves nothing and
// counts for nothing; what it met is kept to be told, of whoever was to dial.
func TestWhoWasMet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limits.Default().Reports
		l.DialBacks = 1
		w := newWorld(l)
		a, b := pair(t, w, 9)
		unproved := shop(1, 2)
		for i := range unproved.Instances {
			unproved.Instances[i].Row.Proof = registry.Unproved
		}
		w.service.Changed(unproved)
		alive(t, time.Second, a, b)
		if d, ok := w.service.DialBack(1); !ok || !d.Turn || d.Probers != 2 || !d.At.IsZero() {
			t.Errorf("before any: %+v, %v", d, ok)
		}
		if d, ok := w.service.DialBack(2); !ok || d.Turn {
			t.Errorf("one that waits: %+v, %v", d, ok)
		}
		for _, uid := range []registry.UID{9, 99} {
			if _, ok := w.service.DialBack(uid); ok {
				t.Errorf("%s is to be dialled", uid)
			}
		}
		clear(w.results)
		wrong := healthv1.ProbeResult_PROBE_RESULT_WRONG_IDENTITY
		if got := a.report(t, wrong, 1); got.GetAccepted() != 1 || len(w.got) != 0 {
			t.Errorf("tally %v, submitted %+v", got, w.got)
		}
		if d, _ := w.service.DialBack(1); d.Prober != (health.Prober{Name: "a", Zone: "za"}) || !d.At.Equal(time.Now()) {
			t.Errorf("after one: %+v", d)
		}
		// An ordinary result about it, and the word of somebody who is not at work.
		if got := b.report(t, ok, 1); got.GetOutOfScope() != 1 {
			t.Errorf("a probe of it: %v", got)
		}
		if tally, _ := w.probes(proberID("c"), &healthv1.ProbeBind{Instances: []string{"i1"}}, &healthv1.ProbeBatch{Instance: []uint32{0}, Result: []healthv1.ProbeResult{wrong}}); tally.GetOutOfScope() != 1 {
			t.Errorf("a stranger: %v", tally)
		}
		if d, _ := w.service.DialBack(1); d.Prober.Name != "a" || len(w.proved) != 0 {
			t.Errorf("after all: %+v, proved %v", d, w.proved)
		}
		moved := shop(1)
		moved.Instances[0].Row.Proof = registry.Unproved
		moved.Instances[0].Row.Endpoint.Addr = netip.MustParseAddr("10.7.7.7")
		w.service.Changed(moved)
		if d, ok := w.service.DialBack(1); !ok || !d.At.IsZero() {
			t.Errorf("at another address: %+v, %v", d, ok)
		}
		a.stop()
		b.stop()
	})
}

// TestChangesOfTargets: rows that come, change and go, a service that is deleted
// and one whose row does not decode, and who is a member.
func TestChangesOfTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(limits.Reports{})
		cfg := w.config(limits.Reports{})
		cfg.Epoch = 3
		cfg.Member = func(_ registry.Name, u registry.UID) bool { return u == 1 }
		w.service = report.New(cfg)
		a, b := pair(t, w, 1, 2)
		if a.generation>>32 != 3 || !a.targets["i1"].GetMember() || a.targets["i2"].GetMember() {
			t.Errorf("generation %x, %v", a.generation, a.targets)
		}
		before := len(a.messages)
		alive(t, 10*time.Second, a, b)
		if len(a.messages) != before {
			t.Errorf("told %d times of nothing", len(a.messages)-before)
		}
		w.service.Transitions(cart, []health.Transition{{UID: 2, Member: true}, {UID: 1, Member: false}, {UID: 77}})
		for range 10 { // many changes are one message
			w.service.Changed(shop(3, 4))
		}
		alive(t, time.Second, a, b)
		if len(a.messages) != before+1 || len(a.targets) != 4 || a.targets["i1"].GetMember() || !a.targets["i2"].GetMember() || a.messages[before].GetFull() {
			t.Errorf("%d messages, %v", len(a.messages)-before, a.targets)
		}
		before = len(a.messages)
		same := shop(3)
		same.Instances[0].Row.Weight = 7
		w.service.Changed(same)
		w.service.Contract(cart, contract(registry.Probe{Path: "/other"}), "a")
		w.service.Contract(cart, contract(registry.Probe{}), "")
		alive(t, time.Second, a, b)
		if len(a.messages) != before {
			t.Errorf("told of what is nothing to a prober: %v", a.messages[before:])
		}
		moved := shop()
		moved.Service.Ports = []registry.Port{{Name: "grpc", Number: 7070, Protocol: registry.GRPC}}
		w.service.Changed(moved)
		w.service.Changed(registry.Change{Name: cart, DamagedRows: 1})
		alive(t, time.Second, a, b)
		if len(a.targets) != 4 || a.targets["i4"].GetPort() != 7070 {
			t.Errorf("ports moved: %v", a.targets["i4"])
		}
		w.service.Changed(registry.Change{Name: cart, Removal: registry.ServiceDeleted})
		w.service.Changed(registry.Change{Name: registry.Name{Namespace: "x", Service: "y"}, Removal: registry.ServiceDeleted})
		alive(t, time.Second, a, b)
		if len(a.targets) != 0 || len(b.targets) != 0 {
			t.Errorf("deleted: %v", a.targets)
		}
		w.service.Changed(shop(1))
		w.service.Contract(cart, contract(registry.Probe{Port: "none"}), "")
		alive(t, time.Second, a, b)
		if len(a.targets) != 0 {
			t.Errorf("no such port: %v", a.targets)
		}
		a.stop()
		b.stop()
	})
}

// TestALargeAssignmentComesInParts: the first is full, none is longer than said,
// all have one generation.
func TestALargeAssignmentComesInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limits.Default().Reports
		l.AssignmentPart = 30
		w := newWorld(l)
		a, b := pair(t, w, uidsTo(100)...)
		if len(a.messages) != 4 || len(a.targets) != 100 {
			t.Errorf("%d messages, %d targets", len(a.messages), len(a.targets))
		}
		for i, m := range a.messages {
			if m.GetFull() != (i == 0) || len(m.GetTargets()) > 30 || m.GetGeneration() != a.generation {
				t.Errorf("part %d: full %v, %d targets", i, m.GetFull(), len(m.GetTargets()))
			}
		}
		a.stop()
		b.stop()
	})
}

// TestProbersOfADeadZone: their targets go to others, unless there are none.
func TestProbersOfADeadZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, uids := newWorld(limits.Reports{}), uidsTo(20)
		a, b := pair(t, w, uids...)
		c := w.watch(t, "c", "zc")
		alive(t, time.Second, a, b, c)
		w.service.Stand(&health.Stance{Leaving: map[string]bool{"zc": true}})
		alive(t, time.Second, a, b, c)
		if w.probers.Load() != 2 || len(c.targets) != 0 || len(a.targets) != 20 || len(b.targets) != 20 {
			t.Errorf("%d probers: %d, %d, %d targets", w.probers.Load(), len(a.targets), len(b.targets), len(c.targets))
		}
		w.service.Stand(&health.Stance{Leaving: map[string]bool{"za": true, "zb": true, "zc": true}})
		alive(t, time.Second, a, b, c)
		assigned(t, w, uids, 2, a, b, c)
		if w.probers.Load() != 3 {
			t.Errorf("%d probers when all zones are dead", w.probers.Load())
		}
		for _, p := range []*prober{a, b, c} {
			p.stop()
		}
	})
}
