package xds

import (
	"cmp"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
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
func forEnvoy(c *clusterv3.Cluster, p views.Protocol) {
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
		return
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
		return
	}
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: options}
}

// trueLocalities groups members by where they really are; their weights are
// those of the endpoints, which Envoy honours across localities.
func trueLocalities(v *views.View, ps []placed) []*endpointv3.LocalityLbEndpoints {
	type place struct {
		tier         tier
		region, zone string
	}
	es, ls := newEndpoints(len(ps)), newLocalities(1)
	index := make(map[place]*endpointv3.LocalityLbEndpoints)
	for i := range ps {
		p := &ps[i]
		at := place{p.tier, p.member.Region, p.member.Zone}
		l := index[at]
		if l == nil {
			l = ls.add(at.region, at.zone, "", at.tier, 0)
			l.LoadBalancingWeight = nil
			index[at] = l
		}
		e := es.add(p.at, health(p.member), p.member.Weight)
		e.Metadata = metadata(p.member, v.Confidence == views.ConfidenceDegraded || v.Guard.Tripped)
		l.LbEndpoints = append(l.LbEndpoints, e)
	}
	slices.SortStableFunc(ls.list, func(a, b *endpointv3.LocalityLbEndpoints) int {
		return cmp.Or(cmp.Compare(a.Locality.Region, b.Locality.Region), cmp.Compare(a.Locality.Zone, b.Locality.Zone))
	})
	return ls.list
}

// metadata says who an endpoint is. It holds nothing that changes with a
// member's health; confidence is there only while the guard speaks for the
// service (XDS.md §2.2).
func metadata(m *views.Member, degraded bool) *corev3.Metadata {
	fields := make(map[string]*structpb.Value, 4)
	fields["uid"] = structpb.NewStringValue(m.UID.String())
	if !m.Identity.IsZero() {
		fields["spiffe_id"] = structpb.NewStringValue(m.Identity.String())
	}
	if m.Capability != "" {
		fields["capability"] = structpb.NewStringValue(m.Capability)
	}
	if degraded {
		fields["confidence"] = structpb.NewStringValue(views.ConfidenceDegraded.String())
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{metadataKey: {Fields: fields}}}
}
