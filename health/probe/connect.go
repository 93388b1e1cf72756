package probe

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/sightlinedev/sightline/identity/svid"
)

// Connect makes the prober's connection to the API of a control plane, by
// mutual TLS with its SVID. A prober whose reports are silent for 10 s loses its
// targets, so it finds out soon that a connection is dead, and comes back soon.
func Connect(api string, source *svid.Source, extra ...grpc.DialOption) (*grpc.ClientConn, error) {
	retry := backoff.DefaultConfig
	retry.BaseDelay, retry.MaxDelay = 200*time.Millisecond, 3*time.Second
	return grpc.NewClient(api, append([]grpc.DialOption{
		grpc.WithTransportCredentials(source.ClientCredentials(svid.OurServer(source.TrustDomain()))),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 3 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WithUserAgent("sightline-prober"),
	}, extra...)...)
}
