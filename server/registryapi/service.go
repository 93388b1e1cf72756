package registryapi

import (
	"context"

	"github.com/sightlinedev/sightline/identity"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
	"github.com/sightlinedev/sightline/server/status"
)

// CreateService stores a service that is not there yet.
func (s *Server) CreateService(ctx context.Context, req *registryv1.CreateServiceRequest) (*registryv1.CreateServiceResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if reply, ok := remembered[*registryv1.CreateServiceResponse](s.replies, who.ID, "CreateService", req.GetRequestId()); ok {
		return reply, nil
	}
	svc, err := s.putService(ctx, who, "CreateService", req.GetService(), registry.Create, req.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	reply := &registryv1.CreateServiceResponse{Service: svc}
	s.replies.keep(who.ID, "CreateService", req.GetRequestId(), reply)
	return reply, nil
}

// UpdateService replaces a service that is there.
func (s *Server) UpdateService(ctx context.Context, req *registryv1.UpdateServiceRequest) (*registryv1.UpdateServiceResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if reply, ok := remembered[*registryv1.UpdateServiceResponse](s.replies, who.ID, "UpdateService", req.GetRequestId()); ok {
		return reply, nil
	}
	svc, err := s.putService(ctx, who, "UpdateService", req.GetService(), registry.Update, req.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	reply := &registryv1.UpdateServiceResponse{Service: svc}
	s.replies.keep(who.ID, "UpdateService", req.GetRequestId(), reply)
	return reply, nil
}

func (s *Server) putService(ctx context.Context, who identity.Principal, method string, p *registryv1.Service, mode registry.Mode, validateOnly bool) (*registryv1.Service, error) {
	row, err := wire.ServiceFromProto(p)
	if err != nil {
		return nil, statusOf(err, func(int) string { return "service." })
	}
	row.Source = source
	m := registry.PutService{Row: *row, Mode: mode, Expect: row.Revision}
	if _, err := s.write(ctx, method, who, "service/"+row.Name.String(), validateOnly, m); err != nil {
		return nil, err
	}
	if validateOnly {
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
	if svc == nil || !s.maySee(who, n) {
		return nil, status.Hidden("service", n.String())
	}
	return &registryv1.GetServiceResponse{Service: wire.ServiceToProto(svc)}, nil
}

// ListServices returns a page of the services that the caller may see, by name.
func (s *Server) ListServices(ctx context.Context, req *registryv1.ListServicesRequest) (*registryv1.ListServicesResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	var rows []keyed[*registry.Service]
	s.cfg.Writer.Read(func(ix *registry.Index) {
		for svc := range ix.Services() {
			if ns := req.GetNamespace(); ns == "" || ns == svc.Name.Namespace {
				rows = append(rows, keyed[*registry.Service]{svc.Name.String(), svc})
			}
		}
	})
	rows = visible(rows, func(svc *registry.Service) bool { return s.maySee(who, svc.Name) })
	out, next, err := page(rows, "services/"+req.GetNamespace(), req.GetPageToken(), s.pageSize(req.GetPageSize()), s.cfg.API.PageSize)
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
	if reply, ok := remembered[*registryv1.DeleteServiceResponse](s.replies, who.ID, "DeleteService", req.GetRequestId()); ok {
		return reply, nil
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetName()}
	m := registry.DeleteService{Name: n, By: source, Expect: req.GetRevision()}
	res, err := s.write(ctx, "DeleteService", who, "service/"+n.String(), req.GetValidateOnly(), m)
	if err != nil {
		return nil, err
	}
	reply := &registryv1.DeleteServiceResponse{Revision: res.Revision}
	s.replies.keep(who.ID, "DeleteService", req.GetRequestId(), reply)
	return reply, nil
}

// visible keeps the rows that the caller may see. It runs outside the index's
// lock: the policy is asked once per row.
func visible[T any](rows []keyed[T], may func(T) bool) []keyed[T] {
	kept := rows[:0]
	for _, r := range rows {
		if may(r.row) {
			kept = append(kept, r)
		}
	}
	return kept
}
