package xds

import (
	"cmp"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sightlinedev/sightline/views"
)

const (
	// envoyConnectTimeout bounds a dial, so that a dead address is left quickly.
	envoyConnectTimeout = time.Second
	// assignmentWait is how long a changed Cluster waits for its assignment
	// before it uses the one it had; 15 s otherwise (PEERS.md part 1, n2).
	assignmentWait = 500 * time.Millisecond
	// httpOptions is the key under which Envoy looks for a Cluster's protocol.
	httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	// metadataKey is the namespace of our endpoint metadata.
	metadataKey = "sightline"
)

// forEnvoy adds what Envoy needs in a Cluster: our guard is the only one (panic
// 0), nothing is merged or waited for, and gRPC travels over HTTP/2.
func forEnvoy(c *clusterv3.Cluster, p views.Protocol) error {
	c.ConnectTimeout = durationpb.New(envoyConnectTimeout)
	c.EdsClusterConfig.EdsConfig.InitialFetchTimeout = durationpb.New(assignmentWait)
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{
		HealthyPanicThreshold: &typev3.Percent{Value: 0},
		UpdateMergeWindow:     durationpb.New(0),
	}
	th := c.CircuitBreakers.Thresholds[0]
	th.MaxConnections = wrapperspb.UInt32(manyRequests)
	th.MaxPendingRequests = wrapperspb.UInt32(manyRequests)
	if p != views.HTTP2 && p != views.GRPC {
		return nil
	}
	options, err := anypb.New(&upstreamv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
				},
			},
		},
	})
	if err != nil {
		return err
	}
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: options}
	return nil
}

// trueLocalities groups members by where they really are; their weights are
// those of the endpoints, which Envoy honours across localities. That of a
// locality is there for who reads an assignment by the rules of all clients.
func trueLocalities(ps []placed) []locality {
	type place struct {
		tier         tier
		region, zone string
	}
	var ls []locality
	index := make(map[place]int)
	for _, p := range ps {
		at := place{p.tier, p.member.Region, p.member.Zone}
		i, ok := index[at]
		if !ok {
			i = len(ls)
			index[at] = i
			ls = append(ls, locality{region: at.region, zone: at.zone, tier: at.tier, level: p.level})
		}
		ls[i].members = append(ls[i].members, p)
		ls[i].weight += p.weight
	}
	slices.SortFunc(ls, func(a, b locality) int {
		return cmp.Or(cmp.Compare(a.tier, b.tier), cmp.Compare(a.region, b.region), cmp.Compare(a.zone, b.zone))
	})
	return ls
}
