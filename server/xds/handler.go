package xds

import (
	"context"
	"errors"
	"hash/maphash"
	"io"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

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
	case <-s.stopping:
		return s.admit(who)
	case <-ctx.Done():
		return s.ended(ctx)
	}
	end := func(reason error) { tell(ctx, reason); cancel(reason) }
	st := &stream{srv: s, conn: conn, end: end, delta: delta, who: who, opened: time.Now(), names: s.cfg.Limits.Names}
	if who.Class() == identity.Agent {
		st.names = s.cfg.Limits.AgentNames
	}
	st.scope = s.scopeOf(who)
	if !delta {
		key := s.connection(ctx)
		s.connections.join(key, st)
		defer s.connections.leave(key, st)
	}
	s.feed.enter(st)
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	if draining != nil { // refuseAll may have listed the streams before this one
		st.close()
		return draining
	}
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
	r := &request{
		wantNode: true, lists: &nameLists{seed: maphash.MakeSeed()},
		limit: requestLimit{names: st.names, offered: s.cfg.Limits.AgentNames},
	}
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
			st.meet(r)
			defer st.part()
		}
		plain := r.plain()
		if !plain && s.throttle(ctx, st.who, st.node.id, budget) != nil {
			return s.ended(ctx)
		}
		settled, err := st.receive(r, time.Now())
		if err != nil {
			return s.refuse(ctx, st, err)
		}
		r.done()
		// Only an acknowledgement of something is free.
		if plain && !settled && s.throttle(ctx, st.who, st.node.id, budget) != nil {
			return s.ended(ctx)
		}
	}
}

// throttle takes a request from the stream's budget, and waits when there is
// none left. An error says that the stream ended.
func (s *Server) throttle(ctx context.Context, who identity.Principal, node string, budget *rate.Limiter) error {
	if budget.Allow() {
		return nil
	}
	if on := s.cfg.Events.Throttled; on != nil {
		on(who, node)
	}
	return budget.Wait(ctx)
}

// receive takes in a request and has the stream served if that may have made
// something due. It reports whether the request settled a response; an error
// ends the stream.
func (st *stream) receive(r *request, now time.Time) (settled bool, err error) {
	st.mu.Lock()
	if st.closed {
		st.mu.Unlock()
		return false, nil
	}
	if r.typ != types {
		settled = st.settle(r.typ, r, now)
	}
	if st.delta {
		err = st.onDelta(r)
	} else {
		err = st.onSotw(r)
	}
	prio, due := st.pending()
	st.mu.Unlock()
	if due {
		st.wake(prio)
	}
	return settled, err
}

// meet learns from the first request what kind of client a stream has.
func (st *stream) meet(r *request) {
	r.wantNode = false
	st.mu.Lock()
	if r.node != nil {
		st.node = *r.node
	}
	st.kind = kindOf(st.node.userAgent, st.delta)
	st.shape = st.kind.rendering(&st.node)
	st.met = true
	st.mu.Unlock()
	if on := st.srv.cfg.Events.Streams; on != nil {
		on(st.kind.name, st.protocol(), 1)
	}
}

func (st *stream) part() {
	if on := st.srv.cfg.Events.Streams; on != nil {
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
	if s.draining != nil {
		return s.draining
	}
	l := s.cfg.Limits
	return s.ads.enter(who, "ADS", bound{"XDS.StreamsPerSource", l.StreamsPerSource}, bound{"XDS.StreamsPerCaller", l.StreamsPerCaller})
}

func (s *Server) dismiss(who identity.Principal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ads.leave(who)
}

// census counts the open streams of each caller.
type census struct {
	perPeer map[identity.Principal]int
	perID   map[identity.ID]int
}

func newCensus() census {
	return census{perPeer: make(map[identity.Principal]int), perID: make(map[identity.ID]int)}
}

// bound is a limit by its name.
type bound struct {
	name string
	most int
}

// enter counts a stream, or says which limit refuses it: that of its caller at
// its address, or that of its caller.
func (c census) enter(who identity.Principal, what string, source, caller bound) error {
	if n := c.perPeer[who]; n >= source.most {
		return status.New(status.LimitExceeded, "%d %s streams of %s from %s are open, the limit is %d",
			n, what, who, who.Addr, source.most).With("limit", source.name).Err()
	}
	if n := c.perID[who.ID]; n >= caller.most {
		return status.New(status.LimitExceeded, "%d %s streams of %s are open, the limit is %d",
			n, what, who, caller.most).With("limit", caller.name).Err()
	}
	c.perPeer[who]++
	c.perID[who.ID]++
	return nil
}

func (c census) leave(who identity.Principal) {
	if c.perPeer[who]--; c.perPeer[who] == 0 {
		delete(c.perPeer, who)
	}
	if c.perID[who.ID]--; c.perID[who.ID] == 0 {
		delete(c.perID, who.ID)
	}
}
