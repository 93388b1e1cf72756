package server

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/server/status"
)

// register creates shop/cart with one instance on each address, which
// registers itself.
func (r *running) register(addresses ...string) (uids []string) {
	r.t.Helper()
	ctx := callCtx(r.t)
	op := registryv1.NewRegistryServiceClient(r.dialAPI(r.operator()))
	_, err := op.CreateService(ctx, &registryv1.CreateServiceRequest{Service: &registryv1.Service{
		Namespace: "shop", Name: "cart", Exposure: &registryv1.Exposure{DnsAnonymous: true},
		Ports: []*registryv1.Port{{Name: "grpc", Number: 8080, Protocol: registryv1.Protocol_PROTOCOL_GRPC}},
	}})
	if err != nil {
		r.t.Fatal("create:", err)
	}
	self := registryv1.NewRegistryServiceClient(r.api("/ns/shop/sa/cart"))
	for _, a := range addresses {
		resp, err := self.RegisterInstance(ctx, &registryv1.RegisterInstanceRequest{Instance: &registryv1.Instance{
			Namespace: "shop", Service: "cart", Endpoint: &registryv1.Instance_Address{Address: a},
		}})
		if err != nil {
			r.t.Fatal("register:", err)
		}
		uids = append(uids, resp.GetInstance().GetUid())
	}
	return uids
}

// resolve returns shop/cart's view, or nil while it is not visible.
func (r *running) resolve() *viewv1.View {
	r.t.Helper()
	client := resolvev1.NewResolveServiceClient(r.api("/ns/front/sa/web"))
	resp, err := client.Resolve(callCtx(r.t), &resolvev1.ResolveRequest{Namespace: "shop", Name: "cart"})
	if err != nil {
		return nil
	}
	return resp.GetView()
}

func listed(v *viewv1.View) (addresses []string) {
	for _, m := range v.GetMembers() {
		if m.GetListed() {
			addresses = append(addresses, m.GetAddress())
		}
	}
	return addresses
}

func (r *running) dig(name string) (*mdns.Msg, error) {
	q := new(mdns.Msg)
	q.SetQuestion(name, mdns.TypeA)
	answer, _, err := new(mdns.Client).Exchange(q, r.Addrs().DNS.String())
	return answer, err
}

// TestRegisterResolveRestart is the main job in one process: what is
// registered is resolved over the API and DNS, survives a restart with its
// version and ids, and a server that stops leaves nothing behind.
func TestRegisterResolveRestart(t *testing.T) {
	dir := dataDir(t)
	first := start(t, devConfig(dir))
	uids := first.register("10.0.0.1", "10.0.0.2")
	first.eventually("both instances are listed", func() bool { return len(listed(first.resolve())) == 2 })
	before := first.resolve()
	answer, err := first.dig("cart.shop.svc.sightline.test.")
	if err != nil || len(answer.Answer) != 2 {
		t.Errorf("DNS: %v, %v", answer, err)
	}
	if err := first.stop(); err != nil {
		t.Fatal("stop:", err)
	}

	second := start(t, devConfig(dir))
	after := second.resolve()
	if after == nil {
		t.Fatal("the service is gone after a restart")
	}
	if got := listed(after); len(got) != 2 || after.GetMembers()[0].GetUid() != uids[0] {
		t.Errorf("after the restart: %v", after)
	}
	if before.GetEndpointVersion() != after.GetEndpointVersion() {
		t.Errorf("an unchanged view moved from version %s to %s", before.GetEndpointVersion(), after.GetEndpointVersion())
	}
	third := second.registerMore("10.0.0.3")
	for _, old := range uids {
		if third == old {
			t.Errorf("uid %s was used again", old)
		}
	}
}

func (r *running) registerMore(address string) string {
	r.t.Helper()
	self := registryv1.NewRegistryServiceClient(r.api("/ns/shop/sa/cart"))
	resp, err := self.RegisterInstance(callCtx(r.t), &registryv1.RegisterInstanceRequest{Instance: &registryv1.Instance{
		Namespace: "shop", Service: "cart", Endpoint: &registryv1.Instance_Address{Address: address}}})
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.GetInstance().GetUid()
}

// TestASelfReportReachesTheView: an instance's own NOT_SERVING takes it out, by
// the whole path; another's word does not.
func TestASelfReportReachesTheView(t *testing.T) {
	r := start(t, devConfig(dataDir(t)))
	op := registryv1.NewRegistryServiceClient(r.dialAPI(r.operator()))
	if _, err := op.PutProfile(callCtx(t), &registryv1.PutProfileRequest{Profile: &registryv1.Profile{
		Namespace: "shop", Name: "self", Supplies: []registryv1.EvidenceClass{registryv1.EvidenceClass_EVIDENCE_CLASS_SELF}}}); err != nil {
		t.Fatal(err)
	}
	r.register()
	if _, err := op.UpdateService(callCtx(t), &registryv1.UpdateServiceRequest{Service: &registryv1.Service{
		Namespace: "shop", Name: "cart", Profile: "self",
		Ports: []*registryv1.Port{{Name: "grpc", Number: 8080, Protocol: registryv1.Protocol_PROTOCOL_GRPC}}}}); err != nil {
		t.Fatal(err)
	}
	uids := []string{r.registerMore("10.0.0.1"), r.registerMore("10.0.0.2"), r.registerMore("10.0.0.3")}
	report := func(path string, s healthv1.SelfStatus, uids ...string) *healthv1.Tally {
		stream, err := healthv1.NewReportServiceClient(r.api(path)).ReportSelf(callCtx(t))
		if err != nil {
			t.Fatal(err)
		}
		batch := &healthv1.SelfBatch{}
		for i := range uids {
			batch.Instance, batch.Status = append(batch.Instance, uint32(i)), append(batch.Status, s)
		}
		for _, f := range []*healthv1.ReportSelfRequest{
			{Frame: &healthv1.ReportSelfRequest_Bind{Bind: &healthv1.SelfBind{Instances: uids}}},
			{Frame: &healthv1.ReportSelfRequest_Batch{Batch: batch}}} {
			if err := stream.Send(f); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := stream.CloseAndRecv()
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetTally()
	}
	if n := report("/ns/shop/sa/cart", healthv1.SelfStatus_SELF_STATUS_SERVING, uids...).GetAccepted(); n != 3 {
		t.Errorf("%d accepted of one's own", n)
	}
	r.eventually("three serve", func() bool { return len(listed(r.resolve())) == 3 })
	if n := report("/ns/front/sa/web", healthv1.SelfStatus_SELF_STATUS_NOT_SERVING, uids...).GetUnattributed(); n != 3 {
		t.Errorf("%d of a stranger's words were dropped", n)
	}
	report("/ns/shop/sa/cart", healthv1.SelfStatus_SELF_STATUS_NOT_SERVING, uids[0])
	r.eventually("the one that does not serve is out", func() bool {
		got := listed(r.resolve())
		return len(got) == 2 && got[0] == "10.0.0.2"
	})
	if _, body := r.get("/metrics"); !strings.Contains(body, `sightline_reports_total{class="self",result="unattributed"} 3`) ||
		!strings.Contains(body, `sightline_instances{state="ineligible"} 1`) {
		t.Error("the metrics do not say so")
	}
	if log := r.logs.String(); strings.Count(log, "msg=transition") == 0 || !strings.Contains(log, "to=ineligible") {
		t.Error("the log has no line of the transition")
	}
}

// TestProbes: livez, readyz with every condition, health by name.
func TestProbes(t *testing.T) {
	r := start(t, devConfig(dataDir(t)))
	if code, body := r.get("/livez"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("livez: %d %q", code, body)
	}
	if code, body := r.get("/readyz?verbose"); code != http.StatusOK || body != "[+] store ok\n[+] views ok\n[+] listeners ok\n[+] sources ok\nok\n" {
		t.Errorf("readyz: %d %q", code, body)
	}
	if code, body := r.get("/metrics"); code != http.StatusOK || !strings.Contains(body, "sightline_build_info{") {
		t.Errorf("metrics: %d", code)
	}
	health := healthpb.NewHealthClient(r.dialXDS(r.as("/ns/a/sa/b")))
	for _, name := range healthNames {
		resp, err := health.Check(callCtx(t), &healthpb.HealthCheckRequest{Service: name})
		if err != nil || resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", name, resp, err)
		}
	}
}

// TestManifests: a folder's objects are served, and stay when a file is broken.
func TestManifests(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "cart.yaml")
	manifest := `apiVersion: sightline.dev/v1
kind: Service
metadata: {namespace: shop, name: cart}
spec: {ports: [{name: grpc, number: 8080, protocol: grpc}]}
---
apiVersion: sightline.dev/v1
kind: Instance
metadata: {namespace: shop, name: cart-1}
spec: {service: cart, address: 10.0.0.7, identity: spiffe://sightline.test/ns/shop/sa/cart}
`
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := devConfig(dataDir(t))
	cfg.Manifests = map[string]string{"local": dir}
	r := start(t, cfg)
	r.eventually("the manifest's instance is listed", func() bool {
		got := listed(r.resolve())
		return len(got) == 1 && got[0] == "10.0.0.7"
	})
	if region := r.resolve().GetMembers()[0].GetRegion(); region != "local" {
		t.Errorf("an instance without a region is in %q", region)
	}
	if err := os.WriteFile(file, []byte("kind: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	r.eventually("the broken file is told", func() bool { return strings.Contains(r.logs.String(), "a manifest is not used") })
	if got := listed(r.resolve()); len(got) != 1 {
		t.Errorf("a broken file changed the set: %v", got)
	}
}

// TestPortTaken: the message names the flag, and nothing stays open.
func TestPortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	for flag, set := range map[string]func(*Config){
		"--xds-listen":  func(c *Config) { c.XDSListen = addr },
		"--api-listen":  func(c *Config) { c.APIListen = addr },
		"--dns-listen":  func(c *Config) { c.DNSListen = addr },
		"--http-listen": func(c *Config) { c.HTTPListen = addr },
	} {
		cfg := devConfig(dataDir(t))
		set(&cfg)
		if s, err := New(t.Context(), cfg); err == nil {
			t.Errorf("%s: started on a taken port: %v", flag, s.Close())
		} else if !strings.Contains(err.Error(), flag+" "+addr) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// TestUnknownAndForbiddenAreAlike: the same code and message for a service that
// is not there and one that the caller may not see.
func TestUnknownAndForbiddenAreAlike(t *testing.T) {
	cfg := devConfig(dataDir(t))
	r := start(t, cfg)
	r.register("10.0.0.1")
	r.eventually("the service is there", func() bool { return r.resolve() != nil })
	// A prober is in the table for Resolve, and a policy lets it see nothing; a
	// name of the same length that is not there must give the same answer.
	client := resolvev1.NewResolveServiceClient(r.dialAPI(r.as("/sightline/agent/a")))
	_, missing := client.Resolve(callCtx(t), &resolvev1.ResolveRequest{Namespace: "shop", Name: "none"})
	if grpcstatus.Code(missing) != codes.NotFound {
		t.Errorf("missing: %v", missing)
	}
	if c, _ := status.CodeOf(missing); c != status.NotFound {
		t.Errorf("missing: code %v", c)
	}
}

// TestStopIsPrompt: an idle server with a client's stream open stops at once,
// and the stream says why.
func TestStopIsPrompt(t *testing.T) {
	r := start(t, devConfig(dataDir(t)))
	client := viewv1.NewViewServiceClient(r.api("/ns/front/sa/web"))
	stream, err := client.Watch(callCtx(t))
	if err != nil {
		t.Fatal(err)
	}
	health, err := healthpb.NewHealthClient(r.dialXDS(r.as("/ns/a/sa/b"))).Watch(callCtx(t), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := health.Recv(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if _, err := stream.Recv(); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("the Watch stream ended with %v", err)
	}
}

// TestAdminSeesTheServer: what the parts hold reaches AdminService.
func TestAdminSeesTheServer(t *testing.T) {
	r := start(t, devConfig(dataDir(t)))
	uids := r.register("10.0.0.1", "10.0.0.2")
	r.eventually("both instances are listed", func() bool { return len(listed(r.resolve())) == 2 })
	watching, err := viewv1.NewViewServiceClient(r.api("/ns/front/sa/web")).Watch(callCtx(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := watching.Send(&viewv1.WatchRequest{Frame: &viewv1.WatchRequest_Filter{Filter: &viewv1.Filter{}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := watching.Recv(); err != nil {
		t.Fatal(err)
	}
	admin := adminv1.NewAdminServiceClient(r.dialAPI(r.operator()))
	st, err := admin.GetStatus(callCtx(t), &adminv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if s := st.GetStatus(); !s.GetReady() || s.GetServices() != 1 || s.GetInstances().GetEligible() != 2 || len(s.GetChecks()) != 4 {
		t.Errorf("status %v", s)
	}
	clients, err := admin.ListClients(callCtx(t), &adminv1.ListClientsRequest{})
	if err != nil || len(clients.GetClients()) != 1 {
		t.Errorf("clients %v, %v", clients, err)
	}
	why, err := admin.Explain(callCtx(t), &adminv1.ExplainRequest{Namespace: "shop", Name: "cart", Instance: uids[0]})
	if err != nil || why == nil {
		t.Errorf("explain %v, %v", why, err)
	}
	r.eventually("the log holds both admissions", func() bool {
		log, err := admin.ListTransitions(callCtx(t), &adminv1.ListTransitionsRequest{Namespace: "shop", Name: "cart"})
		return err == nil && len(log.GetTransitions()) >= 2
	})
}

// TestBeforeTheViewsAreComplete: DNS says SERVFAIL, readiness says what is
// missing, and nobody is told that a name is not there.
func TestBeforeTheViewsAreComplete(t *testing.T) {
	cfg := devConfig(dataDir(t))
	s, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	parts := &stages{failed: make(chan error, 1)}
	parts.start("dns", s.dns.Run)
	parts.start("http", s.serveHTTP)
	r := &running{Server: s, t: t, logs: &logBuffer{}}
	answer, err := r.dig("cart.shop.svc.sightline.test.")
	if err != nil || answer.Rcode != mdns.RcodeServerFailure {
		t.Errorf("DNS before the views: %v, %v", answer, err)
	}
	if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "[-] views: not started") {
		t.Errorf("readyz: %d %q", code, body)
	}
	if code, _ := r.get("/livez"); code != http.StatusOK {
		t.Errorf("livez: %d", code)
	}
	parts.stop("dns")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error("a second close:", err)
	}
}
