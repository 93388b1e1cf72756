package harness

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// apply writes rows with grpcurl, as an operator.
func apply(t *testing.T, s *Server, changes ...object) {
	t.Helper()
	body, err := json.Marshal(object{"changes": changes})
	if err != nil {
		t.Fatal(err)
	}
	if out, code := RunGrpcurl(t, s.Operator(t), s.API, string(body), "sightline.registry.v1.RegistryService/Apply"); code != 0 {
		t.Fatalf("apply ended with %d: %s", code, out)
	}
}

func putService(name string) object {
	return object{"put_service": object{
		"namespace": "shop", "name": name, "exposure": object{"dns_anonymous": true},
		"ports": []any{object{"name": "grpc", "number": 9090, "protocol": "PROTOCOL_GRPC"}},
	}}
}

func putInstance(service string, b *Backend) object {
	return object{"put_instance": object{
		"namespace": "shop", "service": service, "label": b.Name, "address": b.Addr.Addr().String(),
		"identity": "spiffe://test/ns/shop/sa/" + service, "zone": "a",
		"ports": []any{object{"name": "grpc", "number": b.Addr.Port()}},
	}}
}

// The runners work together against the built binary: what an operator writes
// with grpcurl reaches grpc-go, Envoy and dig, and stays through a crash of the
// server.
func TestRunnersReachTheProduct(t *testing.T) {
	s := StartServer(t, ServerConfig{Command: "server"})
	one := StartBackendAt(t, "one", "127.0.0.2:0")
	two := StartBackendAt(t, "two", "127.0.0.3:0")
	apply(t, s, putService("checkout"), putInstance("checkout", one), putInstance("checkout", two))

	web := s.CA.Mint(t, "/ns/shop/sa/web")
	envoy := StartEnvoy(t, EnvoyConfig{XDS: s.XDS, SVID: web, NodeID: "envoy", Zone: "a"})
	envoy.WaitLive(t, 10*time.Second)
	callers := map[string]*Caller{
		"grpc-go": Dial(t, Bootstrap{Server: s.XDS, SVID: web, NodeID: "go", Zone: "a"}, "checkout.shop"),
		"envoy":   DialPlain(t, envoy.Outbound.String(), "checkout.shop"),
	}
	everywhere := func(backends ...*Backend) {
		t.Helper()
		var names, addrs []string
		for _, b := range backends {
			names, addrs = append(names, b.Name), append(addrs, b.Addr.Addr().String())
		}
		for name, c := range callers {
			t.Logf("%s is to reach only %v", name, names)
			c.WaitOnly(t, 15*time.Second, names...)
		}
		Eventually(t, 10*time.Second, "dig agrees", func() error {
			a := RunDig(t, s.DNS, "checkout.shop.svc.sightline.test.", "A")
			got := a.Data("A")
			slices.Sort(got)
			if a.Status != "NOERROR" || !a.Has("aa") || !slices.Equal(got, addrs) {
				return fmt.Errorf("%s %v", a.Status, got)
			}
			return nil
		})
	}
	everywhere(one, two)
	s.Kill()
	for name, c := range callers {
		if got := c.Calls(50, time.Second); got["one"]+got["two"] != 50 {
			t.Errorf("%s without a server: %v", name, got)
		}
	}
	s.Restart(t)
	everywhere(one, two)
	apply(t, s, object{"delete_instance": object{"namespace": "shop", "service": "checkout", "instance": "two"}})
	everywhere(one)
	if n := envoy.Rejected(t); n != 0 {
		t.Errorf("Envoy refused %d updates", n)
	}
	hosts := envoy.Hosts(t, "checkout.shop")
	if len(hosts) != 1 || hosts[0].Addr != netip.AddrPort(one.Addr) || hosts[0].Zone != "a" || hosts[0].Health != "HEALTHY" {
		t.Errorf("Envoy's hosts: %+v", hosts)
	}
	if dump := envoy.ConfigDump(t); !strings.Contains(dump, `"spiffe_id": "spiffe://test/ns/shop/sa/checkout"`) {
		t.Error("Envoy is not told who its endpoints are")
	}
}

// What sightline bootstrap prints is what real clients need.
func TestRealClientsStartFromTheProductsBootstraps(t *testing.T) {
	s := StartServer(t, ServerConfig{})
	one := StartBackend(t, "one")
	apply(t, s, putService("checkout"), putInstance("checkout", one))
	web := s.CA.Mint(t, "/ns/shop/sa/web")
	bootstrap := func(kind string, more ...string) string {
		t.Helper()
		args := append([]string{"bootstrap", kind, "--xds", s.XDS, "--cert", web.CertFile, "--key", web.KeyFile,
			"--bundle", web.BundleFile, "--node-id", kind, "--node-cluster", "web", "--zone", "a"}, more...)
		out, code := Run(t, 10*time.Second, []string{"HOME=" + t.TempDir()}, SightlineBinary(t), args...)
		if code != 0 {
			t.Fatalf("sightline bootstrap %s ended with %d", kind, code)
		}
		return out
	}
	DialDocument(t, []byte(bootstrap("grpc")), "checkout.shop").WaitOnly(t, 10*time.Second, "one")

	outbound := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(FreeBlock(t)))
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	doc := bootstrap("envoy", "--listen", outbound.String(), "--trust-domain", s.CA.TrustDomain)
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	envoy := StartEnvoyFile(t, "from bootstrap", file, outbound)
	envoy.WaitLive(t, 10*time.Second)
	DialPlain(t, envoy.Outbound.String(), "checkout.shop").WaitOnly(t, 10*time.Second, "one")
	if n := envoy.Rejected(t); n != 0 {
		t.Errorf("Envoy refused %d updates", n)
	}
}
