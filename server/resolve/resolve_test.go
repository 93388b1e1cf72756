package resolve

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/svid"
	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var shopper = identity.Principal{ID: identity.MustParse("spiffe://example.org/ns/shop/sa/cart")}

// serve runs the Service over bufconn, with who as every request's caller.
func serve(t *testing.T, c Config, who *identity.Principal) resolvev1.ResolveServiceClient {
	lis := bufconn.Listen(1 << 16)
	srv := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if who != nil {
			ctx = svid.WithPrincipal(ctx, *who)
		}
		return next(ctx, req)
	}))
	resolvev1.RegisterResolveServiceServer(srv, New(c))
	go srv.Serve(lis)
	conn, err := grpc.NewClient("passthrough:///buf", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); srv.Stop() })
	return resolvev1.NewResolveServiceClient(conn)
}

func checkout() *views.View {
	return &views.View{
		Name: views.Name{Namespace: "shop", Service: "checkout"}, Endpoint: views.Version{Epoch: 7, Seq: 9}, Config: views.Version{Epoch: 7, Seq: 4},
		Ports: []views.Port{{Name: "grpc", Number: 8080}}, Guard: views.Guard{Tripped: true, Zones: []string{"a"}, Floor: 50, Members: 2},
		Confidence: views.ConfidenceDegraded, ListedCount: 1,
		Members: []*views.Member{
			{UID: 1, Capability: "probed", Endpoint: views.Endpoint{Addr: netip.MustParseAddr("10.0.0.1")}, BaseWeight: 100, Weight: 1, State: views.Ineligible,
				Listed: true, LastResort: true, Evidence: views.Evidence{Rule: "R4", Detail: "3 of 5 callers"}},
			{UID: 2, Endpoint: views.Endpoint{URL: "https://f.example.org"}, BaseWeight: 100, Weight: 100, State: views.Unknown},
		},
	}
}

func config(v ...*views.View) Config {
	return Config{
		Snapshot: func() *views.Snapshot { return views.NewSnapshot(true, v...) },
		Policy:   func() *authz.Policy { return &authz.Policy{TrustDomain: "example.org"} },
	}
}

// TestResolve: every form of the name gives the whole view, listed or not.
func TestResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := serve(t, config(checkout()), &shopper)
		for _, req := range []*resolvev1.ResolveRequest{
			{Namespace: "shop", Name: "checkout"}, {Name: "shop/checkout"}, {Name: "checkout.shop"},
		} {
			resp, err := client.Resolve(t.Context(), req)
			if err != nil {
				t.Fatalf("%v: %v", req, err)
			}
			v := resp.GetView()
			if v.GetEndpointVersion() != "7.9" || v.GetConfigVersion() != "7.4" || resp.GetHeadVersion() != "7.9" || !v.GetGuard().GetTripped() ||
				v.GetConfidence() != viewv1.Confidence_CONFIDENCE_DEGRADED || len(v.GetMembers()) != 2 {
				t.Fatalf("view: %v", v)
			}
			m := v.GetMembers()[0]
			if m.GetState() != viewv1.State_STATE_INELIGIBLE || m.GetWeight() != 1 || m.GetCapability() != "probed" || !m.GetListed() || !m.GetLastResort() ||
				m.GetEvidence().GetRule() != "R4" || m.GetEvidence().GetDetail() != "3 of 5 callers" {
				t.Errorf("member: %v", m)
			}
			if v.GetMembers()[1].GetListed() || v.GetMembers()[1].GetUrl() == "" {
				t.Errorf("the other member: %v", v.GetMembers()[1])
			}
		}
	})
}

// TestUnknownAndForbidden: both are one answer, of one size, and are told apart
// only inside.
func TestUnknownAndForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hidden := checkout()
		hidden.Name = views.Name{Namespace: "bank", Service: "vault"}
		var told []string
		answer := func(c Config) *grpcstatus.Status {
			c.Events = Events{
				Refused:  func(who identity.Principal, n views.Name, rule string) { told = append(told, "refused "+n.String()) },
				Unknown:  func(identity.Principal) { told = append(told, "unknown") },
				Answered: func(identity.Principal, views.Name) { told = append(told, "answered") },
			}
			_, err := serve(t, c, &shopper).Resolve(t.Context(), &resolvev1.ResolveRequest{Namespace: "bank", Name: "vault"})
			if grpcstatus.Code(err) != codes.NotFound {
				t.Fatalf("got %v", err)
			}
			if code, _ := status.CodeOf(err); code != status.NotFound {
				t.Errorf("code %v", code)
			}
			return grpcstatus.Convert(err)
		}
		a, b := answer(config(hidden)), answer(config())
		if a.Message() != b.Message() || proto.Size(a.Proto()) != proto.Size(b.Proto()) || len(a.Details()) != len(b.Details()) {
			t.Errorf("forbidden %v, unknown %v", a, b)
		}
		for i := range a.Details() { // their maps have no order on the wire
			if !proto.Equal(a.Details()[i].(proto.Message), b.Details()[i].(proto.Message)) {
				t.Errorf("forbidden says %v, unknown %v", a.Details()[i], b.Details()[i])
			}
		}
		if want := []string{"refused bank/vault", "unknown"}; !slices.Equal(told, want) {
			t.Errorf("events %q, want %q", told, want)
		}
	})
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loading := config(checkout())
		loading.Snapshot = func() *views.Snapshot { return views.NewSnapshot(false, checkout()) }
		good := &resolvev1.ResolveRequest{Namespace: "shop", Name: "checkout"}
		for _, test := range []struct {
			what string
			c    Config
			who  *identity.Principal
			req  *resolvev1.ResolveRequest
			want codes.Code
		}{
			{"no identity", config(checkout()), nil, good, codes.Unauthenticated},
			{"the views are not complete", loading, &shopper, good, codes.Unavailable},
			{"an upper-case name", config(checkout()), &shopper, &resolvev1.ResolveRequest{Namespace: "shop", Name: "Checkout"}, codes.InvalidArgument},
			{"no name", config(checkout()), &shopper, &resolvev1.ResolveRequest{}, codes.InvalidArgument},
			{"three labels", config(checkout()), &shopper, &resolvev1.ResolveRequest{Name: "a.checkout.shop"}, codes.InvalidArgument},
			{"another trust domain", config(checkout()), &identity.Principal{ID: identity.MustParse("spiffe://other.org/ns/shop/sa/cart")}, good, codes.NotFound},
		} {
			if _, err := serve(t, test.c, test.who).Resolve(t.Context(), test.req); grpcstatus.Code(err) != test.want {
				t.Errorf("%s: %v, want %v", test.what, err, test.want)
			}
		}
	})
}

// TestGuessing: whoever asks for many names in vain is slowed down, alone.
func TestGuessing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config(checkout())
		c.MissesPerMinute = 3
		who := shopper
		client := serve(t, c, &who)
		ask := func(name string) codes.Code {
			_, err := client.Resolve(t.Context(), &resolvev1.ResolveRequest{Namespace: "shop", Name: name})
			return grpcstatus.Code(err)
		}
		for range 3 {
			if got := ask("nothing"); got != codes.NotFound {
				t.Fatalf("got %v", got)
			}
		}
		if got := ask("checkout"); got != codes.ResourceExhausted {
			t.Errorf("after three misses: %v", got)
		}
		who.ID = identity.MustParse("spiffe://example.org/ns/shop/sa/other")
		if got := ask("checkout"); got != codes.OK {
			t.Errorf("somebody else: %v", got)
		}
		who = shopper
		time.Sleep(time.Minute)
		if got := ask("checkout"); got != codes.OK {
			t.Errorf("a minute later: %v", got)
		}
	})
}
