package bootstrap_test

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/xds"

	"github.com/sightlinedev/sightline/cmd/sightline/internal/bootstrap"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
)

// params describes a client whose documents are real files: both clients read
// them when they read the bootstrap.
func params(t *testing.T) bootstrap.Params {
	t.Helper()
	dir, now := t.TempDir(), time.Now()
	ca, _, err := devca.Prepare(dir, "test.example", now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Write(dir, "web", identity.MustParse("spiffe://test.example/ns/shop/sa/web"), now); err != nil {
		t.Fatal(err)
	}
	f := devca.FilesOf(dir, "web")
	return bootstrap.Params{
		Server: "127.0.0.1:15010", NodeID: `a "quoted": {node}`, Cluster: "web", Region: "eu", Zone: "a",
		Cert: f.SVID, Key: f.Key, Bundle: f.Bundle, TrustDomain: "test.example",
		Listen: netip.MustParseAddrPort("127.0.0.1:15001"), Admin: netip.MustParseAddrPort("127.0.0.1:9901"),
	}
}

// TestGRPCTakesIt gives the document to grpc-go's own parser.
func TestGRPCTakesIt(t *testing.T) {
	doc, err := bootstrap.GRPC(params(t))
	if err != nil {
		t.Fatal(err)
	}
	resolver, err := xds.NewXDSResolverWithConfigForTesting(doc)
	if err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	conn, err := grpc.NewClient("xds:///checkout.shop", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	conn.Connect()
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{`"ignore_resource_deletion"`, `"server_uri": "127.0.0.1:15010"`, `"zone": "a"`} {
		if !strings.Contains(string(doc), want) {
			t.Errorf("no %s in\n%s", want, doc)
		}
	}
}

// TestEnvoyTakesIt lets the real Envoy validate the document.
func TestEnvoyTakesIt(t *testing.T) {
	envoy := os.Getenv("SIGHTLINE_ENVOY")
	if envoy == "" {
		envoy = "../../../../.cache/envoy/envoy"
	}
	if _, err := os.Stat(envoy); err != nil {
		t.Fatalf("no Envoy (%v): run make envoy", err)
	}
	for name, change := range map[string]func(*bootstrap.Params){
		"with an admin page":    func(*bootstrap.Params) {},
		"without an admin page": func(p *bootstrap.Params) { p.Admin = netip.AddrPort{} },
		"over IPv6":             func(p *bootstrap.Params) { p.Server = "[::1]:15010" },
		"without a zone":        func(p *bootstrap.Params) { p.Zone = "" },
	} {
		t.Run(name, func(t *testing.T) {
			p := params(t)
			change(&p)
			doc, err := bootstrap.Envoy(p)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "envoy.yaml")
			if err := os.WriteFile(file, doc, 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(envoy, "--mode", "validate", "-c", file, "--log-level", "warn").CombinedOutput(); err != nil {
				t.Errorf("%v: %s\n%s", err, out, doc)
			}
		})
	}
}

// TestEnvoyNeedsAnAddress refuses a host name: Envoy's static cluster takes none.
func TestEnvoyNeedsAnAddress(t *testing.T) {
	p := params(t)
	p.Server = "sightline.example:15010"
	if _, err := bootstrap.Envoy(p); err == nil || !strings.Contains(err.Error(), "sightline.example:15010") {
		t.Errorf("got %v", err)
	}
}
