package server

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
)

// fakeProber is a prober that dials nobody: what it sees is said by the test.
type fakeProber struct {
	mu      sync.Mutex
	targets map[string]*healthv1.Target
	see     func(*healthv1.Target) healthv1.ProbeResult
	tally   *healthv1.Tally
}

// probeAs runs a prober until the returned function is called, which waits for
// its end.
func probeAs(t *testing.T, c *grpc.ClientConn, zone string, see func(*healthv1.Target) healthv1.ProbeResult) (p *fakeProber, stop func()) {
	t.Helper()
	p = &fakeProber{targets: make(map[string]*healthv1.Target), see: see}
	ctx, cancel := context.WithCancel(callCtx(t))
	client := healthv1.NewReportServiceClient(c)
	watch, err := client.WatchAssignment(ctx, &healthv1.WatchAssignmentRequest{Zone: zone})
	if err != nil {
		t.Fatal(err)
	}
	report, err := client.ReportProbes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	both.Go(func() {
		for {
			change, err := watch.Recv()
			if err != nil {
				return
			}
			p.take(change)
		}
	})
	enough := make(chan struct{})
	both.Go(func() {
		first, bound := true, make(map[string]uint32)
		for every := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-enough:
				every.Stop()
				if resp, err := report.CloseAndRecv(); err == nil {
					p.mu.Lock()
					p.tally = resp.GetTally()
					p.mu.Unlock()
				}
				cancel()
				return
			case <-every.C:
			}
			bind, batch := p.frames(bound)
			if first || len(bind.Instances) > 0 {
				_ = report.Send(&healthv1.ReportProbesRequest{Frame: &healthv1.ReportProbesRequest_Bind{Bind: bind}})
			}
			first = false
			_ = report.Send(&healthv1.ReportProbesRequest{Frame: &healthv1.ReportProbesRequest_Batch{Batch: batch}})
		}
	})
	return p, sync.OnceFunc(func() { close(enough); both.Wait() })
}

func (p *fakeProber) take(change *healthv1.WatchAssignmentResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if change.GetFull() {
		clear(p.targets)
	}
	for _, u := range change.GetRemovedUids() {
		delete(p.targets, u)
	}
	for _, x := range change.GetTargets() {
		p.targets[x.GetUid()] = x
	}
}

// frames are what it says of its targets, binding those that are new.
func (p *fakeProber) frames(bound map[string]uint32) (*healthv1.ProbeBind, *healthv1.ProbeBatch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	bind, batch := &healthv1.ProbeBind{}, &healthv1.ProbeBatch{}
	for u, x := range p.targets {
		at, had := bound[u]
		if !had {
			at = uint32(len(bound))
			bound[u] = at
			bind.Instances = append(bind.Instances, u)
		}
		if x.GetDialBack() {
			batch.DialedBack = append(batch.DialedBack, at)
		} else {
			batch.Instance, batch.Result = append(batch.Instance, at), append(batch.Result, p.see(x))
		}
	}
	return bind, batch
}

// TestProbersTakeAnInstanceOut: two probers are told their targets; what both
// find refused leaves the view, by the whole path, and whoever taps sees it.
func TestProbersTakeAnInstanceOut(t *testing.T) {
	r := start(t, devConfig(dataDir(t)))
	op := registryv1.NewRegistryServiceClient(r.dialAPI(r.operator()))
	if _, err := op.PutProfile(callCtx(t), &registryv1.PutProfileRequest{Profile: &registryv1.Profile{
		Namespace: "shop", Name: "probed", Supplies: []registryv1.EvidenceClass{registryv1.EvidenceClass_EVIDENCE_CLASS_PROBE}}}); err != nil {
		t.Fatal(err)
	}
	r.register()
	if _, err := op.UpdateService(callCtx(t), &registryv1.UpdateServiceRequest{Service: &registryv1.Service{
		Namespace: "shop", Name: "cart", Profile: "probed",
		Ports: []*registryv1.Port{{Name: "grpc", Number: 8080, Protocol: registryv1.Protocol_PROTOCOL_GRPC}}}}); err != nil {
		t.Fatal(err)
	}
	uids := []string{r.registerMore("127.0.0.1"), r.registerMore("127.0.0.2"), r.registerMore("127.0.0.3")}
	var mu sync.Mutex
	dead := ""
	see := func(x *healthv1.Target) healthv1.ProbeResult {
		mu.Lock()
		defer mu.Unlock()
		if x.GetUid() == dead {
			return healthv1.ProbeResult_PROBE_RESULT_REFUSED
		}
		return healthv1.ProbeResult_PROBE_RESULT_OK
	}
	tap, err := adminv1.NewAdminServiceClient(r.dialAPI(r.operator())).Tap(callCtx(t), &adminv1.TapRequest{Namespace: "shop", Name: "cart",
		EvidenceClasses: []registryv1.EvidenceClass{registryv1.EvidenceClass_EVIDENCE_CLASS_PROBE}})
	if err != nil {
		t.Fatal(err)
	}
	a, stopA := probeAs(t, r.api("/sightline/prober/a"), "za", see)
	b, stopB := probeAs(t, r.api("/sightline/prober/b"), "zb", see)
	defer stopA()
	defer stopB()
	r.eventually("three are members by what probers see", func() bool { return len(listed(r.resolve())) == 3 })
	mu.Lock()
	dead = uids[1]
	mu.Unlock()
	r.eventually("the one that refuses is out", func() bool {
		return slices.Equal(listed(r.resolve()), []string{"127.0.0.1", "127.0.0.3"})
	})
	a.mu.Lock()
	if x := a.targets[uids[0]]; x.GetPort() != 8080 || x.GetProbe().GetInterval().AsDuration() != 2*time.Second {
		t.Errorf("told %v", x)
	}
	a.mu.Unlock()
	if _, body := r.get("/metrics"); !strings.Contains(body, "sightline_probers 2\n") {
		t.Error("the metrics do not know the probers")
	}
	for refused := false; !refused; {
		got, err := tap.Recv()
		if err != nil {
			t.Fatal("tap:", err)
		}
		for _, s := range got.GetSamples() {
			refused = refused || s.GetUid() == uids[1] && s.GetDetail() == "REFUSED" && s.GetAccepted() && strings.HasSuffix(s.GetReporter(), "/prober/b")
		}
	}
	stopA()
	stopB()
	for _, p := range []*fakeProber{a, b} {
		if p.tally.GetAccepted() == 0 || p.tally.GetUnattributed()+p.tally.GetStale()+p.tally.GetLimited() > 0 {
			t.Errorf("tally %v", p.tally)
		}
	}
}

// TestAProvedAddressIsListed: what registers itself in production is listed when
// a prober has met it there, and stays proved over a restart.
func TestAProvedAddressIsListed(t *testing.T) {
	manifests := t.TempDir()
	manifest := "apiVersion: sightline.dev/v1\nkind: Service\nmetadata: {namespace: shop, name: cart}\nspec: {ports: [{name: grpc, number: 8080, protocol: grpc}]}\n"
	if err := os.WriteFile(filepath.Join(manifests, "cart.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	e := startProduction(t, func(c *Config) { c.Manifests = map[string]string{"prod": manifests} })
	self := registryv1.NewRegistryServiceClient(e.dialAPI(e.as("/ns/shop/sa/cart")))
	var registered *registryv1.RegisterInstanceResponse
	e.eventually("the service is there to be registered with", func() (ok bool) {
		var err error
		registered, err = self.RegisterInstance(callCtx(t), &registryv1.RegisterInstanceRequest{Instance: &registryv1.Instance{
			Namespace: "shop", Service: "cart", Endpoint: &registryv1.Instance_Address{Address: "10.0.0.1"}}})
		return err == nil
	})
	caller := resolvev1.NewResolveServiceClient(e.dialAPI(e.as("/ns/shop/sa/web")))
	serving := func() (addresses []string, published bool) {
		resp, err := caller.Resolve(callCtx(t), &resolvev1.ResolveRequest{Namespace: "shop", Name: "cart"})
		return listed(resp.GetView()), err == nil
	}
	e.eventually("the service is published", func() bool { _, published := serving(); return published })
	if got, _ := serving(); len(got) != 0 {
		t.Errorf("listed before it is proved: %v", got)
	}
	_, stopA := probeAs(t, e.dialAPI(e.as("/sightline/prober/a")), "za", nil)
	defer stopA()
	_, stopB := probeAs(t, e.dialAPI(e.as("/sightline/prober/b")), "zb", nil)
	defer stopB()
	e.eventually("it is listed", func() bool {
		got, _ := serving()
		return slices.Equal(got, []string{"10.0.0.1"})
	})
	got, err := self.GetInstance(callCtx(t), &registryv1.GetInstanceRequest{Instance: registered.GetInstance().GetUid()})
	if err != nil || got.GetInstance().GetProof() != registryv1.ProofKind_PROOF_KIND_DIAL_BACK {
		t.Errorf("%v, %v", got, err)
	}
}

// TestOutcomesOverTheWire: a caller's counts come in over mTLS, on what it may
// resolve.
func TestOutcomesOverTheWire(t *testing.T) {
	r := start(t, devConfig(dataDir(t)))
	uids := r.register("10.0.0.1", "10.0.0.2")
	stream, err := healthv1.NewReportServiceClient(r.api("/ns/front/sa/web")).ReportOutcomes(callCtx(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*healthv1.ReportOutcomesRequest{
		{Frame: &healthv1.ReportOutcomesRequest_Bind{Bind: &healthv1.OutcomeBind{Instances: append(slices.Clone(uids), "i7")}}},
		{Frame: &healthv1.ReportOutcomesRequest_Batch{Batch: &healthv1.OutcomeBatch{Interval: durationpb.New(2 * time.Second),
			Instance: []uint32{0, 1, 2}, Issued: []uint32{10, 20, 30}, Ok: []uint32{10, 200, 30}}}}} {
		if err := stream.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := stream.CloseAndRecv()
	if err != nil || resp.GetTally().GetAccepted() != 2 || resp.GetTally().GetOutOfScope() != 1 {
		t.Errorf("%v, %v", resp, err)
	}
	if _, body := r.get("/metrics"); !strings.Contains(body, `sightline_reports_total{class="callers",result="accepted"} 2`) {
		t.Error("the metrics do not say so")
	}
}
