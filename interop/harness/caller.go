package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
)

// LeftByGRPC is the goroutine that grpc-go's xDS clients leave behind for each
// bootstrap with certificates, for goleak.IgnoreAnyFunction.
const LeftByGRPC = "google.golang.org/grpc/credentials/tls/certprovider/pemfile.(*watcher).run"

// Bootstrap describes a gRPC client's way to its xDS server.
type Bootstrap struct {
	Server string // host:port
	SVID   *SVID  // nil: plaintext
	NodeID string
	Region string
	Zone   string
}

// JSON is the bootstrap document as stock clients read it (PEERS.md part 2):
// one server, and last good resources are kept when the server removes them.
func (b Bootstrap) JSON(t testing.TB) []byte {
	t.Helper()
	creds := map[string]any{"type": "insecure"}
	if b.SVID != nil {
		creds = map[string]any{"type": "tls", "config": map[string]any{
			"certificate_file": b.SVID.CertFile, "private_key_file": b.SVID.KeyFile,
			"ca_certificate_file": b.SVID.BundleFile, "refresh_interval": "60s",
		}}
	}
	doc, err := json.Marshal(map[string]any{
		"xds_servers": []any{map[string]any{
			"server_uri":      "dns:///" + b.Server,
			"channel_creds":   []any{creds},
			"server_features": []string{"xds_v3", "ignore_resource_deletion"},
		}},
		"node": map[string]any{
			"id": b.NodeID, "cluster": "test",
			"locality": map[string]any{"region": b.Region, "zone": b.Zone},
		},
	})
	if err != nil {
		t.Fatalf("bootstrap: %v", err)
	}
	return doc
}

// Caller is a stock grpc-go client that dials an xds:/// target, and asks
// grpc.health.v1 of whoever answers.
type Caller struct {
	conn *grpc.ClientConn
}

// Dial opens a channel to xds:///target, in plaintext towards the instances,
// with a bootstrap of its own.
func Dial(t testing.TB, b Bootstrap, target string, opts ...grpc.DialOption) *Caller {
	t.Helper()
	return DialDocument(t, b.JSON(t), target, opts...)
}

// DialDocument is Dial with a bootstrap document that somebody else wrote, such
// as the product itself.
func DialDocument(t testing.TB, bootstrap []byte, target string, opts ...grpc.DialOption) *Caller {
	t.Helper()
	res, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	if err != nil {
		t.Fatalf("xds resolver: %v", err)
	}
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithResolvers(res)}, opts...)
	conn, err := grpc.NewClient("xds:///"+target, opts...)
	if err != nil {
		t.Fatalf("dial xds:///%s: %v", target, err)
	}
	c := &Caller{conn: conn}
	t.Cleanup(c.Close)
	return c
}

// DialPlain opens a channel to host:port, with another authority if one is
// given: this is how an application calls through its sidecar.
func DialPlain(t testing.TB, addr, authority string) *Caller {
	t.Helper()
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if authority != "" {
		opts = append(opts, grpc.WithAuthority(authority))
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, opts...)
	if err != nil {
		t.Fatalf("dial %s: %v", addr, err)
	}
	c := &Caller{conn: conn}
	t.Cleanup(c.Close)
	return c
}

// Close closes the channel; twice is safe.
func (c *Caller) Close() { _ = c.conn.Close() }

// Call makes one call and returns the name of the backend that answered.
func (c *Caller) Call(ctx context.Context) (backend string, err error) {
	var h metadata.MD
	_, err = healthpb.NewHealthClient(c.conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&h))
	return strings.Join(h.Get(BackendHeader), ","), err
}

// Calls makes n calls, each with the deadline given, and counts the answers by
// backend; failed calls are counted under "ERR " and the code's name.
func (c *Caller) Calls(n int, deadline time.Duration) map[string]int {
	counts := make(map[string]int)
	for range n {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		name, err := c.Call(ctx)
		cancel()
		if err != nil {
			name = "ERR " + status.Code(err).String()
		}
		counts[name]++
	}
	return counts
}

// WaitFor calls until a call succeeds.
func (c *Caller) WaitFor(t testing.TB, limit time.Duration) {
	t.Helper()
	Eventually(t, limit, "a first successful call", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := c.Call(ctx)
		return err
	})
}

// WaitOnly calls until a round of calls is answered by exactly the backends
// named, and none failed.
func (c *Caller) WaitOnly(t testing.TB, limit time.Duration, backends ...string) {
	t.Helper()
	Eventually(t, limit, fmt.Sprintf("calls answered by %v only", backends), func() error {
		got := c.Calls(20*len(backends), time.Second)
		if len(got) != len(backends) {
			return fmt.Errorf("answered by %v", got)
		}
		for _, b := range backends {
			if got[b] == 0 {
				return fmt.Errorf("answered by %v", got)
			}
		}
		return nil
	})
}

// Idle reports whether the channel has no connection because nobody called for
// as long as its idle timeout says.
func (c *Caller) Idle() bool { return c.conn.GetState() == connectivity.Idle }
