package xds

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sightlinedev/sightline/views"
)

const (
	// routeTimeout is Envoy's own default, said explicitly: a hang must end as
	// an error for Envoy to count it (PEERS.md part 2c).
	routeTimeout = 15 * time.Second
	// deadlineMargin is by how much Envoy ends a gRPC call before its caller's
	// deadline does: only then the hang counts against the endpoint.
	deadlineMargin = 20 * time.Millisecond
	// retryMembers is how many further members a call may be offered to, and
	// retryPicks how often Envoy draws again to find one that was not tried.
	retryMembers = 2
	retryPicks   = 5
	// compositeBytes bounds one of the two generations of kept composites.
	compositeBytes = 16 << 20
)

// compositeKey names a composite by everything it is made of.
type compositeKey struct {
	typ      typ
	set      uint64
	outbound netip.AddrPort // Listener only
}

// composites keeps recent composites in two generations: what was not asked for
// while a whole generation filled is dropped, so that the bytes kept are bounded
// whatever sets come and go.
type composites struct {
	mu         sync.Mutex
	young, old map[compositeKey]*encoded
	size       int // bytes in young
}

// composite returns Envoy's outbound Listener or its RouteConfiguration over a
// set of services; nil for other types and clients, or when it is refused.
func (r *renderer) composite(t typ, set serviceSet, rd rendering) *encoded {
	if !rd.envoy || t != lds && t != rds {
		return nil
	}
	k := compositeKey{typ: t}
	if t == lds {
		if k.outbound = rd.outbound; !k.outbound.IsValid() {
			k.outbound = r.cfg.outbound
		}
	} else {
		k.set = set.key
	}
	if e, ok := r.composites.get(k); ok {
		return e
	}
	// Encoded without the lock: thousands of routes take milliseconds, and two
	// streams that meet here make the same bytes.
	e, err := r.encodeComposite(k, set)
	if err != nil {
		r.report(t, outboundName, err)
	}
	return r.composites.keep(k, e)
}

func (c *composites) get(k compositeKey) (*encoded, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.find(k)
}

// keep stores e, unless another stream was faster; it returns what is stored.
func (c *composites) keep(k compositeKey, e *encoded) *encoded {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first, ok := c.find(k); ok {
		return first
	}
	c.put(k, e)
	return e
}

func (c *composites) find(k compositeKey) (*encoded, bool) {
	if e, ok := c.young[k]; ok {
		return e, true
	}
	e, ok := c.old[k]
	if ok {
		delete(c.old, k)
		c.put(k, e)
	}
	return e, ok
}

func (c *composites) put(k compositeKey, e *encoded) {
	const entry = 256 // bytes, beside the resource's own
	if c.young == nil || c.size > compositeBytes {
		c.young, c.old, c.size = make(map[compositeKey]*encoded), c.young, 0
	}
	c.young[k] = e
	c.size += entry
	if e != nil {
		c.size += len(e.delta)
	}
}

// encodeComposite's render hash is over the bytes: a composite belongs to no
// single service, and is current if and only if its bytes are (ENGINE.md §1).
func (r *renderer) encodeComposite(k compositeKey, set serviceSet) (*encoded, error) {
	var value []byte
	if k.typ == rds {
		value = r.outboundRoutes(set.members())
	} else {
		l, err := outboundListener(k.outbound)
		if err != nil {
			return nil, fmt.Errorf("%s %s cannot be built: %w", k.typ, outboundName, err)
		}
		if value, err = checked(l); err != nil {
			return nil, fmt.Errorf("%s %s: %w", k.typ, outboundName, err)
		}
	}
	sum := sha256.Sum256(value)
	return frame(k.typ, outboundName, set.at, hex.EncodeToString(sum[:8]), value)
}

// checked encodes a message that keeps the field rules of clients.
func checked(msg resourceMessage) ([]byte, error) {
	if err := msg.ValidateAll(); err != nil {
		return nil, fmt.Errorf("breaks a rule of its clients: %w", err)
	}
	return marshal(msg)
}

// outboundListener is the one Listener of a sidecar: what the application dials.
func outboundListener(at netip.AddrPort) (*listenerv3.Listener, error) {
	router, err := routerFilter()
	if err != nil {
		return nil, err
	}
	hcm, err := anypb.New(&hcmv3.HttpConnectionManager{
		StatPrefix: outboundName,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			RouteConfigName: outboundName,
			ConfigSource:    ads(),
		}},
		HttpFilters: []*hcmv3.HttpFilter{router},
		// A watch or a subscription may be silent for as long as it likes.
		StreamIdleTimeout: durationpb.New(0),
	})
	if err != nil {
		return nil, err
	}
	return &listenerv3.Listener{
		Name:             outboundName,
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address:       at.Addr().String(),
			PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port())},
		}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: hcm},
		}}}},
	}, nil
}

// Field numbers of envoy.config.route.v3.RouteConfiguration.
const (
	routesName = 1
	routesHost = 2
)

// outboundRoutes has one virtual host per service and no catch-all: a name that
// the caller may not see, or that nobody has, is 404 and reaches nobody else.
// The message is put together from the bytes of its virtual hosts, of which a
// change of the set changes one.
func (r *renderer) outboundRoutes(set []setMember) []byte {
	var w wire
	w.text(routesName, outboundName)
	for _, m := range set {
		if host := r.bytesOf(m.view).host(m, r.report); host != nil {
			w = appendString(w, routesHost, host)
		}
	}
	return w
}

// host returns the encoded virtual host of the view with the member's Clusters.
// One that breaks a rule of clients is reported and left out: it must not cost
// the others their routes.
func (s *serviceBytes) host(m setMember, report func(typ, string, error)) []byte {
	k := strings.Join(m.clusters, " ")
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := s.hosts[k]; ok {
		return b
	}
	var b []byte
	if h := virtualHost(m); h != nil {
		var err error
		if b, err = checked(h); err != nil {
			report(rds, h.Name, fmt.Errorf("virtual host %s: %w", h.Name, err))
		}
	}
	s.hosts[k] = b
	return b
}

// virtualHost answers to the host form and to every number whose Cluster may be
// routed to; the number chooses the Cluster. A service without a port that HTTP
// can travel over has none.
func virtualHost(m setMember) *routev3.VirtualHost {
	h := &routev3.VirtualHost{Name: m.view.Name.Host()}
	var plain *routev3.Route
	for i, p := range m.view.Ports {
		name := clusterOf(m.view, i)
		if p.Protocol == views.UDP || !slices.Contains(m.clusters, name) || slices.Contains(h.Domains, dialled(m.view.Name, p.Number)) {
			continue
		}
		h.Domains = append(h.Domains, dialled(m.view.Name, p.Number))
		if name == h.Name {
			h.Domains = append(h.Domains, h.Name)
			plain = routeTo(name, "")
			continue
		}
		h.Routes = append(h.Routes, routeTo(name, dialled(m.view.Name, p.Number)))
	}
	if plain != nil { // last: it matches whatever no number matched
		h.Routes = append(h.Routes, plain)
	}
	if len(h.Routes) == 0 {
		return nil
	}
	return h
}

// retries sends a call to another member when the first took no byte of it: its
// connection was refused or broken, or the stream turned away unprocessed. That
// is safe for every call, and covers the seconds between an instance's death and
// its withdrawal. gRPC clients do the same by themselves.
func retries() *routev3.RetryPolicy {
	other, err := anypb.New(&previoushostsv3.PreviousHostsPredicate{})
	if err != nil {
		return nil // an empty message always marshals
	}
	return &routev3.RetryPolicy{
		RetryOn:    "connect-failure,refused-stream",
		NumRetries: wrapperspb.UInt32(retryMembers),
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{
			Name:       "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: other},
		}},
		HostSelectionRetryMaxAttempts: retryPicks,
	}
}

// routeTo sends requests to a Cluster; those with the given authority only,
// unless it is empty.
func routeTo(cluster, authority string) *routev3.Route {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
		Timeout:          durationpb.New(routeTimeout),
		RetryPolicy:      retries(),
	}
	// The newer max_stream_duration ends a call without counting it as an error
	// of the endpoint (PEERS.md part 1, h).
	action.MaxGrpcTimeout = durationpb.New(0)                 //lint:ignore SA1019 see above
	action.GrpcTimeoutOffset = durationpb.New(deadlineMargin) //lint:ignore SA1019 see above
	match := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
	if authority != "" {
		match.Headers = []*routev3.HeaderMatcher{{
			Name: ":authority",
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_Exact{Exact: authority},
				IgnoreCase:   true,
			}},
		}}
	}
	return &routev3.Route{Match: match, Action: &routev3.Route_Route{Route: action}}
}
