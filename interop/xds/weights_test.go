package xds

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

// The estate of C10 at its full size.
const (
	instances = 150
	rpcs      = 3000
)

// kinds are the user agents of every kind of client.
var kinds = []string{envoyUA, goUA, "gRPC Java", "gRPC Node Pure JS", "gRPC C-core linux Python"}

// cast is backends that stand for the instances of services: one process plays
// all of them, under one identity.
type cast struct {
	w    *world
	bs   []*harness.Backend
	uids map[string]string // host/label
}

func (w *world) cast(n int) *cast {
	w.Helper()
	c := &cast{w: w, uids: make(map[string]string)}
	for i := range n {
		c.bs = append(c.bs, harness.StartBackend(w, fmt.Sprintf("m%03d", i)))
	}
	w.api.Apply(w, &registryv1.Change{Change: &registryv1.Change_PutProfile{PutProfile: &registryv1.Profile{
		Namespace: "shop", Name: "self-reporting", Supplies: []registryv1.EvidenceClass{registryv1.EvidenceClass_EVIDENCE_CLASS_SELF},
	}}})
	return c
}

// speaking makes a service's instances speak for themselves.
func speaking(s *registryv1.Change) *registryv1.Change {
	s.GetPutService().Profile = "self-reporting"
	return s
}

// preferring makes a service's callers prefer their zone.
func preferring(host string) *registryv1.Change {
	name, ns, _ := strings.Cut(host, ".")
	return &registryv1.Change{Change: &registryv1.Change_PutContract{PutContract: &registryv1.Contract{
		Namespace: ns, Name: name, Locality: registryv1.LocalityMode_LOCALITY_MODE_PREFER_ZONE,
	}}}
}

// register registers instances of a service in the zones given, the i-th in the
// i-th of them, over and over.
func (c *cast) register(host string, bs []*harness.Backend, zones ...string) {
	c.w.Helper()
	var changes []*registryv1.Change
	for i, b := range bs {
		ch := harness.PutBackend(host, b)
		ch.GetPutInstance().Zone = zones[i%len(zones)]
		ch.GetPutInstance().Identity = "spiffe://test/ns/shop/sa/cast"
		changes = append(changes, ch)
	}
	for i, r := range c.w.api.Apply(c.w, changes...) {
		c.uids[host+"/"+bs[i].Name] = r.GetUid()
	}
}

// say has instances report one status of themselves, until the test ends.
func (c *cast) say(host string, s healthv1.SelfStatus, bs ...*harness.Backend) {
	c.w.Helper()
	var uids []string
	batch := &healthv1.SelfBatch{}
	for i, b := range bs {
		uids = append(uids, c.uids[host+"/"+b.Name])
		batch.Instance, batch.Status = append(batch.Instance, uint32(i)), append(batch.Status, s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	st, err := healthv1.NewReportServiceClient(harness.DialTLS(c.w, c.w.s.API, c.w.s.CA.Mint(c.w, "/ns/shop/sa/cast"))).ReportSelf(ctx)
	c.w.ok(err)
	c.w.ok(st.Send(&healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Bind{Bind: &healthv1.SelfBind{Instances: uids}}}))
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(time.Second) {
			_ = st.Send(&healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Batch{Batch: batch}})
		}
	})
	c.w.Cleanup(func() { cancel(); wg.Wait() })
}

// assignments waits until a raw client of each kind holds the service with n
// endpoints, checks the rules of every client, and returns them by kind.
func (w *world) assignments(host string, n int) map[string]*endpointv3.ClusterLoadAssignment {
	w.Helper()
	all := make(map[string]*endpointv3.ClusterLoadAssignment)
	for _, kind := range kinds {
		c := w.client(func(ctx context.Context) (*rawxds.Client, error) {
			open := rawxds.Sotw
			if kind == envoyUA {
				open = rawxds.Delta
			}
			return open(ctx, w.s.DialXDS(w, w.web), rawxds.Node("raw", kind, "local", "a"), nil)
		})
		ask := c.Ask
		if kind == envoyUA {
			ask = c.Subscribe
		}
		w.ok(ask(rawxds.EDS, host))
		w.ok(c.Await(starts, func() bool {
			cla, err := c.Held(rawxds.EDS)[host].Assignment()
			all[kind] = cla
			return err == nil && len(addressesOf(cla)) == n
		}))
		c.Close()
		w.acceptable(host+" for "+kind, all[kind])
	}
	return all
}

func addressesOf(cla *endpointv3.ClusterLoadAssignment) map[string]int {
	found := make(map[string]int)
	for _, l := range cla.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			found[e.GetEndpoint().GetAddress().GetSocketAddress().String()]++
		}
	}
	return found
}

// acceptable checks what some client refuses, or drops without a word (C10).
func (w *world) acceptable(what string, cla *endpointv3.ClusterLoadAssignment) {
	w.Helper()
	seen, priorities := make(map[string]bool), make(map[uint32]bool)
	for _, l := range cla.GetEndpoints() {
		key := fmt.Sprint(l.GetLocality().String(), l.GetPriority())
		priorities[l.GetPriority()] = true
		var sum uint64
		for _, e := range l.GetLbEndpoints() {
			if e.GetLoadBalancingWeight() != nil && e.GetLoadBalancingWeight().GetValue() == 0 {
				w.Errorf("%s: %s has weight 0", what, e.GetEndpoint())
			}
			sum += uint64(e.GetLoadBalancingWeight().GetValue())
		}
		switch {
		case l.GetLocality().String() == "":
			w.Errorf("%s: a locality has no id", what)
		case l.GetLoadBalancingWeight().GetValue() == 0:
			w.Errorf("%s: locality %s has no weight", what, l.GetLocality())
		case seen[key]:
			w.Errorf("%s: locality %s comes twice", what, key)
		case sum > math.MaxUint32:
			w.Errorf("%s: locality %s weighs %d", what, l.GetLocality(), sum)
		}
		seen[key] = true
	}
	for p := range uint32(len(priorities)) {
		if !priorities[p] {
			w.Errorf("%s: priorities %v have a gap", what, slices.Sorted(maps.Keys(priorities)))
		}
	}
	for a, n := range addressesOf(cla) {
		if n > 1 {
			w.Errorf("%s: %s comes %d times", what, a, n)
		}
	}
}

// callers are a real Envoy and a stock grpc-go client of a service, in zone a.
func (w *world) callers(e *harness.Envoy, host string) map[string]*harness.Caller {
	w.Helper()
	all := map[string]*harness.Caller{
		"envoy":   harness.DialPlain(w, e.Outbound.String(), host),
		"grpc-go": harness.Dial(w, harness.Bootstrap{Server: w.s.XDS, SVID: w.web, NodeID: "go", Region: "local", Zone: "a"}, host),
	}
	for _, c := range all {
		c.WaitFor(w, starts)
	}
	return all
}

// calls makes n calls, a few at a time, none of which may fail, and returns who
// answered how many.
func (w *world) calls(who string, c *harness.Caller, n int) map[string]int {
	w.Helper()
	const atOnce = 4
	var mu sync.Mutex
	var wg sync.WaitGroup
	sum := make(map[string]int)
	for range atOnce {
		wg.Go(func() {
			got := c.Calls(n/atOnce, 10*time.Second)
			mu.Lock()
			defer mu.Unlock()
			for name, k := range got {
				sum[name] += k
			}
		})
	}
	wg.Wait()
	for name, k := range sum {
		if strings.HasPrefix(name, "ERR ") {
			w.Errorf("%s: %d of %d calls ended with %s", who, k, n, name)
		}
	}
	return sum
}

// C10: weights, localities and priorities that every client takes. 150 equal
// instances; a zone with nobody eligible; one that was just admitted; and the
// loss of a priority in use.
func TestC10WeightsAndLocalities(t *testing.T) {
	w := start(t)
	c := w.cast(instances + 12 + 8 + 10) // an address serves one instance
	orders, mixed, failing, ramp := c.bs[:150], c.bs[150:162], c.bs[162:170], c.bs[170:]
	serving, not := healthv1.SelfStatus_SELF_STATUS_SERVING, healthv1.SelfStatus_SELF_STATUS_NOT_SERVING
	w.api.Apply(t, harness.PutService("orders.shop"), speaking(harness.PutService("mixed.shop")),
		speaking(harness.PutService("ramp.shop")), preferring("failover.shop"), harness.PutService("failover.shop"))
	c.register("orders.shop", orders, "a", "b", "c")
	c.register("mixed.shop", mixed, "a", "b", "c")
	c.register("failover.shop", failing, "a", "b")
	c.register("ramp.shop", ramp, "a", "b", "c")
	c.say("mixed.shop", serving, mixed...)
	c.say("ramp.shop", serving, ramp[:9]...)
	w.published("mixed.shop", 12)
	c.say("mixed.shop", not, mixed[2], mixed[5], mixed[8], mixed[11]) // all of zone c
	harness.Eventually(t, starts, "zone c has nobody eligible", func() error {
		v, err := w.api.View("mixed.shop")
		n := 0
		for _, m := range v.GetMembers() {
			if m.GetState() == viewv1.State_STATE_INELIGIBLE && m.GetZone() == "c" {
				n++
			}
		}
		if err != nil || n != 4 {
			return fmt.Errorf("%d of 4: %v", n, err)
		}
		return nil
	})
	w.published("orders.shop", instances)
	w.published("ramp.shop", 9)
	c.say("ramp.shop", serving, ramp[9])
	w.published("ramp.shop", 10)
	w.assignments("orders.shop", instances)
	w.assignments("ramp.shop", 10)
	w.assignments("mixed.shop", w.listed("mixed.shop"))
	for kind, cla := range w.assignments("failover.shop", 8) {
		if two := slices.ContainsFunc(cla.Endpoints, func(l *endpointv3.LocalityLbEndpoints) bool { return l.Priority == 1 }); !two {
			t.Errorf("%s: zones share one priority: %v", kind, cla)
		}
	}

	e := harness.StartEnvoy(t, harness.EnvoyConfig{XDS: w.s.XDS, SVID: w.web, NodeID: "c10", Region: "local", Zone: "a"})
	e.WaitLive(t, starts)
	for who, caller := range w.callers(e, "orders.shop") {
		called := w.calls(who, caller, rpcs)
		if len(called) != instances {
			t.Errorf("%s: %d of %d instances were called in %d calls", who, len(called), instances, rpcs)
		}
	}
	for _, host := range []string{"mixed.shop", "ramp.shop"} {
		for who, caller := range w.callers(e, host) {
			w.calls(who+" of "+host, caller, 400)
		}
	}
	failover := w.callers(e, "failover.shop")
	for who, caller := range failover {
		t.Logf("%s is to stay in its zone", who)
		caller.WaitOnly(t, starts, names(failing, 0)...) // zone a
	}
	for _, name := range names(failing, 0) {
		w.api.Apply(t, harness.DeleteInstance("failover.shop", name))
	}
	w.published("failover.shop", 4)
	for kind, cla := range w.assignments("failover.shop", 4) {
		if cla.Endpoints[0].Priority != 0 {
			t.Errorf("%s: the priority that is left is %d", kind, cla.Endpoints[0].Priority)
		}
	}
	for who, caller := range failover {
		caller.WaitOnly(t, budget, names(failing, 1)...)
		w.calls(who+" after the failover", caller, 200)
	}
	if n := e.Rejected(t); n != 0 {
		t.Errorf("Envoy refused %d updates", n)
	}
	w.nobodyRefused()
}

// A zone that loses half of its instances keeps what they can take at 1.4 times
// their number, and the rest of its callers' calls goes to the other zone: alike
// from Envoy and from grpc-go.
func TestAZoneSpillsWhatItCannotServe(t *testing.T) {
	w := start(t)
	c := w.cast(8)
	w.api.Apply(t, preferring("orders.shop"), speaking(harness.PutService("orders.shop")))
	c.register("orders.shop", c.bs, "a", "b")
	c.say("orders.shop", healthv1.SelfStatus_SELF_STATUS_SERVING, c.bs...)
	w.published("orders.shop", 8)
	e := harness.StartEnvoy(t, harness.EnvoyConfig{XDS: w.s.XDS, SVID: w.web, NodeID: "spill", Region: "local", Zone: "a"})
	e.WaitLive(t, starts)
	callers := w.callers(e, "orders.shop")
	for _, caller := range callers {
		caller.WaitOnly(t, starts, "m000", "m002", "m004", "m006")
	}
	c.say("orders.shop", healthv1.SelfStatus_SELF_STATUS_NOT_SERVING, c.bs[0], c.bs[2])
	w.published("orders.shop", 6)
	w.assignments("orders.shop", 6)
	for who, caller := range callers {
		harness.Eventually(t, budget, who+" follows", func() error {
			if got := caller.Calls(60, time.Second); got["m000"]+got["m002"] > 0 || got["m001"]+got["m003"]+got["m005"]+got["m007"] == 0 {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
		got := w.calls(who, caller, 2000)
		near, far := got["m004"]+got["m006"], got["m001"]+got["m003"]+got["m005"]+got["m007"]
		if near+far != 2000 || near < 1320 || near > 1480 {
			t.Errorf("%s: %d calls stayed and %d left, want 1400 and 600: %v", who, near, far, got)
		}
	}
	if n := e.Rejected(t); n != 0 {
		t.Errorf("Envoy refused %d updates", n)
	}
	w.nobodyRefused()
}

// names are those of every other backend, from the first given on.
func names(bs []*harness.Backend, first int) []string {
	var list []string
	for i := first; i < len(bs); i += 2 {
		list = append(list, bs[i].Name)
	}
	return list
}

func (w *world) listed(host string) int {
	w.Helper()
	v, err := w.api.View(host)
	w.ok(err)
	return len(harness.Listed(v, 0))
}

// nobodyRefused checks that no client of the server has refused a response.
func (w *world) nobodyRefused() {
	w.Helper()
	for line := range strings.Lines(w.s.Metrics(w)) {
		if strings.HasPrefix(line, "sightline_xds_nacks_total") && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
			w.Errorf("responses were refused: %s", line)
		}
	}
}
