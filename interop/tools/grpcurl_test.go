package tools

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
)

// grpcurl finds its way by reflection alone.
func TestGrpcurlFindsItsWay(t *testing.T) {
	t.Parallel()
	w := start(t)
	one := harness.StartBackend(t, "one")
	w.api.Apply(t, harness.WithoutRamp("checkout.shop"), harness.PutService("checkout.shop"), harness.PutBackend("checkout.shop", one))
	w.published("checkout.shop", 1)

	list, code := harness.RunGrpcurl(t, w.web, w.s.API, "", "list")
	for _, want := range []string{"sightline.registry.v1.RegistryService", "sightline.resolve.v1.ResolveService", "sightline.view.v1.ViewService",
		"sightline.health.v1.ReportService", "sightline.admin.v1.AdminService", "grpc.health.v1.Health"} {
		if code != 0 || !strings.Contains(list, want) {
			t.Errorf("list (%d) does not name %s: %s", code, want, list)
		}
	}
	text, code := harness.RunGrpcurl(t, w.web, w.s.API, "", "describe")
	if code != 0 || !strings.Contains(text, "rpc Resolve ( .sightline.resolve.v1.ResolveRequest )") {
		t.Errorf("describe (%d): %s", code, text)
	}

	answer, code := harness.RunGrpcurl(t, w.web, w.s.API, `{"namespace": "shop", "name": "checkout"}`, "sightline.resolve.v1.ResolveService/Resolve")
	var got struct {
		View struct {
			EndpointVersion string
			Members         []struct {
				UID     string `json:"uid"`
				Label   string
				Address string
				State   string
				Listed  bool
				Weight  int
			}
		}
		HeadVersion string
	}
	if err := json.Unmarshal([]byte(answer), &got); code != 0 || err != nil {
		t.Fatalf("Resolve (%d): %s, %v", code, answer, err)
	}
	if ms := got.View.Members; len(ms) != 1 || ms[0].Label != "one" || ms[0].Address != "127.0.0.1" || !ms[0].Listed || ms[0].State != "STATE_ELIGIBLE" ||
		ms[0].Weight != 100 || !strings.HasPrefix(ms[0].UID, "i") || got.View.EndpointVersion == "" || got.HeadVersion == "" {
		t.Errorf("Resolve: %s", answer)
	}
	if out, code := harness.RunGrpcurl(t, w.web, w.s.API, `{"namespace": "shop", "name": "ghost"}`, "sightline.resolve.v1.ResolveService/Resolve"); code == 0 {
		t.Errorf("a service that does not exist: %s", out)
	}
}

// grpcurl reaches a service's instances through the bootstrap that the product
// prints.
func TestGrpcurlDialsXDSTargets(t *testing.T) {
	t.Parallel()
	w := start(t)
	one := harness.StartBackend(t, "one")
	w.api.Apply(t, harness.PutService("checkout.shop"), harness.PutBackend("checkout.shop", one))
	w.published("checkout.shop", 1)
	bootstrap, code := harness.Run(t, 10*time.Second, []string{"HOME=" + t.TempDir(), "XDG_CONFIG_HOME=" + t.TempDir()}, harness.SightlineBinary(t),
		"bootstrap", "grpc", "--xds", w.s.XDS, "--cert", w.web.CertFile, "--key", w.web.KeyFile, "--bundle", w.web.BundleFile, "--node-id", "grpcurl", "--zone", "a")
	if code != 0 {
		t.Fatalf("bootstrap grpc ended with %d", code)
	}
	grpcurl := func(args ...string) (string, int) {
		env := []string{"GRPC_XDS_BOOTSTRAP=", "GRPC_XDS_BOOTSTRAP_CONFIG=" + bootstrap}
		return harness.Run(t, starts, env, harness.Grpcurl(t), append([]string{"-max-time", "10", "-plaintext"}, args...)...)
	}
	for _, target := range []string{"xds:///checkout.shop", "xds:///checkout.shop:9090"} {
		if out, code := grpcurl(target, "list"); code != 0 || !strings.Contains(out, "grpc.health.v1.Health") {
			t.Errorf("%s list (%d): %s", target, code, out)
		}
	}
	if out, code := grpcurl("xds:///checkout.shop", "grpc.health.v1.Health/Check"); code != 0 || !strings.Contains(out, "SERVING") {
		t.Errorf("Check (%d): %s", code, out)
	}
	if one.Calls() == 0 {
		t.Error("the instance was never called")
	}
}

// In production the table of methods is for readers and operators.
func TestReflectionIsNotForEverybody(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerConfig{Command: "server"})
	for path, may := range map[string]bool{"/sightline/operator/o": true, "/sightline/reader/r": true, "/ns/shop/sa/web": false, "/sightline/prober/p": false} {
		out, code := harness.RunGrpcurl(t, s.CA.Mint(t, path), s.API, "", "list")
		if may != (code == 0) || may != strings.Contains(out, "RegistryService") {
			t.Errorf("%s: %d, %s", path, code, out)
		}
	}
}
