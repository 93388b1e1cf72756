package svid

import (
	"context"
	"time"

	"github.com/sightlinedev/sightline/identity"
)

type contextKey struct{}

type caller struct {
	principal identity.Principal
	notAfter  time.Time
}

// WithPrincipal returns a context that carries a verified caller. The server's
// interceptors set it; tests of RPC packages may.
func WithPrincipal(ctx context.Context, p identity.Principal) context.Context {
	return WithCaller(ctx, p, time.Time{})
}

// WithCaller is WithPrincipal with the moment at which the caller's identity
// ends; zero: never.
func WithCaller(ctx context.Context, p identity.Principal, notAfter time.Time) context.Context {
	return context.WithValue(ctx, contextKey{}, caller{p, notAfter})
}

// PrincipalFrom returns the verified caller of the request that ctx belongs
// to; ok is false when no interceptor has put one there.
func PrincipalFrom(ctx context.Context) (p identity.Principal, ok bool) {
	c, ok := ctx.Value(contextKey{}).(caller)
	return c.principal, ok
}

// NotAfterFrom returns when the caller's identity ends, or zero.
func NotAfterFrom(ctx context.Context) time.Time {
	c, _ := ctx.Value(contextKey{}).(caller)
	return c.notAfter
}
