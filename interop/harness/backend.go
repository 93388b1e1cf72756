package harness

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// BackendHeader is the response header that names the backend which answered.
const BackendHeader = "backend"

// Backend is an instance of some service, in the test's own process: a plaintext
// gRPC server with grpc.health.v1 and reflection, which counts its calls.
type Backend struct {
	Name string
	Addr netip.AddrPort

	// Health is what it answers; SERVING at first.
	Health *health.Server

	calls  atomic.Int64
	fault  atomic.Pointer[fault] // nil: none
	server *grpc.Server
}

// StartBackend serves on a port of its own on loopback until the test ends.
func StartBackend(t testing.TB, name string) *Backend {
	t.Helper()
	return StartBackendAt(t, name, "127.0.0.1:0")
}

// StartBackendAt serves on the address given: also a second incarnation on the
// address of one that was stopped.
func StartBackendAt(t testing.TB, name, addr string) *Backend {
	t.Helper()
	b := &Backend{Name: name, Health: health.NewServer()}
	var l net.Listener
	Eventually(t, 5*time.Second, "backend "+name+" listens on "+addr, func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	b.Addr = l.Addr().(*net.TCPAddr).AddrPort()
	b.server = grpc.NewServer(grpc.UnaryInterceptor(b.intercept))
	healthpb.RegisterHealthServer(b.server, b.Health)
	reflection.Register(b.server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.server.Serve(l) // ends with Stop
	}()
	t.Cleanup(func() {
		b.Stop()
		<-done
	})
	return b
}

// Stop closes the listener and all connections, as a killed process would.
func (b *Backend) Stop() { b.server.Stop() }

// fault is what a backend does to some of its calls.
type fault struct {
	percent int64
	code    codes.Code
	hang    bool // answer nothing until the caller gives up
}

// hits reports whether the n-th call is one of them: they are spread evenly.
func (f *fault) hits(n int64) bool {
	return f != nil && n*f.percent/100 != (n-1)*f.percent/100
}

// Fail makes it answer every call with that status code; OK ends that.
func (b *Backend) Fail(c codes.Code) { b.FailSome(100, c) }

// FailSome makes it answer that percentage of its calls with a status code.
func (b *Backend) FailSome(percent int, c codes.Code) {
	if c == codes.OK {
		b.Repair()
		return
	}
	b.fault.Store(&fault{percent: int64(percent), code: c})
}

// Hang makes it answer no call before its caller's deadline.
func (b *Backend) Hang() { b.fault.Store(&fault{percent: 100, hang: true}) }

// Repair ends whatever fault it has.
func (b *Backend) Repair() { b.fault.Store(nil) }

// Calls is the number of calls answered so far, failed ones too.
func (b *Backend) Calls() int64 { return b.calls.Load() }

func (b *Backend) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	n := b.calls.Add(1)
	if err := grpc.SetHeader(ctx, metadata.Pairs(BackendHeader, b.Name)); err != nil {
		return nil, err
	}
	if f := b.fault.Load(); f.hits(n) {
		if f.hang {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, status.Errorf(f.code, "backend %s was told to fail", b.Name)
	}
	return next(ctx, req)
}
