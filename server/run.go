package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/server/status"
)

// stage is one running part, with the way to end it.
type stage struct {
	name string
	stop func()
	done chan struct{}
}

// stages are the running parts in the order of their start.
type stages struct {
	mu      sync.Mutex
	running []stage
	failed  chan error // size 1: the first part that ended by itself
}

// start runs a part until stop. A part that ends by itself, with an error or
// without, ends the server.
func (s *stages) start(name string, run func(context.Context) error) {
	// Not derived from Run's context: parts end in order, not all at once.
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.mu.Lock()
	s.running = append(s.running, stage{name, cancel, done})
	s.mu.Unlock()
	go func() {
		defer close(done)
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it ended by itself")
		}
		select {
		case s.failed <- fmt.Errorf("%s: %w", name, err):
		default:
		}
	}()
}

// stop ends the last parts until and with the named one, in reverse order.
func (s *stages) stop(until string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.running) > 0 {
		last := s.running[len(s.running)-1]
		s.running = s.running[:len(s.running)-1]
		last.stop()
		<-last.done
		if last.name == until {
			return
		}
	}
}

// Run starts every part in order, serves until ctx ends or a part fails, stops
// in reverse order, and releases what New opened. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	parts := &stages{failed: make(chan error, 1)}
	s.startAll(parts)
	var err error
	select {
	case <-ctx.Done():
		s.report.stopping("asked to stop")
	case err = <-parts.failed:
		s.report.stopping(err.Error())
	}
	s.stopAll(parts)
	return errors.Join(err, s.Close())
}

// startAll starts the parts in the order of the package's document. DNS and
// HTTP come early: they say what is the matter while views are built.
func (s *Server) startAll(parts *stages) {
	parts.start("http", func(ctx context.Context) error { return s.serveHTTP(ctx) })
	parts.start("identity", s.source.Run)
	parts.start("connections", s.recheckConnections)
	parts.start("dns", s.dns.Run)
	parts.start("writer", s.writer.Run)
	parts.start("proofs", s.writeProofs)
	if o := s.report.owners; o != nil {
		for i, sender := range o.senders {
			parts.start(fmt.Sprintf("webhook %d", i), sender.Run)
		}
	}
	parts.start("shards", func(ctx context.Context) error { return s.shards.Run(ctx, s.boot) })
	parts.start("rebuild", s.compareViews)
	parts.start("xds", s.xds.Run)
	parts.start("xds port", func(ctx context.Context) error { return s.serveGRPC(ctx, s.xdsGRPC, s.xdsGate) })
	parts.start("api port", func(ctx context.Context) error { return s.serveGRPC(ctx, s.apiGRPC, s.apiGate) })
	s.checks.set(checkListeners, "")
	s.checks.set(checkStore, "")
	for i, source := range s.sources {
		parts.start(sourceStage(i), source.Run)
	}
	s.checks.set(checkSources, "")
	s.report.listening(s.Addrs(), s.source.ID())
}

// stopAll is the reverse of startAll. HTTP goes last, so that the end can be
// watched; before the gRPC servers stop, their streams are ended with a reason,
// over a moment, so that clients do not come back all at once.
func (s *Server) stopAll(parts *stages) {
	s.checks.fail("the server is stopping")
	s.health.Shutdown()
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Limits.Availability.StopTimeout)
	defer cancel()
	if len(s.sources) > 0 {
		parts.stop(sourceStage(0))
	}
	s.drain(ctx)
	parts.stop("xds port")
	s.registry.Close() // while the writer still runs: it may have removals under way
	parts.stop("http")
}

func sourceStage(i int) string { return fmt.Sprintf("source %d", i) }

// drain accepts nothing any more, and ends streams and connections spread over
// Availability.StopJitter.
func (s *Server) drain(ctx context.Context) {
	reason := status.New(status.Stopping, "this server is stopping").RetryAfter(s.cfg.Limits.Availability.StopJitter).Err()
	var both sync.WaitGroup
	for _, g := range []*gate{s.xdsGate, s.apiGate} {
		g.refuse()
		both.Go(func() { g.drain(ctx, reason, s.cfg.Limits.Availability.StopJitter) })
	}
	both.Wait()
	_ = s.xds.Drain(ctx)
	s.watch.Close()
	s.taps.Close()
}

// serveGRPC serves one port until ctx ends, then lets calls end for a moment.
func (s *Server) serveGRPC(ctx context.Context, g *grpc.Server, l *gate) error {
	failed := make(chan error, 1)
	go func() { failed <- g.Serve(l) }()
	select {
	case err := <-failed:
		g.Stop()
		return err
	case <-ctx.Done():
	}
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		g.GracefulStop()
	}()
	select {
	case <-graceful:
	case <-time.After(callGrace):
		g.Stop()
		<-graceful
	}
	<-failed
	return nil
}

// callGrace is how long calls that are running at a stop may go on.
const callGrace = 2 * time.Second

// serveHTTP serves the plain port until ctx ends.
func (s *Server) serveHTTP(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(s.httpListener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.Background(), callGrace)
	defer cancel()
	if s.http.Shutdown(stop) != nil {
		_ = s.http.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// recheckConnections ends connections whose peers are no longer good when the
// trust bundles change: at once, and once more when every handshake that was
// verified by the bundles before has become a connection.
func (s *Server) recheckConnections(ctx context.Context) error {
	changed := s.source.BundlesChanged()
	again := time.NewTimer(0)
	<-again.C
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			changed = s.source.BundlesChanged() // before the check, so that no change is missed
			again.Reset(s.cfg.Limits.Transport.HandshakeTimeout)
		case <-again.C:
		}
		if n := s.xdsGate.recheck(s.source) + s.apiGate.recheck(s.source); n > 0 {
			s.report.recheckEnded(n)
		}
	}
}
