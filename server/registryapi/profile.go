package registryapi

import (
	"context"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
	"github.com/sightlinedev/sightline/server/paging"
	"github.com/sightlinedev/sightline/server/status"
)

// PutProfile creates or replaces a capability profile.
func (s *Server) PutProfile(ctx context.Context, req *registryv1.PutProfileRequest) (*registryv1.PutProfileResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	p := req.GetProfile()
	a := attempt{
		who: who, method: "PutProfile", target: "profile/" + p.GetNamespace() + "/" + p.GetName(),
		field: "profile.", validateOnly: req.GetValidateOnly(),
	}
	return once(ctx, s, a, req.GetRequestId(), func() (*registryv1.PutProfileResponse, error) {
		row, err := wire.ProfileFromProto(p)
		if err != nil {
			return nil, s.refuse(ctx, a, a.status(err))
		}
		row.Source = source
		if _, err := s.write(ctx, a, registry.PutProfile{Row: *row, Expect: row.Revision}); err != nil {
			return nil, err
		}
		reply := &registryv1.PutProfileResponse{Profile: p}
		s.cfg.Writer.Read(func(ix *registry.Index) {
			if held, ok := ix.Profile(registry.Name{Namespace: row.Namespace, Service: row.Name}); ok && !a.validateOnly {
				reply.Profile = wire.ProfileToProto(held)
			}
		})
		return reply, nil
	})
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
	if !s.maySeeOwn(who, n) || row == nil {
		return nil, status.Hidden("profile", n.String())
	}
	return &registryv1.GetProfileResponse{Profile: wire.ProfileToProto(row)}, nil
}

// ListProfiles returns a page of the profiles of the namespaces that the
// caller may see, by namespace and name.
func (s *Server) ListProfiles(ctx context.Context, req *registryv1.ListProfilesRequest) (*registryv1.ListProfilesResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	var rows []paging.Keyed[*registry.Profile]
	s.cfg.Writer.Read(func(ix *registry.Index) {
		for p := range ix.Profiles() {
			if ns := req.GetNamespace(); ns == "" || ns == p.Namespace {
				rows = append(rows, paging.Keyed[*registry.Profile]{Key: keyOf(registry.Name{Namespace: p.Namespace, Service: p.Name}), Row: p})
			}
		}
	})
	rows = visible(rows, func(p *registry.Profile) bool {
		return s.maySeeOwn(who, registry.Name{Namespace: p.Namespace, Service: p.Name})
	})
	out, next, err := paging.Cut(rows, "profiles/"+req.GetNamespace(), req.GetPageToken(), s.sizes.Of(req.GetPageSize()))
	if err != nil {
		return nil, err
	}
	resp := &registryv1.ListProfilesResponse{NextPageToken: next}
	for _, p := range out {
		resp.Profiles = append(resp.Profiles, wire.ProfileToProto(p))
	}
	return resp, nil
}
