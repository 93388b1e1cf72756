package evidence

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/interop/harness"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

const (
	// calmRate is calls a second of each caller to each instance of a service that
	// nothing happens to, and calm how long it is watched. SIGHTLINE_CALM=10m is
	// the long form; the simulator watches whole days.
	calmRate = 0.75
	calm     = 95 * time.Second
)

// calmFor is how long the calm service is watched this time.
func calmFor(t *testing.T) time.Duration {
	text := os.Getenv("SIGHTLINE_CALM")
	if text == "" {
		return calm
	}
	long, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("SIGHTLINE_CALM: %v", err)
	}
	return max(calm, long)
}

// fault is what happens to one instance of a service, and its repair.
type fault struct {
	name   string
	within time.Duration // until it is withdrawn
	rate   float64       // calls a second of each caller
	begin  func(t *testing.T, b *harness.Backend)
	repair func(t *testing.T, b *harness.Backend)
}

// A quarter is so close to the line (a fifth, and a fifth above the siblings)
// that chance decides when two of three callers see it over it: within 15 s three
// times in four, within 30 s nearly always. How often is the simulator's to say;
// here it must be found at all.
var faults = []fault{
	{"forty", 10 * time.Second, perEach, func(_ *testing.T, b *harness.Backend) { b.FailSome(40, codes.Unavailable) }, repaired},
	{"quarter", 45 * time.Second, 2 * perEach, func(_ *testing.T, b *harness.Backend) { b.FailSome(25, codes.Unavailable) }, repaired},
	{"hangs", 10 * time.Second, perEach, func(_ *testing.T, b *harness.Backend) { b.Hang() }, repaired},
	{"refuses", 10 * time.Second, perEach, func(_ *testing.T, b *harness.Backend) { b.Stop() },
		func(t *testing.T, b *harness.Backend) { harness.StartBackendAt(t, b.Name, b.Addr.String()) }},
}

func repaired(_ *testing.T, b *harness.Backend) { b.Repair() }

// What stock clients report over LRS, and nothing else, withdraws an instance
// that says of itself that all is well; once repaired it passes its trial. What
// is shared by all instances, or said by one caller alone, withdraws nobody; nor
// does what happened while the server was away.
func TestStockClientsWithdrawWhatFailsThem(t *testing.T) {
	w := start(t)
	acts := make(map[string]func(f *fleet))
	fleets := make(map[string]*fleet)
	for _, kind := range []string{"grpc-go", "envoy"} {
		for _, x := range faults {
			name := kind + "-" + x.name
			fleets[name] = w.fleet(name+".shop").called(x.rate, kind)
			acts[name] = func(f *fleet) { f.comesAndGoes(x) }
		}
	}
	both := []string{"grpc-go", "envoy"}
	fleets["calm"], acts["calm"] = w.fleet("calm.shop").called(calmRate*members, both...), func(f *fleet) { f.stays(calmFor(t)) }
	fleets["shared"], acts["shared"] = w.fleet("shared.shop").called(perEach, both...), (*fleet).failAlike
	fleets["slandered"], acts["slandered"] = w.fleet("slandered.shop").called(perEach, both...), (*fleet).slander
	// All at once, whatever the number of processors: they wait most of the time.
	var wg sync.WaitGroup
	for name, act := range acts {
		wg.Go(func() { t.Run(name, func(t *testing.T) { act(fleets[name].in(t)) }) })
	}
	wg.Wait()
	w.outage(fleets["shared"], fleets["slandered"])
}

// in is the fleet as a subtest sees it.
func (f *fleet) in(t *testing.T) *fleet {
	w := *f.world
	w.T = t
	return &fleet{world: &w, host: f.host, bs: f.bs}
}

// comesAndGoes takes one instance through a fault, its withdrawal, its repair and
// its trial.
func (f *fleet) comesAndGoes(x fault) {
	f.Helper()
	f.callersDecide()
	f.stays(time.Second)
	bad, rest := f.bs[1], []*harness.Backend{f.bs[0], f.bs[2], f.bs[3]}
	x.begin(f.T, bad)
	took := f.listed(x.within+20*time.Second, rest...)
	f.Logf("withdrawn after %s", took.Round(100*time.Millisecond))
	if took > x.within {
		f.Errorf("it took %s, at most %s", took, x.within)
	}
	all, err := f.why()
	if i := all[bad.Name]; err != nil || i.GetOutBy() != "R4" {
		f.Errorf("it is out by %q: %s, %v", i.GetOutBy(), i.GetDetail(), err)
	}
	x.repair(f.whole, bad) // it outlives this test
	took = f.listed(60*time.Second, f.bs...)
	f.Logf("back after %s", took.Round(100*time.Millisecond))
	if took < 10*time.Second {
		f.Errorf("it was back after %s: no trial is that early", took)
	}
	f.stays(12 * time.Second)
}

// failAlike has all instances fail half of their calls, as when something that
// they share is broken: callers have no word against any of them.
func (f *fleet) failAlike() {
	f.Helper()
	f.callersDecide()
	for _, b := range f.bs {
		b.FailSome(50, codes.Unavailable)
	}
	f.stays(20 * time.Second)
	for _, b := range f.bs {
		b.Repair()
	}
	f.stays(5 * time.Second)
}

// slander has one more caller say, on two streams with node ids of their own,
// that an instance fails every call, and another that all of them do.
func (f *fleet) slander() {
	f.Helper()
	f.callersDecide()
	const long = 20 * time.Second
	v, err := f.api.View(f.host)
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	liar, broken := f.s.CA.Mint(f, "/ns/shop/sa/liar"), f.s.CA.Mint(f, "/ns/shop/sa/broken")
	var wg sync.WaitGroup
	for node, say := range map[string]struct {
		who   *harness.SVID
		about int // members said to fail
	}{"liar-1": {liar, 1}, "liar-2": {liar, 1}, "broken": {broken, members}} {
		c := &endpointv3.ClusterStats{ClusterName: f.host, LoadReportInterval: durationpb.New(2 * time.Second)}
		for i, m := range v.GetMembers() {
			l := &endpointv3.UpstreamLocalityStats{Locality: &corev3.Locality{SubZone: m.GetUid()}, TotalIssuedRequests: 500, TotalSuccessfulRequests: 500}
			if i < say.about {
				l.TotalSuccessfulRequests, l.TotalErrorRequests = 0, 500
			}
			c.UpstreamLocalityStats = append(c.UpstreamLocalityStats, l)
		}
		st, err := loadstatsv3.NewLoadReportingServiceClient(f.s.DialXDS(f, say.who)).StreamLoadStats(ctx)
		if err != nil {
			f.Fatal(err)
		}
		req := &loadstatsv3.LoadStatsRequest{Node: &corev3.Node{Id: node, UserAgentName: "gRPC Go"}}
		wg.Go(func() {
			for st.Send(req) == nil && ctx.Err() == nil {
				req = &loadstatsv3.LoadStatsRequest{ClusterStats: []*endpointv3.ClusterStats{c}}
				time.Sleep(2 * time.Second)
			}
		})
	}
	harness.Eventually(f, long, "the liar is heard", func() error {
		all, err := f.why()
		for _, i := range all {
			for _, e := range i.GetEvidence() {
				if e.GetAgainst() > 0 {
					return nil
				}
			}
		}
		return fmt.Errorf("nobody is against anybody: %v", err)
	})
	f.stays(long - 6*time.Second)
	wg.Wait()
}

// outage has an instance fail while the server is away, and be repaired before it
// is back: nobody is withdrawn for it.
func (w *world) outage(fleets ...*fleet) {
	w.Helper()
	for _, f := range fleets {
		f.callersDecide()
	}
	w.s.Kill()
	for _, f := range fleets {
		f.bs[2].Fail(codes.Unavailable)
	}
	before := w.calls(fleets)
	harness.Eventually(w, starts, "callers are failed for some seconds", func() error {
		if n := w.calls(fleets) - before; n < 400 {
			return fmt.Errorf("%d calls", n)
		}
		return nil
	})
	for _, f := range fleets {
		f.bs[2].Repair()
	}
	w.s.Restart(w)
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		for _, f := range fleets {
			if !f.noneIsOut() {
				return
			}
		}
	}
	for _, f := range fleets {
		all, err := f.why()
		for label, i := range all {
			for _, e := range i.GetEvidence() {
				if e.GetEvidenceClass() == registryv1.EvidenceClass_EVIDENCE_CLASS_CALLERS && !e.GetFresh() {
					err = fmt.Errorf("nobody has called %s since: %v", label, e)
				}
			}
		}
		if err != nil {
			w.Errorf("%s: %v", f.host, err)
		}
	}
}

func (w *world) calls(fleets []*fleet) (n int64) {
	for _, f := range fleets {
		n += f.bs[2].Calls()
	}
	return n
}

// noneIsOut reports whether nobody has been found out by callers.
func (f *fleet) noneIsOut() bool {
	f.Helper()
	all, err := f.why()
	if err != nil {
		return true // not up yet
	}
	for label, i := range all {
		if i.GetOutBy() != "" {
			f.Errorf("%s is out by %s: %s", label, i.GetOutBy(), i.GetDetail())
			return false
		}
	}
	return true
}
