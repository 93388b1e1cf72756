package xds

import (
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sightlinedev/sightline/views"
)

// Localities of the grouped form: 50 in all, and for callers that prefer their
// zone shared out over the tiers, since grpc-java overwrites a locality that
// appears in two priorities (XDS.md §2.1).
const (
	groups     = 50
	groupsNear = 24
	groupsFar  = 24
	groupsLast = 2
)

// manyRequests stands for "no limit": gRPC and Envoy would otherwise fail calls
// beyond 1,024 at once to a Cluster.
const manyRequests = 1 << 30

// ownLocalities gives every member a locality of its own, named by its uid and
// weighted by its weight: gRPC ignores the weights of endpoints, honours those
// of localities, and reports load per locality.
func ownLocalities(ps []placed) []*endpointv3.LocalityLbEndpoints {
	es, ls := newEndpoints(len(ps)), newLocalities(len(ps))
	for i := range ps {
		ls.own(&ps[i], es)
	}
	return ls.list
}

// groupedLocalities shares members out over a fixed number of localities by
// their uid, so that no weight or health moves one; a member whose weight is
// not full has its own (DESIGN.md §9).
func groupedLocalities(v *views.View, ps []placed) []*endpointv3.LocalityLbEndpoints {
	es, ls := newEndpoints(len(ps)), newLocalities(groups)
	var index [tiers][groups]*endpointv3.LocalityLbEndpoints
	for i := range ps {
		p := &ps[i]
		if p.member.OwnLocality {
			ls.own(p, es)
			continue
		}
		g := groupOf(p.member.UID, groupCount(v, p.tier))
		if index[p.tier][g] == nil {
			index[p.tier][g] = ls.add("", "", groupName(p.tier, g), p.tier, 0)
		}
		l := index[p.tier][g]
		l.LoadBalancingWeight.Value += p.member.Weight
		l.LbEndpoints = append(l.LbEndpoints, es.add(p.at, health(p.member), 0))
	}
	return ls.list
}

// flatLocalities puts all members of a tier into one locality: exact round
// robin, which no weight can move.
func flatLocalities(ps []placed) []*endpointv3.LocalityLbEndpoints {
	es, ls := newEndpoints(len(ps)), newLocalities(1)
	var all [tiers]*endpointv3.LocalityLbEndpoints
	for i := range ps {
		p := &ps[i]
		if all[p.tier] == nil {
			all[p.tier] = ls.add("", "", flatNames[p.tier], p.tier, 1)
		}
		all[p.tier].LbEndpoints = append(all[p.tier].LbEndpoints, es.add(p.at, health(p.member), 0))
	}
	return ls.list
}

var (
	flatNames   = [tiers]string{"all", "all-far", "all-last"}
	groupPrefix = [tiers]string{"g", "far-g", "last-g"}
)

func groupName(t tier, g int) string { return groupPrefix[t] + strconv.Itoa(g) }

// groupOf spreads uids, which are consecutive, over n groups (the finaliser of
// SplitMix64).
func groupOf(u views.UID, n int) int {
	x := uint64(u)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return int((x ^ x>>31) % uint64(n))
}

func groupCount(v *views.View, t tier) int {
	if !v.PreferZone {
		return groups
	}
	return [tiers]int{groupsNear, groupsFar, groupsLast}[t]
}

// localities makes the localities of one assignment; Priority holds the tier
// until numberPriorities.
type localities struct {
	list  []*endpointv3.LocalityLbEndpoints
	slots []localitySlot
	n     int
}

type localitySlot struct {
	entry    endpointv3.LocalityLbEndpoints
	locality corev3.Locality
	weight   wrapperspb.UInt32Value
	only     [1]*endpointv3.LbEndpoint
}

func newLocalities(n int) *localities {
	return &localities{list: make([]*endpointv3.LocalityLbEndpoints, 0, n), n: max(n, 1)}
}

func (ls *localities) add(region, zone, subZone string, t tier, weight uint32) *endpointv3.LocalityLbEndpoints {
	l := &ls.slot().entry
	l.Locality.Region, l.Locality.Zone, l.Locality.SubZone = region, zone, subZone
	l.Priority = uint32(t)
	l.LoadBalancingWeight.Value = weight
	ls.list = append(ls.list, l)
	return l
}

func (ls *localities) slot() *localitySlot {
	if len(ls.slots) == 0 {
		ls.slots = make([]localitySlot, ls.n)
	}
	s := &ls.slots[0]
	ls.slots = ls.slots[1:]
	s.entry.Locality, s.entry.LoadBalancingWeight = &s.locality, &s.weight
	s.entry.LbEndpoints = s.only[:0]
	return s
}

func (ls *localities) own(p *placed, es *endpoints) {
	l := ls.add(p.member.Region, p.member.Zone, p.member.UID.String(), p.tier, p.member.Weight)
	l.LbEndpoints = append(l.LbEndpoints, es.add(p.at, health(p.member), 0))
}

// cluster is the Cluster of one port. It holds nothing that a member, a weight
// or an identity changes: its bytes are stable while the service's ports are.
func cluster(v *views.View, name string, port int, s shape) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads()},
		LbPolicy:             clusterv3.Cluster_ROUND_ROBIN,
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxRequests: wrapperspb.UInt32(manyRequests),
		}}},
	}
	if s == shapeEnvoy {
		forEnvoy(c, v.Ports[port].Protocol)
	}
	return c
}

// ads says that a resource is to be asked for on the stream that named it.
func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

// apiListener is what a channel to xds:///name asks for first. Its routes ride
// in it, so that a channel starts with one round trip less and cannot see a
// Listener and routes of different moments.
func apiListener(name, cluster string) (*listenerv3.Listener, error) {
	router, err := routerFilter()
	if err != nil {
		return nil, err
	}
	hcm, err := anypb.New(&hcmv3.HttpConnectionManager{
		StatPrefix:     name,
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: apiRoutes(name, cluster)},
		HttpFilters:    []*hcmv3.HttpFilter{router},
	})
	if err != nil {
		return nil, err
	}
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: hcm}}, nil
}

// apiRoutes sends every call of a channel to its Cluster. The domain is exactly
// what was dialled, since grpc-go compares the whole string.
func apiRoutes(name, cluster string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name: name,
		VirtualHosts: []*routev3.VirtualHost{{
			Name:    name,
			Domains: []string{name},
			Routes: []*routev3.Route{{
				Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: ""}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
				}},
			}},
		}},
	}
}

// routerFilter is the one HTTP filter, which both kinds of client need last.
func routerFilter() (*hcmv3.HttpFilter, error) {
	router, err := anypb.New(&routerv3.Router{})
	if err != nil {
		return nil, err
	}
	return &hcmv3.HttpFilter{
		Name:       "envoy.filters.http.router",
		ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: router},
	}, nil
}
