package xds

import (
	"slices"
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
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
func ownLocalities(ps []placed) []locality {
	ls := make([]locality, len(ps))
	for i := range ps {
		ls[i] = ownLocality(ps[i : i+1])
	}
	return ls
}

func ownLocality(one []placed) locality {
	m := one[0].member
	return locality{region: m.Region, zone: m.Zone, subZone: m.UID.String(), tier: one[0].tier, level: one[0].level, weight: one[0].weight, members: one}
}

// groupedLocalities shares members out over a fixed number of localities by
// their uid, so that no weight or health moves one; a member whose weight is
// not full has its own (DESIGN.md §9).
func groupedLocalities(v *views.View, ps []placed) []locality {
	var ls []locality
	var index [tiers][groups]int // 1 + the group's place in ls
	for i := range ps {
		m, t := ps[i].member, ps[i].tier
		if m.OwnLocality {
			ls = append(ls, ownLocality(ps[i:i+1]))
			continue
		}
		g := groupOf(m.UID, groupCount(v, t))
		if index[t][g] == 0 {
			ls = append(ls, locality{subZone: groupName(t, g), tier: t, level: ps[i].level})
			index[t][g] = len(ls)
		}
		l := &ls[index[t][g]-1]
		l.weight += ps[i].weight
		l.members = append(l.members, ps[i])
	}
	return ls
}

// flatLocalities puts all members of a tier into one locality: exact round
// robin, which no weight can move. Only a zone that spills gives them weights.
func flatLocalities(ps []placed) []locality {
	all := make([]locality, tiers)
	for t := range all {
		all[t] = locality{subZone: flatName(tier(t)), tier: tier(t), level: tier(t)}
	}
	spills := false
	for _, p := range ps {
		l := &all[p.tier]
		l.members = append(l.members, p)
		l.weight += p.weight
		l.level = p.level
		spills = spills || p.level != p.tier
	}
	for t := range all {
		if !spills {
			all[t].weight = 1
		}
	}
	return slices.DeleteFunc(all, func(l locality) bool { return len(l.members) == 0 })
}

// suffix tells the localities of one tier from those of another.
func (t tier) suffix() string {
	switch t {
	case tierFar:
		return "-far"
	case tierLast:
		return "-last"
	}
	return ""
}

func flatName(t tier) string { return "all" + t.suffix() }

func groupName(t tier, g int) string { return "g" + strconv.Itoa(g) + t.suffix() }

// groupOf spreads uids, which are consecutive, over n groups (the finaliser of
// SplitMix64).
func groupOf(u views.UID, n int) int {
	x := uint64(u)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return int((x ^ x>>31) % uint64(n))
}

func groupCount(v *views.View, t tier) int {
	switch {
	case !v.PreferZone:
		return groups
	case t == tierNear:
		return groupsNear
	case t == tierFar:
		return groupsFar
	}
	return groupsLast
}

// cluster is the Cluster of one port. It holds nothing that a member, a weight
// or an identity changes: its bytes are stable while the service's ports are.
func cluster(v *views.View, name string, port int, s shape) (*clusterv3.Cluster, error) {
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads()},
		LbPolicy:             clusterv3.Cluster_ROUND_ROBIN,
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxRequests: wrapperspb.UInt32(manyRequests),
		}}},
	}
	if s != shapeEnvoy {
		c.LrsServer = self()
		return c, nil
	}
	if err := forEnvoy(c, v.Ports[port].Protocol); err != nil {
		return nil, err
	}
	return c, nil
}

// ads says that a resource is to be asked for on the stream that named it.
func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

// self has gRPC clients report what came of their calls to whoever sent the
// Cluster. Envoy ignores it, and reports as its bootstrap says.
func self() *corev3.ConfigSource {
	return &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}}}
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
