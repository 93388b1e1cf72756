package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

// database is the dependency that instances may call degraded.
const database = "db"

// word is what an instance says about itself.
type word struct {
	status   healthv1.SelfStatus
	degraded bool // its database
}

// behaviour is how an instance answers, and what it has answered. Lines on its
// standard input change it: serving, not-serving, degraded, recovered,
// unhealthy, healthy, fail PERCENT.
type behaviour struct {
	probes *health.Server // what probes are told

	mu    sync.Mutex
	says  word
	fails float64
	calls map[string]int // answered, by caller
	conns map[string]int // that brought one
}

func newBehaviour() *behaviour {
	return &behaviour{
		probes: health.NewServer(), says: word{status: healthv1.SelfStatus_SELF_STATUS_SERVING},
		calls: map[string]int{}, conns: map[string]int{},
	}
}

// obey carries out one command.
func (b *behaviour) obey(line string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	verb, arg, _ := strings.Cut(line, " ")
	switch verb {
	case "serving":
		b.says.status = healthv1.SelfStatus_SELF_STATUS_SERVING
	case "not-serving":
		b.says.status = healthv1.SelfStatus_SELF_STATUS_NOT_SERVING
	case "degraded", "recovered":
		b.says.degraded = verb == "degraded"
	case "healthy":
		b.probes.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	case "unhealthy":
		b.probes.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	case "bad": // never good, by its own word or a probe's
		b.says.status = healthv1.SelfStatus_SELF_STATUS_NOT_SERVING
		b.probes.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	case "fail":
		percent := 0.0
		if _, err := fmt.Sscan(arg, &percent); err != nil {
			return fmt.Errorf("fail %q: %w", arg, err)
		}
		b.fails = percent / 100
	default:
		return fmt.Errorf("unknown command %q", line)
	}
	return nil
}

func (b *behaviour) word() word {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.says
}

// answer counts a caller's call, and fails as many as it was told to. Probes
// and whoever calls by hand name no caller.
func (b *behaviour) answer(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	from := md.Get(callerHeader)
	if len(from) == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[from[0]]++
	if c, ok := ctx.Value(connKey{}).(*connection); ok && !c.counted {
		c.counted = true
		b.conns[from[0]]++
	}
	if b.fails > 0 && rand.Float64() < b.fails { //nolint:gosec // traffic of a demonstration
		return status.Error(codes.Unavailable, "told to fail")
	}
	return nil
}

func (b *behaviour) intercept(name string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		_ = grpc.SetHeader(ctx, metadata.Pairs("backend", name))
		if err := b.answer(ctx); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}

// count reports what was answered, four times a second, until the context ends.
func (b *behaviour) count(ctx context.Context, name string, enc *json.Encoder, lock *sync.Mutex) {
	for tick := time.NewTicker(sampleEvery); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		b.mu.Lock()
		e := Event{Instance: name, Event: eventCounts, Calls: maps.Clone(b.calls), Conns: maps.Clone(b.conns)}
		b.mu.Unlock()
		lock.Lock()
		_ = enc.Encode(e)
		lock.Unlock()
	}
}

const eventCounts = "counts"

type connKey struct{}

// connection is one accepted connection; guarded by the behaviour's mu.
type connection struct{ counted bool }

// TagConn, HandleConn, TagRPC and HandleRPC make the behaviour a stats.Handler,
// which tells connections apart.
func (b *behaviour) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connKey{}, &connection{})
}

// HandleConn does nothing.
func (b *behaviour) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC keeps the context, which holds the connection.
func (b *behaviour) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC does nothing.
func (b *behaviour) HandleRPC(context.Context, stats.RPCStats) {}
