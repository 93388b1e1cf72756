package xds

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
)

func splitLines(s string) []string { return strings.Split(s, "\n") }

// isNackCount says that a line of /metrics counts at least one rejection.
func isNackCount(line string) bool {
	return strings.HasPrefix(line, "sightline_") && strings.Contains(line, "nack") && !strings.HasSuffix(line, " 0")
}

// Whoever has no identity, or one that is not of this trust domain, learns
// nothing on either port.
func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.api.Apply(t, harness.WithoutRamp("orders.shop"), harness.PutService("orders.shop"), harness.PutInstance("orders.shop", "a", at(1, 0)))
	w.published("orders.shop", 1)

	other := harness.NewCA(t, "other")
	forged := harness.NewCA(t, w.s.CA.TrustDomain)
	believing := func(s *harness.SVID) *harness.SVID { s.Roots = w.s.CA.Roots(); return s }
	nobody := *w.web
	nobody.Cert.Certificate = nil
	for name, who := range map[string]*harness.SVID{
		"no certificate":                      &nobody,
		"another trust domain":                believing(other.Mint(t, "/sightline/operator/test")),
		"another authority of the same name":  believing(forged.Mint(t, "/sightline/operator/test")),
		"our authority, another trust domain": w.s.CA.MintFor(t, "spiffe://other/sightline/operator/test", time.Hour),
		"expired":                             w.s.CA.MintFor(t, "spiffe://test/sightline/operator/test", -time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			api := harness.DialTLS(t, w.s.API, who)
			refused := func(what string, err error) {
				t.Helper()
				if c := status.Code(err); c != codes.Unavailable && c != codes.Unauthenticated && c != codes.PermissionDenied {
					t.Errorf("%s: %v", what, err)
				}
				if strings.Contains(status.Convert(err).Message(), "orders") {
					t.Errorf("%s: the refusal tells what exists: %v", what, err)
				}
			}
			_, err := resolvev1.NewResolveServiceClient(api).Resolve(ctx, &resolvev1.ResolveRequest{Namespace: "shop", Name: "orders"})
			refused("Resolve", err)
			_, err = healthpb.NewHealthClient(api).Check(ctx, &healthpb.HealthCheckRequest{})
			refused("health", err)
			c, err := rawxds.Delta(ctx, harness.DialTLS(t, w.s.XDS, who), rawxds.Node("x", envoyUA, "", ""), nil)
			if err == nil {
				_ = c.Subscribe(rawxds.CDS, "*")
				_ = c.Await(10*time.Second, func() bool { return c.Err() != nil || len(c.Responses("")) > 0 })
				err = c.Err()
				c.Close()
			}
			refused("ADS", err)
		})
	}
	c := w.delta(nil)
	w.ok(c.Subscribe(rawxds.EDS, "orders.shop"))
	w.holds(c, "orders.shop", budget, at(1, 0))
}
