package rawxds

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// NameOf returns the name inside an encoded resource.
func NameOf(body *anypb.Any) (string, error) {
	m, err := body.UnmarshalNew()
	if err != nil {
		return "", err
	}
	switch m := m.(type) {
	case *clusterv3.Cluster:
		return m.GetName(), nil
	case *endpointv3.ClusterLoadAssignment:
		return m.GetClusterName(), nil
	case *listenerv3.Listener:
		return m.GetName(), nil
	case *routev3.RouteConfiguration:
		return m.GetName(), nil
	}
	return "", fmt.Errorf("a resource of type %s", body.GetTypeUrl())
}

// Assignment decodes a ClusterLoadAssignment.
func (r Resource) Assignment() (*endpointv3.ClusterLoadAssignment, error) {
	m := &endpointv3.ClusterLoadAssignment{}
	return m, r.Body.UnmarshalTo(m)
}

// Addresses lists an assignment's endpoints as ip:port, sorted.
func (r Resource) Addresses() ([]string, error) {
	m, err := r.Assignment()
	if err != nil {
		return nil, err
	}
	var list []string
	for _, l := range m.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			a := e.GetEndpoint().GetAddress().GetSocketAddress()
			list = append(list, a.GetAddress()+":"+strconv.Itoa(int(a.GetPortValue())))
		}
	}
	slices.Sort(list)
	return list, nil
}

// Clusters lists the names of the Clusters that a RouteConfiguration routes to, sorted.
func (r Resource) Clusters() ([]string, error) {
	m := &routev3.RouteConfiguration{}
	if err := r.Body.UnmarshalTo(m); err != nil {
		return nil, err
	}
	var list []string
	for _, h := range m.GetVirtualHosts() {
		for _, rt := range h.GetRoutes() {
			list = append(list, rt.GetRoute().GetCluster())
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// Watermark remembers the highest version that a client was shown of each name.
// It may outlive a Client, and be shared by the successive streams of one client.
type Watermark struct {
	mu   sync.Mutex
	high map[string][2]uint64
}

// NewWatermark returns an empty one.
func NewWatermark() *Watermark { return &Watermark{high: make(map[string][2]uint64)} }

// raise notes a version (epoch.seq, or epoch.seq-render) and returns a complaint
// if it is lower than one before it.
func (w *Watermark) raise(key, version string) string {
	text, _, _ := strings.Cut(version, "-")
	e, s, ok := strings.Cut(text, ".")
	epoch, err1 := strconv.ParseUint(e, 10, 64)
	seq, err2 := strconv.ParseUint(s, 10, 64)
	if !ok || err1 != nil || err2 != nil {
		return fmt.Sprintf("%s: %q is not a version", key, version)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	v, old := [2]uint64{epoch, seq}, w.high[key]
	if slices.Compare(v[:], old[:]) < 0 {
		return fmt.Sprintf("%s went from version %d.%d to %s", key, old[0], old[1], version)
	}
	w.high[key] = v
	return ""
}

// check notes what is wrong with a response on its own, and against what came
// before it.
func (c *Client) check(r *Response) {
	var wrong []string
	if r.Size > MaxResponse {
		wrong = append(wrong, fmt.Sprintf("a response of %d bytes", r.Size))
	}
	if r.Nonce == "" {
		wrong = append(wrong, "a response without a nonce")
	}
	seen := make(map[string]bool)
	for _, n := range append(r.Names(), r.Removed...) {
		if seen[n] {
			wrong = append(wrong, n+" twice in one response")
		}
		seen[n] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, old := range c.history {
		if old.Nonce == r.Nonce && old.Type == r.Type {
			wrong = append(wrong, "nonce "+r.Nonce+" again")
		}
	}
	for _, res := range r.Resources {
		if res.Body.GetTypeUrl() != r.Type {
			wrong = append(wrong, res.Name+" is of type "+res.Body.GetTypeUrl())
		}
		if c.delta {
			wrong = append(wrong, c.watermark.raise(r.Type+" "+res.Name, res.Version))
		}
	}
	if !c.delta {
		wrong = append(wrong, c.shown.raise(r.Type, r.Version))
	}
	for _, w := range wrong {
		if w != "" {
			c.violations = append(c.violations, w)
		}
	}
}

// apply brings what the client holds up to an accepted response. A version of
// state of the world is the client's own once it accepted it: that it offers on
// its next stream.
func (c *Client) apply(r *Response) {
	if !c.delta {
		if w := c.watermark.raise(r.Type, r.Version); w != "" {
			c.violations = append(c.violations, w)
		}
	}
	held := c.held[r.Type]
	if held == nil || !c.delta && (r.Type == LDS || r.Type == CDS) {
		held = make(map[string]Resource)
		c.held[r.Type] = held
	}
	for _, res := range r.Resources {
		held[res.Name] = res
	}
	for _, n := range r.Removed {
		delete(held, n)
	}
}
