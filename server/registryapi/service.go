package registryapi

import (
	"context"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
	"github.com/sightlinedev/sightline/server/paging"
	"github.com/sightlinedev/sightline/server/status"
)

// CreateService stores a service that is not there yet.
func (s *Server) CreateService(ctx context.Context, req *registryv1.CreateServiceRequest) (*registryv1.CreateServiceResponse, error) {
	a, err := s.attemptService(ctx, "CreateService", req.GetService(), req.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	return once(ctx, s, a, req.GetRequestId(), func() (*registryv1.CreateServiceResponse, error) {
		svc, err := s.putService(ctx, a, req.GetService(), registry.Create)
		if err != nil {
			return nil, err
		}
		return &registryv1.CreateServiceResponse{Service: svc}, nil
	})
}

// UpdateService replaces a service that is there.
func (s *Server) UpdateService(ctx context.Context, req *registryv1.UpdateServiceRequest) (*registryv1.UpdateServiceResponse, error) {
	a, err := s.attemptService(ctx, "UpdateService", req.GetService(), req.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	return once(ctx, s, a, req.GetRequestId(), func() (*registryv1.UpdateServiceResponse, error) {
		svc, err := s.putService(ctx, a, req.GetService(), registry.Update)
		if err != nil {
			return nil, err
		}
		return &registryv1.UpdateServiceResponse{Service: svc}, nil
	})
}

func (s *Server) attemptService(ctx context.Context, method string, p *registryv1.Service, validateOnly bool) (attempt, error) {
	who, err := s.caller(ctx)
	return attempt{who: who, method: method, target: "service/" + p.GetNamespace() + "/" + p.GetName(), field: "service.", validateOnly: validateOnly}, err
}

func (s *Server) putService(ctx context.Context, a attempt, p *registryv1.Service, mode registry.Mode) (*registryv1.Service, error) {
	row, err := wire.ServiceFromProto(p)
	if err != nil {
		return nil, s.refuse(ctx, a, a.status(err))
	}
	row.Source = source
	if _, err := s.write(ctx, a, registry.PutService{Row: *row, Mode: mode, Expect: row.Revision}); err != nil {
		return nil, err
	}
	if a.validateOnly {
		return p, nil
	}
	s.cfg.Writer.Read(func(ix *registry.Index) {
		if held, ok := ix.Service(row.Name); ok {
			p = wire.ServiceToProto(held)
		}
	})
	return p, nil
}

// GetService returns one service.
func (s *Server) GetService(ctx context.Context, req *registryv1.GetServiceRequest) (*registryv1.GetServiceResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetName()}
	var svc *registry.Service
	s.cfg.Writer.Read(func(ix *registry.Index) { svc, _ = ix.Service(n) })
	if !s.maySee(who, n) || svc == nil {
		return nil, status.Hidden("service", n.String())
	}
	return &registryv1.GetServiceResponse{Service: wire.ServiceToProto(svc)}, nil
}

// ListServices returns a page of the services that the caller may see, by
// namespace and name.
func (s *Server) ListServices(ctx context.Context, req *registryv1.ListServicesRequest) (*registryv1.ListServicesResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	var rows []paging.Keyed[*registry.Service]
	s.cfg.Writer.Read(func(ix *registry.Index) {
		for svc := range ix.Services() {
			if ns := req.GetNamespace(); ns == "" || ns == svc.Name.Namespace {
				rows = append(rows, paging.Keyed[*registry.Service]{Key: keyOf(svc.Name), Row: svc})
			}
		}
	})
	rows = visible(rows, func(svc *registry.Service) bool { return s.maySee(who, svc.Name) })
	out, next, err := paging.Cut(rows, "services/"+req.GetNamespace(), req.GetPageToken(), s.sizes.Of(req.GetPageSize()))
	if err != nil {
		return nil, err
	}
	resp := &registryv1.ListServicesResponse{NextPageToken: next}
	for _, svc := range out {
		resp.Services = append(resp.Services, wire.ServiceToProto(svc))
	}
	return resp, nil
}

// DeleteService removes a service with all its instances: the one way to a
// deliberately empty set.
func (s *Server) DeleteService(ctx context.Context, req *registryv1.DeleteServiceRequest) (*registryv1.DeleteServiceResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetName()}
	a := attempt{who: who, method: "DeleteService", target: "service/" + n.String(), validateOnly: req.GetValidateOnly()}
	return once(ctx, s, a, req.GetRequestId(), func() (*registryv1.DeleteServiceResponse, error) {
		res, err := s.write(ctx, a, registry.DeleteService{Name: n, By: source, Expect: req.GetRevision()})
		if err != nil {
			return nil, err
		}
		return &registryv1.DeleteServiceResponse{Revision: res.Revision}, nil
	})
}

// keyOf orders names by namespace, then name: a label has no byte below '-'.
func keyOf(n registry.Name) string { return n.Namespace + "\x00" + n.Service }

// visible keeps the rows that the caller may see. It runs outside the index's
// lock: the policy is asked once per row.
func visible[T any](rows []paging.Keyed[T], may func(T) bool) []paging.Keyed[T] {
	kept := rows[:0]
	for _, r := range rows {
		if may(r.Row) {
			kept = append(kept, r)
		}
	}
	return kept
}
