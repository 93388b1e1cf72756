package registryapi

import (
	"context"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
	"github.com/sightlinedev/sightline/server/status"
)

// PutProfile creates or replaces a capability profile.
func (s *Server) PutProfile(ctx context.Context, req *registryv1.PutProfileRequest) (*registryv1.PutProfileResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if reply, ok := remembered[*registryv1.PutProfileResponse](s.replies, who.ID, "PutProfile", req.GetRequestId()); ok {
		return reply, nil
	}
	row, err := wire.ProfileFromProto(req.GetProfile())
	if err != nil {
		return nil, statusOf(err, func(int) string { return "profile." })
	}
	row.Source = source
	n := registry.Name{Namespace: row.Namespace, Service: row.Name}
	m := registry.PutProfile{Row: *row, Expect: row.Revision}
	if _, err := s.write(ctx, "PutProfile", who, "profile/"+n.String(), req.GetValidateOnly(), m); err != nil {
		return nil, err
	}
	reply := &registryv1.PutProfileResponse{Profile: req.GetProfile()}
	if !req.GetValidateOnly() {
		s.cfg.Writer.Read(func(ix *registry.Index) {
			if held, ok := ix.Profile(n); ok {
				reply.Profile = wire.ProfileToProto(held)
			}
		})
		s.replies.keep(who.ID, "PutProfile", req.GetRequestId(), reply)
	}
	return reply, nil
}

// GetProfile returns one capability profile.
func (s *Server) GetProfile(ctx context.Context, req *registryv1.GetProfileRequest) (*registryv1.GetProfileResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetName()}
	var row *registry.Profile
	s.cfg.Writer.Read(func(ix *registry.Index) { row, _ = ix.Profile(n) })
	if row == nil || !s.maySeeNamespace(who, n.Namespace) {
		return nil, status.Hidden("profile", n.String())
	}
	return &registryv1.GetProfileResponse{Profile: wire.ProfileToProto(row)}, nil
}

// ListProfiles returns a page of the profiles of the namespaces that the
// caller may see, by name.
func (s *Server) ListProfiles(ctx context.Context, req *registryv1.ListProfilesRequest) (*registryv1.ListProfilesResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	var rows []keyed[*registry.Profile]
	s.cfg.Writer.Read(func(ix *registry.Index) {
		for p := range ix.Profiles() {
			if ns := req.GetNamespace(); ns == "" || ns == p.Namespace {
				rows = append(rows, keyed[*registry.Profile]{p.Namespace + "/" + p.Name, p})
			}
		}
	})
	rows = visible(rows, func(p *registry.Profile) bool { return s.maySeeNamespace(who, p.Namespace) })
	out, next, err := page(rows, "profiles/"+req.GetNamespace(), req.GetPageToken(), s.pageSize(req.GetPageSize()), s.cfg.API.PageSize)
	if err != nil {
		return nil, err
	}
	resp := &registryv1.ListProfilesResponse{NextPageToken: next}
	for _, p := range out {
		resp.Profiles = append(resp.Profiles, wire.ProfileToProto(p))
	}
	return resp, nil
}
