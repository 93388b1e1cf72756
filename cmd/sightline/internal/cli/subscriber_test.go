package cli

import (
	"context"
	"errors"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
)

const clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

// subscriber is an xDS client that asks for Clusters and answers when told.
type subscriber struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	last   *discoveryv3.DeltaDiscoveryResponse
}

// subscribe opens a delta stream for Clusters, until the test ends, and takes
// the first answer without acknowledging it.
func (w *world) subscribe(node string, names ...string) *subscriber {
	w.t.Helper()
	files := devca.FilesOf(w.srv.IdentityDir(), devca.WorkloadName)
	src, err := svid.FromFiles(files, 0, svid.Events{})
	if err != nil {
		w.t.Fatal(err)
	}
	conn, err := grpc.NewClient(w.srv.Addrs().XDS.String(), grpc.WithTransportCredentials(src.ClientCredentials(svid.OurServer(src.TrustDomain()))))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(func() { cancel(); _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: node, UserAgentName: "envoy"}, TypeUrl: clusterType, ResourceNamesSubscribe: names,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	s := &subscriber{stream: stream}
	if s.last, err = stream.Recv(); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// refuse answers the last response with an error.
func (s *subscriber) refuse(text string) error {
	return s.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: clusterType, ResponseNonce: s.last.GetNonce(),
		ErrorDetail: &status.Status{Code: int32(codes.InvalidArgument), Message: text},
	})
}

// until repeats a command line until its output has the text.
func (w *world) until(line, says string) {
	w.t.Helper()
	eventually(w.t, line+" says "+says, func() error {
		if r := w.run("", strings.Fields(line)...); !strings.Contains(r.out+r.errOut, says) {
			return errors.New(r.out + r.errOut)
		}
		return nil
	})
}
