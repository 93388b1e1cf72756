package xds

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"

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
	// Loads takes in what callers report of their calls, over LRS. It is called
	// on the streams' goroutines and must not block for long; the report is its
	// own. Without it the reports are read and dropped.
	Loads func(LoadReport)
	// Connection names the connection of a stream: ADS and LRS of a client share
	// one. Nil: the two addresses of its peer.
	Connection func(context.Context) string

	Limits     limits.XDS     // zero: the limits that ship
	Identifier string         // named in every response: this replica and its region
	Outbound   netip.AddrPort // where an Envoy's outbound listener binds, unless its node says so
	Events     Events
}

// Events is what the package reports to metrics and logs. Any may be nil; all
// are called from several goroutines, some under a stream's lock: they must
// neither block nor call back into the package.
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

	LoadStreams func(kind LoadKind, delta int)                                              // LRS streams opened (+1), closed (-1)
	LoadDropped func(who identity.Principal, service views.Name, why LoadDrop, entries int) // entries of a load report were not taken in; the name is zero when it is of no service
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

// Server serves ADS, delta and state of the world, and takes in load reports.
type Server struct {
	cfg      Config
	feed     *Feed
	pool     *pool
	render   *renderer
	restamps restamps
	complete atomic.Bool
	loaded   chan struct{} // closed when the snapshot is complete
	since    time.Time     // when that was; not before loaded is closed
	stopping chan struct{} // closed when streams are refused
	policy   atomic.Uint64 // generation that the streams' scopes were judged by

	connections *connections
	rosters     *rosters
	largeLoads  chan struct{} // load reports that are large, in memory at once

	mu        sync.Mutex
	draining  error
	ads, lrs  census
	reporters map[*loadStream]struct{}
	stamping  map[views.Name]stamping
	reminded  map[string]struct{} // clients that were ended for asking for no Clusters
}

// New returns a server that serves nothing until Run is called.
func New(cfg Config) *Server {
	if cfg.Limits == (limits.XDS{}) {
		cfg.Limits = limits.Default().XDS
	}
	s := &Server{
		cfg: cfg, pool: newPool(), loaded: make(chan struct{}), stopping: make(chan struct{}),
		connections: newConnections(), rosters: newRosters(), largeLoads: make(chan struct{}, largeAtOnce),
		ads: newCensus(), lrs: newCensus(), reporters: make(map[*loadStream]struct{}),
		stamping: make(map[views.Name]stamping), reminded: make(map[string]struct{}),
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

// Register adds the discovery and the load reporting service to a gRPC server
// that was built with ServerOption and whose InTapHandle calls Tap.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	loadstatsv3.RegisterLoadReportingServiceServer(r, loadService{s: s})
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
	if n%600 == 0 {
		snap := s.cfg.Snapshot()
		s.render.sweep(func(n views.Name) bool { return snap.Get(n) != nil || s.feed.index.knows(n) })
		s.rosters.sweep(func(n views.Name) bool { return snap.Get(n) != nil })
	}
	if n%10 != 0 {
		return
	}
	s.endMute(now)
	for _, st := range s.feed.open() {
		reason := st.stalled(now)
		if reason == nil {
			reason = st.forgetful(now)
		}
		if reason != nil {
			st.mu.Lock()
			st.expel(reason)
			st.shut()
			st.mu.Unlock()
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
	// Read first: a policy that comes after it is seen as a change.
	generation := s.generation()
	if s.complete.CompareAndSwap(false, true) {
		s.policy.Store(generation)
		s.since = time.Now()
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
		left := len(s.ads.perPeer) + len(s.lrs.perPeer)
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
	if s.draining == nil {
		s.draining = reason
		close(s.stopping)
	}
	s.mu.Unlock()
	for _, st := range s.feed.open() {
		st.end(reason)
		st.close()
	}
	for _, l := range s.openLoads() {
		l.end(reason)
	}
}
