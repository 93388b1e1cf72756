// Package registryapi is RegistryService: desired state over gRPC.
//
// It checks that the caller may do what it asks (the class by the authorisation
// table before a call arrives here, the object here), converts messages, has
// server/desired write, and answers with the status of what happened. It keeps
// no rows and no leases: a renewal is handed to the instance's shard through a
// function. A privileged attempt carries an audit record, also when it is
// refused. What exists and what a caller may not see give the same answer.
//
// Methods may be called from any goroutine. Tests give it a real Writer over a
// commit function.
package registryapi

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/paging"
)

// source is the owner of the rows that are written here (NAMES.md, row ownership).
const source = "api"

// Config is what a Server is built from; all functions are required.
type Config struct {
	Writer    *desired.Writer
	Policy    func() *authz.Policy
	Principal func(context.Context) (identity.Principal, bool)
	// Renew tells the instance's shard that its lease was renewed.
	Renew func(registry.Name, registry.UID)
	// SelfProof is what a registration by the instance itself proves about its
	// address: ByRegistration in dev and demo, Unproved elsewhere.
	SelfProof registry.ProofKind
	// Now is the wall clock of audit records.
	Now    func() time.Time
	API    limits.API
	Region string // of instances that name none
	Events Events
}

// Events report what happens; each may be nil.
type Events struct {
	// Refused: a caller that speaks for itself alone may not register an
	// instance of a service that exists, by the rule given. Whoever records it
	// bounds it (once per principal, name and minute).
	Refused func(who identity.Principal, n registry.Name, rule string)
}

// Server implements RegistryService. Close it when its gRPC server has stopped.
type Server struct {
	registryv1.UnimplementedRegistryServiceServer
	cfg     Config
	sizes   paging.Sizes
	replies *replies

	mu      sync.Mutex
	closed  bool
	leavers map[registry.UID]*time.Timer // deregistered with a grace that still runs
	ending  sync.WaitGroup               // removals of leavers under way
}

// New returns a Server.
func New(cfg Config) *Server {
	return &Server{
		cfg: cfg, replies: newReplies(), leavers: make(map[registry.UID]*time.Timer),
		sizes: paging.Sizes{Default: cfg.API.DefaultPageSize, Most: cfg.API.PageSize},
	}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { registryv1.RegisterRegistryServiceServer(r, s) }

// Close drops the graces that still run: their instances stay draining until
// their leases lapse. It waits for removals under way.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for uid, t := range s.leavers {
		t.Stop()
		delete(s.leavers, uid)
	}
	s.mu.Unlock()
	s.ending.Wait()
}
