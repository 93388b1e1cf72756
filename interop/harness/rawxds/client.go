package rawxds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// The resource types.
const (
	CDS = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EDS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	LDS = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RDS = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

// MaxResponse is what a gRPC client receives at most, in bytes.
const MaxResponse = 4 << 20

// Resource is one resource as it came. Version is the resource's own on delta,
// and that of the response on state of the world.
type Resource struct {
	Name    string
	Version string
	Body    *anypb.Any
}

// Response is one response of either protocol.
type Response struct {
	Type      string
	Nonce     string
	Version   string // state of the world
	Resources []Resource
	Removed   []string // delta
	Size      int      // bytes
	At        time.Time
	Sequence  int // 0, 1, ... over all types of the stream
}

// Names lists the names of the response's resources, in its order.
func (r *Response) Names() []string {
	names := make([]string, len(r.Resources))
	for i := range r.Resources {
		names[i] = r.Resources[i].Name
	}
	return names
}

// Answer is what a client does about a response.
type Answer struct {
	Silent bool          // neither accept nor reject
	Reject string        // reject, with this detail
	After  time.Duration // before it does
}

// Reaction decides about a response. It is called on the client's goroutine.
type Reaction func(*Response) Answer

// Accept accepts everything at once.
func Accept(*Response) Answer { return Answer{} }

// Silence never acknowledges.
func Silence(*Response) Answer { return Answer{Silent: true} }

// Node makes the node message of a client.
func Node(id, userAgent, region, zone string) *corev3.Node {
	return &corev3.Node{Id: id, UserAgentName: userAgent, Locality: &corev3.Locality{Region: region, Zone: zone}}
}

// Client is one ADS stream.
type Client struct {
	delta  bool
	cancel context.CancelFunc
	react  Reaction
	done   chan struct{}
	sendD  grpc.BidiStreamingClient[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]
	sendS  grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]

	sending sync.Mutex
	node    *corev3.Node // until the first request has carried it

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced at every response, and at the end
	held       map[string]map[string]Resource
	names      map[string][]string // state of the world: the list last asked for
	version    map[string]string   // state of the world: last accepted
	history    []*Response
	decided    map[string]int // responses that were applied, refused, or are thought about
	violations []string
	err        error
	shown      *Watermark // state of the world: of this stream
	watermark  *Watermark
}

// Delta opens a delta stream. A nil reaction accepts everything.
func Delta(ctx context.Context, cc grpc.ClientConnInterface, node *corev3.Node, react Reaction) (*Client, error) {
	c := newClient(node, react)
	ctx, c.cancel = context.WithCancel(ctx)
	c.delta = true
	var err error
	if c.sendD, err = discoveryv3.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(ctx); err != nil {
		c.cancel()
		return nil, err
	}
	go c.run(c.receiveDelta)
	return c, nil
}

// Sotw opens a state-of-the-world stream. A nil reaction accepts everything.
func Sotw(ctx context.Context, cc grpc.ClientConnInterface, node *corev3.Node, react Reaction) (*Client, error) {
	c := newClient(node, react)
	ctx, c.cancel = context.WithCancel(ctx)
	var err error
	if c.sendS, err = discoveryv3.NewAggregatedDiscoveryServiceClient(cc).StreamAggregatedResources(ctx); err != nil {
		c.cancel()
		return nil, err
	}
	go c.run(c.receiveSotw)
	return c, nil
}

func newClient(node *corev3.Node, react Reaction) *Client {
	if react == nil {
		react = Accept
	}
	return &Client{
		react: react, node: node, done: make(chan struct{}), changed: make(chan struct{}),
		held: make(map[string]map[string]Resource), names: make(map[string][]string),
		version: make(map[string]string), decided: make(map[string]int), shown: NewWatermark(), watermark: NewWatermark(),
	}
}

// Close ends the stream and waits for the client's goroutine.
func (c *Client) Close() {
	c.cancel()
	<-c.done
}

// Keep makes the client check versions against a watermark that outlives it, as
// those of a client that reconnects must be. Call it before the first request.
func (c *Client) Keep(w *Watermark) *Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watermark = w
	return c
}

func (c *Client) run(receive func() (*Response, error)) {
	defer close(c.done)
	for n := 0; ; n++ {
		r, err := receive()
		if err != nil {
			c.note(func() { c.err = err })
			return
		}
		r.At, r.Sequence = time.Now(), n
		c.check(r)
		c.note(func() { c.history = append(c.history, r) })
		c.answer(r, c.react(r))
	}
}

func (c *Client) note(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Client) answer(r *Response, a Answer) {
	if a.After > 0 {
		c.note(func() { c.decided[r.Type]++ })
		select {
		case <-time.After(a.After):
		case <-c.context().Done():
			return
		}
	}
	c.note(func() {
		if a.Reject == "" {
			c.apply(r)
		}
		if a.After == 0 {
			c.decided[r.Type]++
		}
	})
	if !a.Silent {
		_ = c.acknowledge(r, a.Reject)
	}
}

func (c *Client) context() context.Context {
	if c.delta {
		return c.sendD.Context()
	}
	return c.sendS.Context()
}

// Ack accepts a response that the reaction was silent about.
func (c *Client) Ack(r *Response) error { return c.acknowledge(r, "") }

// Nack rejects a response that the reaction was silent about.
func (c *Client) Nack(r *Response, detail string) error { return c.acknowledge(r, detail) }

func (c *Client) acknowledge(r *Response, reject string) error {
	var detail *status.Status
	if reject != "" {
		detail = &status.Status{Code: int32(codes.InvalidArgument), Message: reject}
	}
	if c.delta {
		return c.SendDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.Type, ResponseNonce: r.Nonce, ErrorDetail: detail})
	}
	c.mu.Lock()
	if reject == "" {
		c.version[r.Type] = r.Version
	}
	q := &discoveryv3.DiscoveryRequest{TypeUrl: r.Type, ResponseNonce: r.Nonce, ErrorDetail: detail,
		VersionInfo: c.version[r.Type], ResourceNames: c.names[r.Type]}
	c.mu.Unlock()
	return c.SendSotw(q)
}

// SendDelta sends a request as it is; the first carries the node.
func (c *Client) SendDelta(q *discoveryv3.DeltaDiscoveryRequest) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.node != nil {
		q.Node, c.node = c.node, nil
	}
	return c.sendD.Send(q)
}

// SendSotw sends a request as it is; the first carries the node.
func (c *Client) SendSotw(q *discoveryv3.DiscoveryRequest) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.node != nil {
		q.Node, c.node = c.node, nil
	}
	return c.sendS.Send(q)
}

// Subscribe adds names on a delta stream; none is the legacy wildcard.
func (c *Client) Subscribe(typ string, names ...string) error {
	return c.SendDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesSubscribe: names})
}

// Unsubscribe takes names off a delta stream.
func (c *Client) Unsubscribe(typ string, names ...string) error {
	c.mu.Lock()
	for _, n := range names {
		delete(c.held[typ], n)
	}
	c.mu.Unlock()
	return c.SendDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesUnsubscribe: names})
}

// Resume subscribes on a new delta stream, offering versions by name.
func (c *Client) Resume(typ string, offered map[string]string, names ...string) error {
	return c.SendDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesSubscribe: names, InitialResourceVersions: offered})
}

// Ask makes names the whole list of a type on a state-of-the-world stream. The
// nonce is that of the newest response of the type.
func (c *Client) Ask(typ string, names ...string) error { return c.AskFrom(typ, "", names...) }

// AskFrom is Ask with a version to offer, for the first request of a stream.
func (c *Client) AskFrom(typ, version string, names ...string) error {
	c.mu.Lock()
	c.names[typ] = names
	if version != "" {
		c.version[typ] = version
	}
	q := &discoveryv3.DiscoveryRequest{TypeUrl: typ, ResourceNames: names, VersionInfo: c.version[typ]}
	for _, r := range c.history {
		if r.Type == typ {
			q.ResponseNonce = r.Nonce
		}
	}
	if held := c.held[typ]; typ == EDS || typ == RDS {
		for n := range held {
			if !slices.Contains(names, n) {
				delete(held, n)
			}
		}
	}
	c.mu.Unlock()
	return c.SendSotw(q)
}

// Held is what a correct client holds of a type, by name.
func (c *Client) Held(typ string) map[string]Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]Resource, len(c.held[typ]))
	for n, r := range c.held[typ] {
		all[n] = r
	}
	return all
}

// Versions is Held as the map that Resume offers.
func (c *Client) Versions(typ string) map[string]string {
	offered := make(map[string]string)
	for n, r := range c.Held(typ) {
		offered[n] = r.Version
	}
	return offered
}

// Version is the version last accepted on a state-of-the-world stream.
func (c *Client) Version(typ string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version[typ]
}

// Responses lists the responses of a type so far; an empty type is all.
func (c *Client) Responses(typ string) []*Response {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.history), func(r *Response) bool { return typ != "" && r.Type != typ })
}

// Violations lists what the server did that no server may do.
func (c *Client) Violations() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.violations)
}

// Err is the error that ended the stream, or nil while it lives.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// ErrWait is the error of an Await whose condition did not come true.
var ErrWait = errors.New("rawxds: the condition did not come true in time")

// Await waits until the condition holds. It is looked at after each response.
func (c *Client) Await(within time.Duration, condition func() bool) error {
	late := time.After(within)
	for {
		c.mu.Lock()
		changed, err := c.changed, c.err
		c.mu.Unlock()
		switch {
		case condition():
			return nil
		case err != nil:
			return fmt.Errorf("rawxds: the stream ended: %w", err)
		}
		select {
		case <-changed:
		case <-late:
			if condition() {
				return nil
			}
			return ErrWait
		}
	}
}

// Count waits for the n-th response of a type, and until the client holds what it
// accepts of it (unless it takes its time), and returns it; n counts from 1.
func (c *Client) Count(typ string, n int, within time.Duration) (*Response, error) {
	err := c.Await(within, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.decided[typ] >= n
	})
	if err != nil {
		return nil, fmt.Errorf("response %d of %s: %w (have %d)", n, typ, err, len(c.Responses(typ)))
	}
	return c.Responses(typ)[n-1], nil
}

func (c *Client) receiveDelta() (*Response, error) {
	m, err := c.sendD.Recv()
	if err != nil {
		return nil, err
	}
	r := &Response{Type: m.GetTypeUrl(), Nonce: m.GetNonce(), Removed: m.GetRemovedResources(), Size: proto.Size(m)}
	for _, res := range m.GetResources() {
		r.Resources = append(r.Resources, Resource{Name: res.GetName(), Version: res.GetVersion(), Body: res.GetResource()})
	}
	return r, nil
}

func (c *Client) receiveSotw() (*Response, error) {
	m, err := c.sendS.Recv()
	if err != nil {
		return nil, err
	}
	r := &Response{Type: m.GetTypeUrl(), Nonce: m.GetNonce(), Version: m.GetVersionInfo(), Size: proto.Size(m)}
	for _, body := range m.GetResources() {
		name, err := NameOf(body)
		if err != nil {
			return nil, err
		}
		r.Resources = append(r.Resources, Resource{Name: name, Version: m.GetVersionInfo(), Body: body})
	}
	return r, nil
}

// Carry takes over what an earlier stream of the same client held, which may be
// nil: a client that reconnects loses nothing. Call it before the first request.
func (c *Client) Carry(old *Client, typs ...string) *Client {
	if old == nil {
		return c
	}
	for _, typ := range typs {
		held := old.Held(typ)
		c.mu.Lock()
		c.held[typ] = held
		c.mu.Unlock()
	}
	return c
}
