package server

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/status"
)

// estate is a production server with identity files that a test rotates.
type estate struct {
	*running
	ca  *devca.Authority
	dir string
}

func startProduction(t *testing.T, change func(*Config)) *estate {
	t.Helper()
	ca, err := devca.New(DefaultTrustDomain, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	e := &estate{ca: ca, dir: t.TempDir()}
	files := e.write(t, ca)
	l := limits.Default()
	l.Availability.SVIDPoll = 50 * time.Millisecond
	cfg := devConfig(dataDir(t))
	cfg.Mode, cfg.DNSZones, cfg.SVIDs, cfg.Limits = Production, []string{"prod.example."}, files, &l
	if change != nil {
		change(&cfg)
	}
	e.running = start(t, cfg)
	return e
}

// write puts a new SVID of the server under the authority's root in place.
func (e *estate) write(t *testing.T, ca *devca.Authority) svid.Files {
	t.Helper()
	f, err := ca.Write(e.dir, "server", identity.MustParse("spiffe://"+DefaultTrustDomain+"/sightline/server/a"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// as returns an identity of the authority.
func (e *estate) as(path string) *svid.Source {
	e.t.Helper()
	d, err := e.ca.Issue(identity.MustParse("spiffe://"+DefaultTrustDomain+path), time.Now())
	if err != nil {
		e.t.Fatal(err)
	}
	s, err := svid.FromDocuments(d.SVID, d.Key, e.ca.Bundle())
	if err != nil {
		e.t.Fatal(err)
	}
	return s
}

// waiting opens a stream that hears the server's health and then waits.
func waiting(t *testing.T, c *grpc.ClientConn) healthpb.Health_WatchClient {
	t.Helper()
	stream, err := healthpb.NewHealthClient(c).Watch(callCtx(t), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	return stream
}

// TestRotations: a new SVID of the server breaks no stream; a root that leaves
// the bundle ends those under it, with the reason, and nobody gets in again.
func TestRotations(t *testing.T) {
	e := startProduction(t, nil)
	stream := waiting(t, e.dialAPI(e.as("/ns/shop/sa/web")))
	ended := make(chan error, 1)
	go func() { _, err := stream.Recv(); ended <- err }()

	e.write(t, e.ca)
	e.eventually("the new SVID is in force", func() bool { return strings.Count(e.logs.String(), "identity in force") == 2 })
	waiting(t, e.dialAPI(e.as("/ns/shop/sa/other"))) // new connections work
	select {
	case err := <-ended:
		t.Fatalf("the server's rotation ended a stream: %v", err)
	default:
	}

	other, err := devca.New(DefaultTrustDomain, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	e.write(t, other)
	select {
	case err := <-ended:
		if code, _ := status.CodeOf(err); code != status.IdentityExpired || grpcstatus.Code(err) != codes.Unauthenticated {
			t.Errorf("the stream under the removed root ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the stream under the removed root goes on")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := healthpb.NewHealthClient(e.dialAPI(e.as("/ns/shop/sa/web"))).Check(ctx, &healthpb.HealthCheckRequest{}); err == nil {
		t.Error("an identity under the removed root got in")
	}
}

// TestProductionIsStrict: the own namespace is visible and another's looks like
// nothing, an instance's own word proves no address, reflection is not for
// workloads.
func TestProductionIsStrict(t *testing.T) {
	manifests := t.TempDir()
	manifest := "apiVersion: sightline.dev/v1\nkind: Service\nmetadata: {namespace: shop, name: cart}\nspec: {ports: [{name: grpc, number: 8080, protocol: grpc}]}\n"
	if err := os.WriteFile(filepath.Join(manifests, "cart.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	e := startProduction(t, func(c *Config) { c.Manifests = map[string]string{"prod": manifests} })
	ask := func(path, name string) error {
		_, err := resolvev1.NewResolveServiceClient(e.dialAPI(e.as(path))).Resolve(callCtx(t), &resolvev1.ResolveRequest{Namespace: "shop", Name: name})
		return err
	}
	e.eventually("the own namespace sees it", func() bool { return ask("/ns/shop/sa/web", "cart") == nil })
	hidden, missing := ask("/ns/front/sa/web", "cart"), ask("/ns/front/sa/web", "none")
	if grpcstatus.Code(hidden) != codes.NotFound || grpcstatus.Code(missing) != codes.NotFound ||
		strings.ReplaceAll(hidden.Error(), "cart", "none") != missing.Error() {
		t.Errorf("forbidden: %v\nmissing:   %v", hidden, missing)
	}
	_, err := registryv1.NewRegistryServiceClient(e.dialAPI(e.as("/ns/shop/sa/cart"))).RegisterInstance(callCtx(t),
		&registryv1.RegisterInstanceRequest{Instance: &registryv1.Instance{Namespace: "shop", Service: "cart",
			Endpoint: &registryv1.Instance_Address{Address: "10.0.0.1"}}})
	if err == nil {
		e.eventually("an unproved address is not listed", func() bool {
			r, err := resolvev1.NewResolveServiceClient(e.dialAPI(e.as("/ns/shop/sa/web"))).Resolve(callCtx(t), &resolvev1.ResolveRequest{Namespace: "shop", Name: "cart"})
			return err == nil && len(listed(r.GetView())) == 0
		})
	}
	refused := knock(t, e.dialAPI(e.as("/ns/shop/sa/web")), "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
	if code, _ := status.CodeOf(refused); code != status.ClassDenied {
		t.Errorf("reflection for a workload: %v", refused)
	}
}

// TestHalfOpenHandshakes: connections that never speak hold their places for
// the handshake's time only, and then others come in.
func TestHalfOpenHandshakes(t *testing.T) {
	e := startProduction(t, func(c *Config) {
		c.Limits.Transport.Handshakes, c.Limits.Transport.HandshakeTimeout = 2, 300*time.Millisecond
	})
	for range 6 {
		raw, err := net.Dial("tcp", e.Addrs().API.String())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
	}
	if n := len(e.apiGate.handshakes); n > 2 {
		t.Errorf("%d handshakes in flight", n)
	}
	if _, err := healthpb.NewHealthClient(e.dialAPI(e.as("/ns/shop/sa/web"))).Check(callCtx(t), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("behind half-open connections: %v", err)
	}
	e.eventually("their places are free", func() bool { return len(e.apiGate.handshakes) <= 1 })
}

// TestAnExpiringIdentityEndsItsStream: the timer of a connection fires at the
// certificate's own end.
func TestAnExpiringIdentityEndsItsStream(t *testing.T) {
	e := startProduction(t, nil)
	// An authority whose life ends in two seconds, beside the server's own root.
	short, err := devca.New(DefaultTrustDomain, time.Now().Add(2*time.Second-devca.Life))
	if err != nil {
		t.Fatal(err)
	}
	both := append(e.ca.Bundle(), short.Bundle()...)
	if err := os.WriteFile(filepath.Join(e.dir, "bundle.pem"), both, 0o600); err != nil {
		t.Fatal(err)
	}
	e.eventually("both roots are believed", func() bool { return strings.Count(e.logs.String(), "identity in force") == 2 })
	d, err := short.Issue(identity.MustParse("spiffe://"+DefaultTrustDomain+"/ns/shop/sa/brief"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	who, err := svid.FromDocuments(d.SVID, d.Key, both)
	if err != nil {
		t.Fatal(err)
	}
	_, err = waiting(t, e.dialAPI(who)).Recv()
	if code, _ := status.CodeOf(err); code != status.IdentityExpired || grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("the stream ended with %v", err)
	}
}
