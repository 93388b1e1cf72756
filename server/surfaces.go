package server

import (
	"context"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/tap"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/admin"
	"github.com/sightlinedev/sightline/server/registryapi"
	"github.com/sightlinedev/sightline/server/report"
	"github.com/sightlinedev/sightline/server/resolve"
	"github.com/sightlinedev/sightline/server/watch"
	"github.com/sightlinedev/sightline/server/xds"
)

// buildSurfaces builds what callers talk to.
func (s *Server) buildSurfaces(context.Context) error {
	l := s.cfg.Limits
	from, to := s.source.Validity()
	guard := &guard{table: authz.NewTable(s.source.TrustDomain(), s.cfg.Mode == Dev), events: s.report.guardEvents()}
	s.xdsGRPC = s.newGRPC(s.xdsGate, guard, xdsSettings(l, to.Sub(from)), xds.Tap, xds.ServerOption())
	s.apiGRPC = s.newGRPC(s.apiGate, guard, apiSettings(l, to.Sub(from)), nil, report.ServerOption())

	s.xds = xds.New(xds.Config{
		Snapshot: s.Snapshot, Policy: s.Policy, Principal: svid.PrincipalFrom, Restamp: s.restamp, Loads: s.loads,
		Limits: l.XDS, Identifier: s.cfg.Name + "/" + s.cfg.Region, Outbound: s.cfg.EnvoyOutbound,
		Events: s.xdsEvents(),
	})
	s.watch = watch.New(watch.Config{
		Snapshot: s.Snapshot, Since: s.publisher.Since, Policy: s.Policy, Region: s.cfg.Region,
		MaxFilter: l.API.WatchFilter, StreamsPerSource: l.API.WatchesPerSource,
		StallAfter: l.XDS.StallAfter, StallRate: l.XDS.StallRate, Events: s.watchEvents(),
	})
	s.registry = registryapi.New(registryapi.Config{
		Writer: s.writer, Policy: s.Policy, Principal: svid.PrincipalFrom, Renew: s.shards.SubmitRenewal,
		SelfProof: s.selfProof(), Now: time.Now, API: l.API, Region: s.cfg.Region,
		Events: registryapi.Events{Refused: func(who identity.Principal, n registry.Name, rule string) { s.refused(who, n, "registration", rule) }},
	})
	s.onClose(func() error { s.registry.Close(); return nil })

	s.taps = admin.NewTaps()
	s.onClose(func() error { s.taps.Close(); return nil })
	s.xds.Register(s.xdsGRPC)
	s.registry.Register(s.apiGRPC)
	viewv1.RegisterViewServiceServer(s.apiGRPC, s.watch)
	resolvev1.RegisterResolveServiceServer(s.apiGRPC, resolve.New(resolve.Config{
		Snapshot: s.Snapshot, Policy: s.Policy, MissesPerMinute: l.API.UnknownNamesPerCall, Events: s.resolveEvents(),
	}))
	s.reports = s.newReports()
	healthv1.RegisterReportServiceServer(s.apiGRPC, s.reports)
	s.newAdmin().Register(s.apiGRPC)
	s.registerCommon()
	s.http = s.newHTTP()
	return nil
}

// selfProof is what a registration by the instance itself proves: only dev
// takes it for proof of the address, until addresses are dialled back.
func (s *Server) selfProof() registry.ProofKind {
	if s.cfg.Mode == Dev {
		return registry.ByRegistration
	}
	return registry.Unproved
}

// registerCommon adds health to both ports and reflection to the API's.
func (s *Server) registerCommon() {
	for _, g := range []*grpc.Server{s.xdsGRPC, s.apiGRPC} {
		healthpb.RegisterHealthServer(g, s.health)
	}
	reflection.Register(s.apiGRPC)
}

// newHealth knows every service of healthNames, none of them serving.
func newHealth() *health.Server {
	h := health.NewServer()
	for _, name := range healthNames {
		h.SetServingStatus(name, healthpb.HealthCheckResponse_NOT_SERVING)
	}
	return h
}

// healthNames are the services that grpc.health.v1 knows. The empty name is
// the server as a whole.
var healthNames = [...]string{"", "xds", "dns", "registry"}

// serving tells health what can be used: everything once views are complete,
// the registry only while the store takes writes.
func (s *Server) serving() {
	for _, name := range healthNames {
		st := healthpb.HealthCheckResponse_SERVING
		if name == "registry" && s.refusal() != nil {
			st = healthpb.HealthCheckResponse_NOT_SERVING
		}
		s.health.SetServingStatus(name, st)
	}
}

// newGRPC builds one of the two gRPC servers: mTLS by the gate's credentials,
// the guard before every handler, unknown methods included.
func (s *Server) newGRPC(g *gate, guard *guard, set settings, next tap.ServerInHandle, more ...grpc.ServerOption) *grpc.Server {
	options := append(set.options(),
		grpc.Creds(s.source.ServerCredentials(g.svidGate())),
		grpc.InTapHandle(g.tap(next)),
		grpc.UnaryInterceptor(guard.unary), grpc.StreamInterceptor(guard.stream),
		grpc.UnknownServiceHandler(unknown))
	return grpc.NewServer(append(options, more...)...)
}

// newHTTP builds the plain port: metrics and the two probes, no names of
// services or clients.
func (s *Server) newHTTP() *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.report.metrics.Handler())
	mux.Handle("GET /readyz", s.checks)
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	a := s.cfg.Limits.Availability
	return &http.Server{Handler: mux, ReadHeaderTimeout: a.HTTPReadTimeout, ReadTimeout: a.HTTPReadTimeout,
		WriteTimeout: a.HTTPWrite, MaxHeaderBytes: a.HTTPHeaderBytes, IdleTimeout: a.HTTPWrite}
}
