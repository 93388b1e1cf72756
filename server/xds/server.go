package xds

import (
	"context"
	"errors"
	"hash/maphash"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// Config is what a Server is made of. Snapshot, Policy and Principal are
// required; every other function may be nil.
type Config struct {
	// Snapshot returns the newest snapshot. It must hold a publication before
	// Feed.Publish is told of it.
	Snapshot func() *views.Snapshot
	// Policy returns the resolution policy in force.
	Policy func() *authz.Policy
	// Principal returns the verified caller of a stream.
	Principal func(context.Context) (identity.Principal, bool)
	// Restamp asks for a new version of a service that a client knows at a
	// higher version than ours. It reports whether one will be published; a
	// service is stamped anew at most once per process start.
	Restamp func(views.Name) bool

	Limits     limits.XDS     // zero: the limits that ship
	Identifier string         // named in every response: this replica and its region
	Outbound   netip.AddrPort // where an Envoy's outbound listener binds, unless its node says so
	Events     Events
}

// Events is what the package reports to metrics and logs. Any may be nil; all
// are called from several goroutines and must not block.
type Events struct {
	Streams       func(kind, protocol string, delta int)                        // opened (+1), closed (-1)
	Push          func(typ, kind string, resources, removed, bytes int)         // a response was built
	Nack          func(Rejection)                                               // a client refused one
	Propagation   func(kind string, since time.Duration)                        // publication to acknowledgement, of the oldest news in a response
	InitialAnswer func(kind string, resumed bool, after time.Duration)          // first response of a stream
	FanOut        func(time.Duration)                                           // publication to the last stream's turn; for the Publisher's additions window
	Ended         func(who identity.Principal, node, kind string, reason error) // the server ended a stream
	Throttled     func(who identity.Principal, node string)                     // a stream's requests come too fast, and wait
	Refused       func(who identity.Principal, service views.Name)              // an existing service, outside the caller's scope, was asked for
	Unrenderable  func(typ, name string, reason error)                          // a resource breaks a rule of its clients, and was not sent
}

// Rejection is one response that a client refused.
type Rejection struct {
	Client    identity.Principal
	Node      string
	Kind      string
	Type      string
	Names     []string // of its resources, the first eight
	Resources int
	Detail    string // the client's own words
}

// Server serves ADS, delta and state of the world.
type Server struct {
	cfg      Config
	feed     *Feed
	pool     *pool
	render   *renderer
	restamps restamps
	complete atomic.Bool
	loaded   chan struct{} // closed when the snapshot is complete
	policy   atomic.Uint64 // generation that the streams' scopes were judged by

	mu       sync.Mutex
	draining error
	perPeer  map[identity.Principal]int
	perID    map[identity.ID]int
}

// New returns a server that serves nothing until Run is called.
func New(cfg Config) *Server {
	if cfg.Limits == (limits.XDS{}) {
		cfg.Limits = limits.Default().XDS
	}
	s := &Server{
		cfg: cfg, pool: newPool(), loaded: make(chan struct{}),
		perPeer: make(map[identity.Principal]int), perID: make(map[identity.ID]int),
	}
	s.render = newRenderer(renderConfig{outbound: cfg.Outbound, refused: func(t typ, name string, reason error) {
		if cfg.Events.Unrenderable != nil {
			cfg.Events.Unrenderable(t.String(), name, reason)
		}
	}})
	s.feed = newFeed(s.pool, s.render.forget, cfg.Events.FanOut)
	return s
}

// Feed is where publications are told.
func (s *Server) Feed() *Feed { return s.feed }

// Register adds the discovery service to a gRPC server that was built with
// ServerOption and whose InTapHandle calls Tap.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(r, service{s: s})
}

// housekeeping is how often stuck sends and streams, and a changed policy, are
// looked for.
const housekeeping = 100 * time.Millisecond

// Run sends to the streams until ctx ends, which ends the streams too.
func (s *Server) Run(ctx context.Context) error {
	pooled, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		s.pool.run(pooled)
		close(done)
	}()
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		s.keepHouse(n)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	s.refuseAll()
	stop()
	<-done
	return nil
}

func (s *Server) keepHouse(n int) {
	now := time.Now()
	s.pool.replaceBlocked(now)
	if !s.ready() {
		return
	}
	if g := s.generation(); s.policy.Swap(g) != g {
		s.feed.setChanged(s.cfg.Snapshot().Version())
		for _, st := range s.feed.open() {
			st.markEverything()
		}
	}
	if n%10 != 0 {
		return
	}
	for _, st := range s.feed.open() {
		if st.stalled(now) {
			st.expel(status.Errorf(status.StreamStalled, "no acknowledgement for %s and a second for each %d bytes of the oldest response",
				s.cfg.Limits.StallAfter, s.cfg.Limits.StallRate))
			st.close()
		}
	}
}

func (s *Server) generation() uint64 {
	if p := s.cfg.Policy(); p != nil {
		return p.Generation
	}
	return 0
}

// ready reports whether the snapshot is complete. Until then no stream is
// answered (DESIGN.md §8).
func (s *Server) ready() bool {
	if s.complete.Load() {
		return true
	}
	if !s.cfg.Snapshot().Complete() {
		return false
	}
	if s.complete.CompareAndSwap(false, true) {
		s.policy.Store(s.generation())
		close(s.loaded)
	}
	return true
}

// Drain refuses new streams and ends those that are open, so that the gRPC
// server can stop. It returns when they have ended, or with ctx's error.
func (s *Server) Drain(ctx context.Context) error {
	s.refuseAll()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		s.mu.Lock()
		left := len(s.perPeer)
		s.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (s *Server) refuseAll() {
	reason := status.Errorf(status.Stopping, "this server is stopping")
	s.mu.Lock()
	s.draining = reason
	s.mu.Unlock()
	for _, st := range s.feed.open() {
		st.end(reason)
		st.close()
	}
}

// endKey is where Tap leaves a stream's cancel function.
type endKey struct{}

// Tap lets the server end a stream whose handler waits for a request: it gives
// the stream's context a cancel function. The InTapHandle of the gRPC server
// must call it for every stream (grpc-go has no other way without a second
// goroutine per stream).
func Tap(ctx context.Context, _ *tap.Info) (context.Context, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	return context.WithValue(ctx, endKey{}, cancel), nil
}

// tell writes the reason of a stream's end before its context is cancelled:
// RecvMsg answers a cancelled context with a status of its own, and the first one
// wins. Where the transport does not let it, the client sees Canceled.
func tell(ctx context.Context, reason error) {
	w, ok := grpc.ServerTransportStreamFromContext(ctx).(interface {
		WriteStatus(*grpcstatus.Status) error
	})
	if ok {
		_ = w.WriteStatus(grpcstatus.Convert(reason))
	}
}

// service adapts the generated interface.
type service struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	s *Server
}

func (v service) StreamAggregatedResources(ss discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return v.s.stream(ss, false)
}

func (v service) DeltaAggregatedResources(ss discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return v.s.stream(ss, true)
}

// stream runs one ADS stream: it reads requests, and leaves sending to the pool.
func (s *Server) stream(conn grpc.ServerStream, delta bool) error {
	ctx := conn.Context()
	cancel, ok := ctx.Value(endKey{}).(context.CancelCauseFunc)
	if !ok {
		return status.Errorf(status.Internal, "the gRPC server was built without xds.Tap")
	}
	defer cancel(nil)
	who, ok := s.cfg.Principal(ctx)
	if !ok {
		return status.Errorf(status.NoIdentity, "the stream carries no verified identity")
	}
	if err := s.admit(who); err != nil {
		return err
	}
	defer s.dismiss(who)
	select {
	case <-s.loaded:
	case <-ctx.Done():
		return s.ended(ctx)
	}
	end := func(reason error) { tell(ctx, reason); cancel(reason) }
	st := &stream{srv: s, conn: conn, end: end, delta: delta, who: who, opened: time.Now(), names: s.cfg.Limits.Names}
	if who.Class() == identity.Agent {
		st.names = s.cfg.Limits.AgentNames
	}
	st.scope = s.scopeOf(who)
	err := s.read(ctx, st)
	st.close()
	return err
}

// scopeOf is the scope of a caller: what the policy lets it resolve.
func (s *Server) scopeOf(who identity.Principal) scope {
	return func(v *views.View) bool {
		return s.cfg.Policy().CanResolve(who, authz.Service{
			Namespace: v.Name.Namespace, Name: v.Name.Service, DNSAnonymous: v.DNSAnonymous,
		}).Allowed
	}
}

// read takes in requests until the stream ends.
func (s *Server) read(ctx context.Context, st *stream) error {
	r := &request{wantNode: true, lists: &nameLists{seed: maphash.MakeSeed()}}
	var m any = deltaMessage{r}
	if !st.delta {
		m = sotwMessage{r}
	} else {
		r.lists = nil
	}
	budget := rate.NewLimiter(rate.Limit(s.cfg.Limits.RequestRate), s.cfg.Limits.RequestBurst)
	for {
		switch err := st.conn.RecvMsg(m); {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return s.ended(ctx)
		case err != nil:
			return err
		}
		if r.wantNode {
			s.meet(st, r)
			defer s.part(st)
		}
		if !r.plain() && !budget.Allow() {
			if on := s.cfg.Events.Throttled; on != nil {
				on(st.who, st.node.id)
			}
			if budget.Wait(ctx) != nil {
				return s.ended(ctx)
			}
		}
		if err := st.take(r); err != nil {
			return s.refuse(ctx, st, err)
		}
		st.wake()
	}
}

func (st *stream) take(r *request) error {
	if st.delta {
		return st.onDelta(r, time.Now())
	}
	return st.onSotw(r, time.Now())
}

// meet learns from the first request what kind of client a stream has.
func (s *Server) meet(st *stream, r *request) {
	r.wantNode = false
	if r.node != nil {
		st.node = *r.node
	}
	st.kind = kindOf(st.node.userAgent, st.delta)
	st.shape = st.kind.rendering(&st.node)
	s.feed.enter(st)
	if on := s.cfg.Events.Streams; on != nil {
		on(st.kind.name, st.protocol(), 1)
	}
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	if draining != nil { // refuseAll may have listed the streams before this one entered
		st.end(draining)
	}
}

func (s *Server) part(st *stream) {
	if on := s.cfg.Events.Streams; on != nil {
		on(st.kind.name, st.protocol(), -1)
	}
}

func (st *stream) protocol() string {
	if st.delta {
		return "delta"
	}
	return "sotw"
}

// ended is the status of a stream whose context is done.
func (s *Server) ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return ctx.Err()
}

// pause is how long a stream that broke a limit is kept before its end is told.
// Some clients reconnect at once after a stream that was answered.
const pause = time.Second

func (s *Server) refuse(ctx context.Context, st *stream, reason error) error {
	if on := s.cfg.Events.Ended; on != nil {
		on(st.who, st.node.id, st.kind.name, reason)
	}
	st.close()
	select {
	case <-time.After(pause):
		return reason
	case <-ctx.Done():
		return s.ended(ctx)
	}
}

// admit counts a stream of a caller, or refuses it.
func (s *Server) admit(who identity.Principal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.cfg.Limits
	switch {
	case s.draining != nil:
		return s.draining
	case s.perPeer[who] >= l.StreamsPerSource:
		return status.New(status.LimitExceeded, "%d streams of %s from %s are open, the limit is %d",
			s.perPeer[who], who, who.Addr, l.StreamsPerSource).With("limit", "XDS.StreamsPerSource").Err()
	case s.perID[who.ID] >= l.StreamsPerCaller:
		return status.New(status.LimitExceeded, "%d streams of %s are open, the limit is %d",
			s.perID[who.ID], who, l.StreamsPerCaller).With("limit", "XDS.StreamsPerCaller").Err()
	}
	s.perPeer[who]++
	s.perID[who.ID]++
	return nil
}

func (s *Server) dismiss(who identity.Principal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.perPeer[who]--; s.perPeer[who] == 0 {
		delete(s.perPeer, who)
	}
	if s.perID[who.ID]--; s.perID[who.ID] == 0 {
		delete(s.perID, who.ID)
	}
}
