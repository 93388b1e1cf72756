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

	calls   atomic.Int64
	failing atomic.Int32 // a codes.Code
	server  *grpc.Server
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

// Fail makes every call end with the code; codes.OK ends that.
func (b *Backend) Fail(c codes.Code) { b.failing.Store(int32(c)) }

// Calls is the number of calls answered so far, failed ones too.
func (b *Backend) Calls() int64 { return b.calls.Load() }

func (b *Backend) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	b.calls.Add(1)
	if err := grpc.SetHeader(ctx, metadata.Pairs(BackendHeader, b.Name)); err != nil {
		return nil, err
	}
	if c := codes.Code(b.failing.Load()); c != codes.OK {
		return nil, status.Errorf(c, "backend %s was told to fail", b.Name)
	}
	return next(ctx, req)
}
