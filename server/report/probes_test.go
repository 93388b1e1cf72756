package report_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/report"
	"github.com/sightlinedev/sightline/server/status"
)

func proberID(name string) identity.ID {
	return identity.MustParse("spiffe://prod.example/sightline/prober/" + name)
}

// prober is an open WatchAssignment stream, and what it adds up to.
type prober struct {
	w          *world
	name       string
	targets    map[string]*healthv1.Target
	generation uint64
	messages   []*healthv1.WatchAssignmentResponse
	cancel     context.CancelFunc
	ended      chan error
}

func (w *world) watch(t *testing.T, name, zone string) *prober {
	ctx, cancel := context.WithCancel(caller(proberID(name), "127.0.0.3"))
	p := &prober{w: w, name: name, targets: make(map[string]*healthv1.Target), cancel: cancel, ended: make(chan error, 1)}
	s := &assignmentStream{ctx: ctx, send: func(r *healthv1.WatchAssignmentResponse) {
		if r.GetGeneration() < p.generation {
			t.Errorf("%s: generation %d after %d", name, r.GetGeneration(), p.generation)
		}
		p.generation, p.messages = r.GetGeneration(), append(p.messages, r)
		if r.GetFull() {
			clear(p.targets)
		}
		for _, u := range r.GetRemovedUids() {
			delete(p.targets, u)
		}
		for _, x := range r.GetTargets() {
			p.targets[x.GetUid()] = x
		}
	}}
	go func() {
		p.ended <- w.service.WatchAssignment(&healthv1.WatchAssignmentRequest{Zone: zone}, s)
	}()
	synctest.Wait()
	return p
}

func (p *prober) stop() {
	p.cancel()
	<-p.ended
}

// report sends one batch about the bound ids; without ids an empty one.
func (p *prober) report(t *testing.T, r healthv1.ProbeResult, uids ...registry.UID) *healthv1.Tally {
	t.Helper()
	bound, batch := &healthv1.ProbeBind{}, &healthv1.ProbeBatch{Generation: p.generation}
	for i, u := range uids {
		bound.Instances = append(bound.Instances, u.String())
		batch.Instance, batch.Result = append(batch.Instance, uint32(i)), append(batch.Result, r)
	}
	tally, err := p.w.probes(proberID(p.name), bound, batch)
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	return tally
}

func (w *world) probes(who identity.ID, frames ...any) (*healthv1.Tally, error) {
	s := &probeStream{ctx: caller(who, "127.0.0.3"), frames: frames}
	err := w.service.ReportProbes(s)
	return s.tally, err
}

// alive lets time pass while the probers report every two seconds.
func alive(t *testing.T, d time.Duration, all ...*prober) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, p := range all {
			p.report(t, 0)
		}
		time.Sleep(min(2*time.Second, time.Until(end)))
		synctest.Wait() // what they were told is there to be looked at
	}
}

const ok = healthv1.ProbeResult_PROBE_RESULT_OK

// shop is a change of shop/cart with instances that probes are supplied for.
func shop(uids ...registry.UID) registry.Change {
	c := registry.Change{Name: cart, Service: &registry.Service{Name: cart, Ports: []registry.Port{
		{Name: "dns", Number: 53, Protocol: registry.UDP}, {Name: "grpc", Number: 8080, Protocol: registry.GRPC}, {Name: "web", Number: 80, Protocol: registry.HTTP}}}}
	for _, u := range uids {
		c.Instances = append(c.Instances, registry.InstanceChange{UID: u, Profile: registry.Profile{Supplies: registry.ClassSet(0).With(registry.ClassProbe)},
			Row: &registry.Instance{UID: u, Service: cart, Identity: web, Zone: "a", Proof: registry.ByAuthority,
				Endpoint: registry.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, byte(u >> 8), byte(u)})}}})
	}
	return c
}

func contract(p registry.Probe) registry.Contract {
	return registry.Contract{Name: cart, Probe: p}.WithDefaults()
}

// pair is two probers that have everything, told of shop with the instances.
func pair(t *testing.T, w *world, uids ...registry.UID) (a, b *prober) {
	w.service.Changed(shop(uids...))
	w.service.Contract(cart, contract(registry.Probe{}), "")
	a, b = w.watch(t, "a", "za"), w.watch(t, "b", "zb")
	alive(t, time.Second, a, b)
	return a, b
}

// TestResultsOnlyOnTheAssignment: each refusal with its reason, and what is
// taken in carries who probed and when.
func TestResultsOnlyOnTheAssignment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(limits.Reports{})
		a, b := pair(t, w, 1, 2)
		unprobed := shop(3)
		unprobed.Instances[0].Profile = registry.Profile{}
		w.service.Changed(unprobed)
		batch := &healthv1.ProbeBatch{Instance: []uint32{0, 1, 2, 3, 9},
			Result: []healthv1.ProbeResult{ok, healthv1.ProbeResult_PROBE_RESULT_TIMEOUT, ok, ok, ok}, AgeMillis: []uint32{500, 31_000, 0, 0, 0}, LatencyMicros: []uint32{1, 2, 3, 4, 5}}
		tally, err := w.probes(proberID("a"), &healthv1.ProbeBind{Instances: []string{"i1", "i2"}}, &healthv1.ProbeBind{Instances: []string{"i3", "i99"}}, batch)
		if err != nil || tally.GetAccepted() != 1 || tally.GetStale() != 1 || tally.GetOutOfScope() != 3 || tally.GetUnattributed() != 0 {
			t.Errorf("%v, tally %v", err, tally)
		}
		if w.results[report.OutOfScope] != 1 || w.results[report.Unattributed] != 2 {
			t.Errorf("counted %v", w.results)
		}
		want := health.Sample{UID: 1, Class: registry.ClassProbe, Result: health.ProbeOK, At: time.Now().Add(-500 * time.Millisecond),
			Prober: health.Prober{Name: "a", Zone: "za"}}
		if len(w.got) != 1 || w.got[0].UID != want.UID || w.got[0].Prober != want.Prober || w.got[0].Result != want.Result || !w.got[0].At.Equal(want.At) || w.got[0].Class != want.Class {
			t.Errorf("submitted %+v, want %+v", w.got, want)
		}
		// A third prober takes some of the targets; the one that had them is out of scope there.
		c := w.watch(t, "c", "zc")
		for _, u := range []registry.UID{1, 2} {
			for _, p := range []*prober{a, b, c} {
				is := w.service.Probers().Assigns(u, 2, p.name)
				if got := p.report(t, ok, u); (got.GetAccepted() == 1) != is || (got.GetOutOfScope() == 1) == is {
					t.Errorf("%s on %s, assigned: %v, tally %v", p.name, u, is, got)
				}
			}
		}
		for _, p := range []*prober{a, b, c} {
			p.stop()
		}
	})
}

// TestEveryResultIsKnown: each of the wire's results becomes its own.
func TestEveryResultIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(limits.Reports{})
		a, b := pair(t, w, 1)
		for r := range len(healthv1.ProbeResult_name) - 1 {
			wire := healthv1.ProbeResult(r + 1)
			a.report(t, wire, 1)
			if got := w.got[len(w.got)-1].Result; "PROBE_RESULT_"+got.String() != wire.String() {
				t.Errorf("%s became %s", wire, got)
			}
		}
		a.stop()
		b.stop()
	})
}

// TestAFloodOfResults loses what is ordinary, never a refused connection.
func TestAFloodOfResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limits.Default().Reports
		l.Rate, l.Burst = 0.001, 1
		w := newWorld(l)
		a, b := pair(t, w, 1)
		batch := func(r healthv1.ProbeResult) *healthv1.ProbeBatch {
			return &healthv1.ProbeBatch{Instance: []uint32{0}, Result: []healthv1.ProbeResult{r}}
		}
		tally, err := w.probes(proberID("a"), &healthv1.ProbeBind{Instances: []string{"i1"}}, batch(ok), batch(ok), batch(healthv1.ProbeResult_PROBE_RESULT_REFUSED))
		if err != nil || tally.GetAccepted() != 2 || tally.GetLimited() != 1 || w.got[len(w.got)-1].Result != health.ProbeRefused {
			t.Errorf("%v, tally %v, submitted %+v", err, tally, w.got)
		}
		a.stop()
		b.stop()
	})
}

// TestProbeFramesThatEndTheStream: each with its code, and no sample.
func TestProbeFramesThatEndTheStream(t *testing.T) {
	l := limits.Default().Reports
	l.Targets = 2
	ids := func(ids ...string) *healthv1.ProbeBind { return &healthv1.ProbeBind{Instances: ids} }
	for name, row := range map[string]struct {
		frames []any
		want   codes.Code
	}{
		"batch first":    {[]any{&healthv1.ProbeBatch{}}, codes.InvalidArgument},
		"empty frame":    {[]any{nil}, codes.InvalidArgument},
		"not a uid":      {[]any{ids("17")}, codes.InvalidArgument},
		"too many ids":   {[]any{ids("i1", "i2"), ids("i3")}, codes.ResourceExhausted},
		"lengths differ": {[]any{ids("i1"), &healthv1.ProbeBatch{Instance: []uint32{0}}}, codes.InvalidArgument},
		"ages differ":    {[]any{ids("i1"), &healthv1.ProbeBatch{AgeMillis: []uint32{0}}}, codes.InvalidArgument},
		"times differ":   {[]any{ids("i1"), &healthv1.ProbeBatch{LatencyMicros: []uint32{0}}}, codes.InvalidArgument},
		"no result":      {[]any{ids("i1"), &healthv1.ProbeBatch{Instance: []uint32{0}, Result: []healthv1.ProbeResult{0}}}, codes.InvalidArgument},
		"odd result":     {[]any{ids("i1"), &healthv1.ProbeBatch{Instance: []uint32{0}, Result: []healthv1.ProbeResult{70}}}, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(l)
			_, err := w.probes(proberID("a"), row.frames...)
			if _, coded := status.CodeOf(err); grpcstatus.Code(err) != row.want || !coded || len(w.got) != 0 {
				t.Errorf("%v, submitted %+v", err, w.got)
			}
		})
	}
}

// TestOnlyProbersProbe: another identity is refused, whatever it calls itself.
func TestOnlyProbersProbe(t *testing.T) {
	w := newWorld(limits.Reports{})
	for _, who := range []identity.ID{web, agent, identity.MustParse("spiffe://prod.example/sightline/prober/a/b")} {
		_, err := w.probes(who, &healthv1.ProbeBind{})
		watching := w.service.WatchAssignment(&healthv1.WatchAssignmentRequest{}, &assignmentStream{ctx: caller(who, "127.0.0.3")})
		if grpcstatus.Code(err) != codes.PermissionDenied || grpcstatus.Code(watching) != codes.PermissionDenied {
			t.Errorf("%s: %v, %v", who, err, watching)
		}
	}
	err := w.service.WatchAssignment(&healthv1.WatchAssignmentRequest{Zone: "Z 1"}, &assignmentStream{ctx: caller(proberID("a"), "127.0.0.3")})
	if grpcstatus.Code(err) != codes.InvalidArgument {
		t.Errorf("a zone that is no label: %v", err)
	}
}
