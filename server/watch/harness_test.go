package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/svid"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
	"github.com/sightlinedev/sightline/views/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// region is a Publisher with a Feed behind it, over bufconn. It lives in a
// synctest bubble: synctest.Wait is the moment at which nothing moves any more.
type region struct {
	t      *testing.T
	p      *views.Publisher
	feed   *Feed
	lis    *bufconn.Listener
	policy atomic.Pointer[authz.Policy]
}

// callerKey carries the caller's identity in these tests, in place of mTLS.
const callerKey = "test-caller"

func newRegion(t *testing.T, change func(*Config)) *region {
	return newRegionFrom(t, views.PublisherConfig{Epoch: 7}, change)
}

func newRegionFrom(t *testing.T, start views.PublisherConfig, change func(*Config)) *region {
	r := &region{t: t, p: views.NewPublisher(start), lis: bufconn.Listen(1 << 10)}
	r.policy.Store(&authz.Policy{TrustDomain: "example.org", Default: authz.WholeTrustDomain})
	r.p.Complete()
	c := Config{Snapshot: r.p.Snapshot, Since: r.p.Since, Policy: r.policy.Load, Region: "local", StallAfter: 30 * time.Second, StallRate: 16 << 10}
	if change != nil {
		change(&c)
	}
	r.feed = New(c)
	srv := grpc.NewServer(grpc.StreamInterceptor(func(s any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		md, _ := metadata.FromIncomingContext(ss.Context())
		if len(md.Get(callerKey)) == 0 {
			return next(s, ss)
		}
		who := identity.Principal{ID: identity.MustParse(md.Get(callerKey)[0]), Addr: netip.MustParseAddr("127.0.0.1")}
		return next(s, &asCaller{ss, svid.WithPrincipal(ss.Context(), who)})
	}))
	viewv1.RegisterViewServiceServer(srv, r.feed)
	go srv.Serve(r.lis)
	t.Cleanup(func() { r.feed.Close(); srv.Stop() })
	return r
}

type asCaller struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *asCaller) Context() context.Context { return s.ctx }

// publish gives a service n members, tells the Feed, and returns the version.
func (r *region) publish(service string, members int) views.Version {
	pub := r.swap(service, members)
	r.feed.Publish(pub)
	return pub.Version
}

// swap publishes without telling the Feed.
func (r *region) swap(service string, members int) views.Publication {
	n := views.Name{Namespace: "shop", Service: service}
	c := views.Candidate{Name: n}
	if members >= 0 {
		v := &views.View{Name: n, ListedCount: members, Ports: []views.Port{{Name: "grpc", Number: 8080}}}
		for uid := range members {
			v.Members = append(v.Members, &views.Member{UID: views.UID(uid + 1), Endpoint: views.Endpoint{Host: "h"}, BaseWeight: 100,
				Weight: 100, Listed: true, Capability: strings.Repeat("c", 100)})
		}
		c.View = v
	}
	return r.offer(c)
}

// offer publishes a candidate without telling the Feed.
func (r *region) offer(c views.Candidate) views.Publication {
	n := c.Name
	if v := c.View; v != nil {
		v.EndpointHash, v.ConfigHash = views.HashEndpoint(v), views.HashConfig(v)
	}
	if held := r.p.Snapshot().Get(n); held != nil {
		c.Base = held.Version()
	}
	now := time.Now()
	res := r.p.Publish(now, c)
	for res.Outcome == views.Deferred {
		now = res.Until
		res = r.p.Publish(now, c)
	}
	if res.Outcome != views.Published {
		r.t.Fatalf("publish %s: %+v", n, res)
	}
	return res.Publication
}

// client is one Watch stream and what a mirror makes of it.
type client struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[viewv1.WatchRequest, viewv1.WatchResponse]
	cancel context.CancelFunc
	log    []string // one word per event, since last taken
	held   map[views.Name]*views.View
	token  string
	err    error
	done   chan struct{}
}

func (r *region) dial(t *testing.T) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///buf", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

const cart = "spiffe://example.org/ns/shop/sa/cart"

// open starts a stream whose client reads all the time.
func (r *region) open(who string, f *viewv1.Filter) *client {
	c := r.openMute(who)
	if f != nil {
		c.want(f)
	}
	go c.follow()
	synctest.Wait()
	return c
}

// openMute starts a stream whose client reads nothing.
func (r *region) openMute(who string) *client {
	ctx, cancel := context.WithCancel(context.Background())
	if who != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, callerKey, who)
	}
	stream, err := viewv1.NewViewServiceClient(r.dial(r.t)).Watch(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	c := &client{t: r.t, stream: stream, cancel: cancel, held: map[views.Name]*views.View{}, done: make(chan struct{})}
	r.t.Cleanup(cancel)
	return c
}

func (c *client) want(f *viewv1.Filter) {
	c.send(&viewv1.WatchRequest{Frame: &viewv1.WatchRequest_Filter{Filter: f}})
}

func (c *client) send(m *viewv1.WatchRequest) {
	if err := c.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		c.t.Error(err)
	}
}

func (c *client) follow() {
	defer close(c.done)
	for {
		m, err := c.stream.Recv()
		if err != nil {
			c.err = err
			return
		}
		c.take(m)
	}
}

// take applies an event as a mirror does.
func (c *client) take(m *viewv1.WatchResponse) {
	switch e := m.GetEvent().(type) {
	case *viewv1.WatchResponse_View:
		v, err := wire.ParseView(e.View)
		c.hold("", v, err)
	case *viewv1.WatchResponse_Delta:
		n, err := views.ParseName(e.Delta.GetView().GetNamespace() + "/" + e.Delta.GetView().GetName())
		if err != nil {
			c.t.Error(err)
		}
		v, err := wire.ParseDelta(e.Delta, c.held[n])
		c.hold("~", v, err)
	case *viewv1.WatchResponse_Removed:
		n, at, err := wire.ParseRemoved(e.Removed)
		if err != nil || at.IsZero() {
			c.t.Error(err, at)
		}
		delete(c.held, n)
		c.log = append(c.log, "-"+n.Service)
	case *viewv1.WatchResponse_Bookmark:
		c.token = e.Bookmark.GetVersion()
		word := "@" + c.token
		if e.Bookmark.GetFilterId() == narrow {
			c.token = "" // worth nothing for a wider filter
		}
		if e.Bookmark.GetSnapshotComplete() {
			word += fmt.Sprintf(" complete %d", e.Bookmark.GetFilterId())
		}
		c.log = append(c.log, word)
	case *viewv1.WatchResponse_Resync:
		c.log = append(c.log, "resync")
	}
}

// narrow is the filter id of those that cover less than what came before.
const narrow = 77

// holds names what the client holds, as a filter does.
func (c *client) holds() (out []*viewv1.Held) {
	for n, v := range c.held {
		out = append(out, &viewv1.Held{Service: n.String(), EndpointVersion: v.Endpoint.String(), ConfigVersion: v.Config.String()})
	}
	return out
}

func (c *client) hold(mark string, v *views.View, err error) {
	if err != nil {
		c.t.Error(err)
		return
	}
	if old := c.held[v.Name]; old != nil && (v.Endpoint.Less(old.Endpoint) || v.Config.Less(old.Config)) {
		c.t.Errorf("%v went from %v to %v", v.Name, old.Version(), v.Version())
	}
	if views.HashEndpoint(v) != v.EndpointHash || views.HashConfig(v) != v.ConfigHash {
		c.t.Errorf("%v at %v has other contents than published", v.Name, v.Version())
	}
	c.held[v.Name] = v
	c.log = append(c.log, mark+v.Name.Service)
}

// saw waits until nothing moves and compares what came since the last call.
func (c *client) saw(want ...string) {
	c.t.Helper()
	synctest.Wait()
	got := c.log
	c.log = nil
	if !slices.Equal(got, want) {
		c.t.Errorf("saw  %q\nwant %q", got, want)
	}
}

// failed waits for the stream's end and compares its status.
func (c *client) failed(code codes.Code, sl status.Code) {
	c.t.Helper()
	<-c.done
	if got, _ := status.CodeOf(c.err); grpcstatus.Code(c.err) != code || got != sl {
		c.t.Errorf("ended with %v (%v), want %v (%v)", c.err, got, code, sl)
	}
}

func filterOf(services ...string) *viewv1.Filter {
	f := &viewv1.Filter{FilterId: 1}
	for _, s := range services {
		f.Services = append(f.Services, "shop/"+s)
	}
	return f
}
