package server

import (
	"context"
	"errors"
	"math"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/svid"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/status"
)

// settings are the numbers of one gRPC listener, apart from grpc's option
// functions so that a test can read them back.
type settings struct {
	ConnectionTimeout time.Duration
	ConcurrentStreams uint32
	MaxRecvBytes      int
	MaxHeaderBytes    uint32
	ReadBuffer        int   // bytes; 0: grpc's own
	Window            int32 // bytes, of a stream and of a connection; 0: grpc finds them
	Keepalive         keepalive.ServerParameters
	Enforcement       keepalive.EnforcementPolicy
}

// xdsSettings and apiSettings are those of the two ports; life is that of our
// own SVID: a connection lives at most half of it.
func xdsSettings(l *limits.Limits, life time.Duration) settings {
	s := commonSettings(&l.Transport, life)
	s.ConcurrentStreams, s.MaxRecvBytes = l.XDS.ConcurrentStreams, l.XDS.MaxRequestBytes
	s.ReadBuffer, s.Window = xdsReadBuffer, xdsWindow
	return s
}

// What xDS clients send is small and comes all the time. Left alone, grpc looks
// for the best window by a ping after data, each acknowledgement included: a
// quarter of the price of a delivery. The smallest fixed window is that of
// HTTP/2; a larger message still gets one of its size once it is read. The read
// buffer holds dozens of acknowledgements, and saves 6 KB a connection.
const (
	xdsWindow     = 64 << 10
	xdsReadBuffer = 4 << 10
	// Reports come all the time as well; a batch of rows is the largest request.
	apiWindow = 256 << 10
)

func apiSettings(l *limits.Limits, life time.Duration) settings {
	s := commonSettings(&l.Transport, life)
	s.ConcurrentStreams, s.MaxRecvBytes = l.API.ConcurrentStreams, l.API.MaxRequestBytes
	s.Window = apiWindow
	return s
}

func commonSettings(t *limits.Transport, life time.Duration) settings {
	age := t.MaxConnectionAge
	if half := life / 2; half > 0 && half < age {
		age = half
	}
	return settings{
		ConnectionTimeout: t.HandshakeTimeout, MaxHeaderBytes: t.MaxHeaderBytes,
		Keepalive: keepalive.ServerParameters{Time: t.KeepaliveTime, Timeout: t.KeepaliveTimeout,
			MaxConnectionAge: age, MaxConnectionAgeGrace: t.MaxConnectionGrace,
			MaxConnectionIdle: time.Duration(math.MaxInt64)},
		Enforcement: keepalive.EnforcementPolicy{MinTime: t.MinClientPing, PermitWithoutStream: true},
	}
}

// options are the settings as grpc takes them. NumStreamWorkers stays zero:
// long streams would pin the workers.
func (s settings) options() []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.ConnectionTimeout(s.ConnectionTimeout), grpc.MaxConcurrentStreams(s.ConcurrentStreams),
		grpc.MaxRecvMsgSize(s.MaxRecvBytes), grpc.MaxHeaderListSize(s.MaxHeaderBytes),
		grpc.KeepaliveParams(s.Keepalive), grpc.KeepaliveEnforcementPolicy(s.Enforcement),
	}
	if s.ReadBuffer > 0 {
		options = append(options, grpc.ReadBufferSize(s.ReadBuffer))
	}
	if s.Window > 0 {
		options = append(options, grpc.StaticStreamWindowSize(s.Window), grpc.StaticConnWindowSize(s.Window))
	}
	return options
}

// gate is a listener that bounds handshakes in flight and open connections,
// and knows whose each connection is, so that it can end it. It is used from
// many goroutines.
type gate struct {
	net.Listener
	port       string
	limits     limits.Transport
	events     gateEvents
	handshakes chan struct{} // a token for each that may be in flight
	closed     chan struct{}
	closing    sync.Once
	refusing   sync.Once

	mu        sync.Mutex
	open      int
	conns     map[*svid.Peer]*conn // verified
	perSource map[identity.Principal]int
	perCaller map[identity.ID]int
}

// gateEvents are told of connections; all must be set.
type gateEvents struct {
	handshake   func(port string, remote net.Addr, err error)
	connections func(port string, delta int)
}

func newGate(l net.Listener, port string, lim limits.Transport, e gateEvents) *gate {
	return &gate{Listener: l, port: port, limits: lim, events: e,
		handshakes: make(chan struct{}, lim.Handshakes), closed: make(chan struct{}),
		conns: make(map[*svid.Peer]*conn), perSource: make(map[identity.Principal]int), perCaller: make(map[identity.ID]int)}
}

// conn is one accepted connection.
type conn struct {
	net.Conn
	gate      *gate
	handshake sync.Once // gives the token back
	closing   sync.Once

	// Guarded by gate.mu.
	peer    *svid.Peer // nil until verified
	who     identity.Principal
	ends    *time.Timer // at the end of the peer's identity
	streams map[*liveStream]struct{}
	ending  error // why no stream may begin any more
}

// liveStream is an RPC that is running on a connection.
type liveStream struct {
	cancel context.CancelCauseFunc
	tell   func(*grpcstatus.Status) error // writes the RPC's status; nil until its handler runs. Guarded by gate.mu
}

// end tells the client why, then cancels the handler. The order matters: a
// handler that sits in Recv when its context ends makes grpc answer CANCELLED
// by itself, and only the first status is sent.
func (s *liveStream) end(reason error, tell func(*grpcstatus.Status) error) {
	if tell != nil {
		_ = tell(grpcstatus.Convert(reason))
	}
	s.cancel(reason)
}

// Accept waits for a free handshake before it takes the next connection, so
// that what waits, waits in the kernel's bounded queue.
func (g *gate) Accept() (net.Conn, error) {
	for {
		select {
		case g.handshakes <- struct{}{}:
		case <-g.closed:
			return nil, net.ErrClosed
		}
		raw, err := g.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			<-g.handshakes
			<-g.closed // closed by refuse: what is open is still being drained
			return nil, err
		}
		if err != nil {
			<-g.handshakes
			return nil, err
		}
		c := &conn{Conn: raw, gate: g, streams: make(map[*liveStream]struct{})}
		if g.enter() {
			return c, nil
		}
		c.handshook()
		_ = raw.Close()
	}
}

// refuse takes no further connections. Accept returns only after Close, so
// that the gRPC server does not take it for a failure.
func (g *gate) refuse() { g.refusing.Do(func() { _ = g.Listener.Close() }) }

// Close closes the listener; connections live on.
func (g *gate) Close() error {
	g.refuse()
	g.closing.Do(func() { close(g.closed) })
	return nil
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open >= g.limits.Connections {
		return false
	}
	g.open++
	g.events.connections(g.port, 1)
	return true
}

// handshook gives the handshake's token back, once.
func (c *conn) handshook() { c.handshake.Do(func() { <-c.gate.handshakes }) }

// Close closes the connection and forgets it, once.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.closing.Do(func() {
		c.handshook()
		c.gate.leave(c)
	})
	return err
}

func (g *gate) leave(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	g.events.connections(g.port, -1)
	if c.peer == nil {
		return
	}
	c.ends.Stop()
	delete(g.conns, c.peer)
	if g.perSource[c.who]--; g.perSource[c.who] == 0 {
		delete(g.perSource, c.who)
	}
	if g.perCaller[c.who.ID]--; g.perCaller[c.who.ID] == 0 {
		delete(g.perCaller, c.who.ID)
	}
}

// svidGate hands the credentials what they tell the gate.
func (g *gate) svidGate() svid.Gate { return svid.Gate{Admit: g.admit, Done: g.done} }

func (g *gate) done(raw net.Conn, err error) {
	if c, ok := raw.(*conn); ok {
		c.handshook()
	}
	g.events.handshake(g.port, raw.RemoteAddr(), err)
}

// admit counts a verified peer's connection, or refuses it.
func (g *gate) admit(raw net.Conn, p *svid.Peer) error {
	c, ok := raw.(*conn)
	if !ok {
		return status.Errorf(status.Internal, "connection of type %T did not come from the listener", raw)
	}
	who := identity.Principal{ID: p.ID, Addr: svid.AddrOf(raw.RemoteAddr())}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.perSource[who] >= g.limits.ConnectionsPerSource:
		return status.New(status.LimitExceeded, "%d connections of %s from %s are open", g.perSource[who], who, who.Addr).
			With("limit", "Transport.ConnectionsPerSource").Err()
	case g.perCaller[p.ID] >= g.limits.ConnectionsPerCaller:
		return status.New(status.LimitExceeded, "%d connections of %s are open", g.perCaller[p.ID], who).
			With("limit", "Transport.ConnectionsPerCaller").Err()
	}
	c.peer, c.who = p, who
	g.perSource[who]++
	g.perCaller[p.ID]++
	g.conns[p] = c
	c.ends = time.AfterFunc(time.Until(p.NotAfter), func() { c.end(expired(p)) })
	return nil
}

func expired(p *svid.Peer) error {
	return status.Errorf(status.IdentityExpired, "the certificate of %s ended at %s", p.ID, p.NotAfter.UTC().Format(time.RFC3339))
}

// end ends the streams of a connection with a reason, and the connection a
// moment later, so that the reason still arrives.
func (c *conn) end(reason error) {
	c.gate.mu.Lock()
	c.ending = reason
	open := make(map[*liveStream]func(*grpcstatus.Status) error, len(c.streams))
	for s := range c.streams {
		open[s] = s.tell
	}
	c.gate.mu.Unlock()
	for s, tell := range open {
		s.end(reason, tell)
	}
	time.AfterFunc(endGrace, func() { _ = c.Close() })
}

// endGrace is how long a connection lives on after its streams were ended.
const endGrace = time.Second

// recheck ends every connection whose peer is no longer good by the documents
// held now.
func (g *gate) recheck(source *svid.Source) (ended int) {
	g.mu.Lock()
	all := make([]*conn, 0, len(g.conns))
	for _, c := range g.conns {
		all = append(all, c)
	}
	g.mu.Unlock()
	for _, c := range all {
		if err := source.Recheck(c.peer); err != nil {
			ended++
			c.end(status.Errorf(status.IdentityExpired, "the identity of %s is not good any more: %v", c.peer.ID, err))
		}
	}
	return ended
}

// drain ends every connection with a reason, spread evenly over a time in
// random order, so that not all clients come back at one moment. It returns
// when the last was told, or ctx ends.
func (g *gate) drain(ctx context.Context, reason error, over time.Duration) {
	g.mu.Lock()
	all := make([]*conn, 0, len(g.conns))
	for _, c := range g.conns { // a map's order is random enough
		all = append(all, c)
	}
	g.mu.Unlock()
	if len(all) == 0 {
		return
	}
	// A few connections need no spreading.
	step := min(over/time.Duration(len(all)), 10*time.Millisecond)
	tick := time.NewTicker(max(step, time.Microsecond))
	defer tick.Stop()
	for _, c := range all {
		c.end(reason)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// tap gives each stream a context that its connection can cancel with a
// reason: a handler that sits in Recv returns then. It runs on the
// connection's reading goroutine.
func (g *gate) tap(next tap.ServerInHandle) tap.ServerInHandle {
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		p, _, ok := svid.PeerFrom(ctx)
		if !ok {
			return ctx, status.Errorf(status.NoIdentity, "the connection carries no verified identity")
		}
		ctx, cancel := context.WithCancelCause(ctx)
		s := &liveStream{cancel: cancel}
		ctx = context.WithValue(ctx, liveKey{}, liveValue{g, s})
		g.mu.Lock()
		c, reason := g.conns[p], error(nil)
		switch {
		case c == nil:
			reason = status.Errorf(status.Stopping, "the connection is closing")
		case c.ending != nil:
			reason = c.ending
		default:
			c.streams[s] = struct{}{}
		}
		g.mu.Unlock()
		if reason != nil {
			cancel(nil)
			return ctx, reason
		}
		context.AfterFunc(ctx, func() { g.forget(c, s) })
		if next == nil {
			return ctx, nil
		}
		return next(ctx, info)
	}
}

// liveKey is where tap leaves a stream for attach.
type liveKey struct{}

type liveValue struct {
	gate   *gate
	stream *liveStream
}

// attach lets the connection write the status of a stream whose handler is
// about to run, when it ends the stream. grpc offers that to no handler, only
// on its own type, so it is asked for by its method; without it a client is
// told CANCELLED.
func attach(ctx context.Context) {
	v, ok := ctx.Value(liveKey{}).(liveValue)
	w, can := grpc.ServerTransportStreamFromContext(ctx).(interface {
		WriteStatus(*grpcstatus.Status) error
	})
	if !ok || !can {
		return
	}
	v.gate.mu.Lock()
	v.stream.tell = w.WriteStatus
	v.gate.mu.Unlock()
}

func (g *gate) forget(c *conn, s *liveStream) {
	g.mu.Lock()
	delete(c.streams, s)
	g.mu.Unlock()
	s.cancel(nil)
}
