package server

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/svid"
	"github.com/sightlinedev/sightline/server/status"
)

// guard stands before every handler of both gRPC ports: it finds who calls,
// asks the authorisation table, and keeps a handler's panic to its one call.
type guard struct {
	table  *authz.Table
	events guardEvents
}

// guardEvents are told of what the guard does; all must be set.
type guardEvents struct {
	refused  func(method string, who identity.Principal, reason, rule string)
	panicked func(method string, who identity.Principal, value string, stack []byte)
}

// enter identifies and authorises a call. The context that it returns carries
// the caller, and when the caller's identity ends.
func (g *guard) enter(ctx context.Context, method string) (context.Context, identity.Principal, error) {
	p, addr, ok := svid.PeerFrom(ctx)
	if !ok {
		g.events.refused(method, identity.Principal{Addr: addr}, "no_identity", "the connection carries no verified identity")
		return ctx, identity.Principal{}, status.Errorf(status.NoIdentity, "the connection carries no verified identity")
	}
	who := identity.Principal{ID: p.ID, Addr: addr}
	if !time.Now().Before(p.NotAfter) {
		g.events.refused(method, who, "expired", "the certificate has ended")
		return ctx, who, expired(p)
	}
	access := g.table.Check(method, who)
	switch {
	case !access.Known:
		g.events.refused(method, who, "unknown", access.Rule)
		return ctx, who, status.Errorf(status.NotOffered, "%q is not a method of this server", method)
	case !access.Allowed():
		g.events.refused(method, who, "denied", access.Rule)
		return ctx, who, status.New(status.ClassDenied, "%s may not call %s: %s", who, method, access.Rule).
			With("caller", who.String()).With("method", method).With("rule", access.Rule).Err()
	}
	return svid.WithCaller(ctx, who, p.NotAfter), who, nil
}

// unary is the interceptor of calls.
func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	ctx, who, err := g.enter(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	defer func() {
		if v := recover(); v != nil {
			resp, err = nil, g.caught(info.FullMethod, who, v)
		}
	}()
	return next(ctx, req)
}

// stream is the interceptor of streams.
func (g *guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	ctx, who, err := g.enter(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	defer func() {
		if v := recover(); v != nil {
			err = g.caught(info.FullMethod, who, v)
		}
	}()
	attach(ctx)
	err = next(srv, &callerStream{ss, ctx})
	// A stream that was ended (an identity that is over, a stop) says why,
	// whatever its handler made of the cancelled context.
	if cause := context.Cause(ss.Context()); err != nil && cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return err
}

func (g *guard) caught(method string, who identity.Principal, v any) error {
	g.events.panicked(method, who, fmt.Sprint(v), debug.Stack())
	return status.Errorf(status.Internal, "the handler of %s failed", method)
}

// unknown answers a method that no service has; the guard has refused it
// before, so that it is never reached by a path with a row.
func unknown(_ any, ss grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(ss)
	return status.Errorf(status.NotOffered, "%q is not a method of this server", method)
}

// callerStream is a stream whose context carries the caller.
type callerStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context carries the verified caller.
func (s *callerStream) Context() context.Context { return s.ctx }
