package admin

import (
	"context"

	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/paging"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// Server implements adminv1.AdminServiceServer.
type Server struct {
	adminv1.UnimplementedAdminServiceServer
	cfg    Config
	sizes  paging.Sizes
	trials chan struct{} // room for the contract tests that run at once
	looks  *inspections
}

// New returns a Server.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, sizes: paging.Sizes{Default: cfg.API.DefaultPageSize, Most: cfg.API.PageSize},
		trials: make(chan struct{}, cfg.API.Trials)}
	s.looks = newInspections(func(ctx context.Context, n registry.Name) (Inspection, bool, error) { return s.cfg.Inspect(ctx, n) })
	return s
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { adminv1.RegisterAdminServiceServer(r, s) }

// caller is the verified principal of a request.
func (s *Server) caller(ctx context.Context) (identity.Principal, error) {
	who, ok := s.cfg.Principal(ctx)
	if !ok {
		return who, status.Errorf(status.NoIdentity, "the connection carries no verified identity")
	}
	return who, nil
}

// known is a service as desired state has it.
type known struct {
	name      registry.Name
	instances int
	serves    []identity.ID
}

// services lists the services that the caller may look at.
func (s *Server) services(who identity.Principal) []known {
	var all []known
	s.cfg.Read(func(ix *registry.Index) {
		for svc := range ix.Services() {
			all = append(all, known{svc.Name, ix.InstanceCount(svc.Name), ix.EffectiveContract(svc).Identities})
		}
	})
	kept := all[:0]
	for _, k := range all {
		if s.mayInspect(who, k.name, k.serves) {
			kept = append(kept, k)
		}
	}
	return kept
}

func (s *Server) mayInspect(who identity.Principal, n registry.Name, serves []identity.ID) bool {
	return s.cfg.Policy().CanInspect(who, authz.Service{Namespace: n.Namespace, Name: n.Service}, serves).Allowed
}

// maySee is mayInspect for a name that may be of no service, or of one that was
// deleted: its contract then names nobody.
func (s *Server) maySee(who identity.Principal, n registry.Name) bool {
	_, serves := s.row(n)
	return s.mayInspect(who, n, serves)
}

// seesAll says whether the caller may see what is about no single service.
func (s *Server) seesAll(who identity.Principal) bool {
	return who.Class() != identity.Workload && s.mayInspect(who, registry.Name{}, nil)
}

func (s *Server) row(n registry.Name) (svc *registry.Service, serves []identity.ID) {
	s.cfg.Read(func(ix *registry.Index) {
		if row, ok := ix.Service(n); ok {
			svc, serves = row, ix.EffectiveContract(row).Identities
		}
	})
	return svc, serves
}

// find returns the uid of a service's live instance by uid or label; not ok
// when it has none of that name.
func (s *Server) find(n registry.Name, ref string) (uid registry.UID, ok bool) {
	s.cfg.Read(func(ix *registry.Index) {
		if u, err := registry.ParseUID(ref); err == nil {
			i, live := ix.Instance(u)
			uid, ok = u, live && i.Service == n
			return
		}
		var i *registry.Instance
		if i, ok = ix.InstanceByLabel(n, ref); ok {
			uid = i.UID
		}
	})
	return uid, ok
}

// complete refuses to answer from views that are still being built.
func (s *Server) complete() (*views.Snapshot, error) {
	snap := s.cfg.Snapshot()
	if !snap.Complete() {
		return nil, status.Errorf(status.ViewsLoading, "the server is still building its views")
	}
	return snap, nil
}

// scope is what a request names: a service, a namespace, or everything.
type scope struct{ namespace, name string }

func (o scope) covers(n registry.Name) bool {
	return (o.namespace == "" || o.namespace == n.Namespace) && (o.name == "" || o.name == n.Service)
}

func (o scope) service() registry.Name {
	return registry.Name{Namespace: o.namespace, Service: o.name}
}

// check refuses a name without a namespace.
func (o scope) check() error {
	if o.name != "" && o.namespace == "" {
		return status.Field(status.InvalidField, "namespace", "required", "a name needs its namespace")
	}
	return nil
}
