package registryapi

import (
	"context"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
	"github.com/sightlinedev/sightline/server/paging"
	"github.com/sightlinedev/sightline/server/status"
)

// PutContract creates or replaces a contract.
func (s *Server) PutContract(ctx context.Context, req *registryv1.PutContractRequest) (*registryv1.PutContractResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	p := req.GetContract()
	a := attempt{
		who: who, method: "PutContract", target: "contract/" + p.GetNamespace() + "/" + p.GetName(),
		field: "contract.", validateOnly: req.GetValidateOnly(),
	}
	return once(ctx, s, a, req.GetRequestId(), func() (*registryv1.PutContractResponse, error) {
		row, err := wire.ContractFromProto(p)
		if err != nil {
			return nil, s.refuse(ctx, a, a.status(err))
		}
		row.Source = source
		if _, err := s.write(ctx, a, registry.PutContract{Row: *row, Expect: row.Revision}); err != nil {
			return nil, err
		}
		reply := &registryv1.PutContractResponse{Contract: p}
		s.cfg.Writer.Read(func(ix *registry.Index) {
			if held, ok := ix.Contract(row.Name); ok && !a.validateOnly {
				reply.Contract = wire.ContractToProto(held)
			}
		})
		return reply, nil
	})
}

// GetContract returns one contract, as given and with its defaults.
func (s *Server) GetContract(ctx context.Context, req *registryv1.GetContractRequest) (*registryv1.GetContractResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetName()}
	var row *registry.Contract
	s.cfg.Writer.Read(func(ix *registry.Index) { row, _ = ix.Contract(n) })
	if !s.maySeeOwn(who, n) || row == nil {
		return nil, status.Hidden("contract", n.String())
	}
	effective := row.WithDefaults()
	return &registryv1.GetContractResponse{Contract: wire.ContractToProto(row), Effective: wire.ContractToProto(&effective)}, nil
}

// ListContracts returns a page of the contracts that the caller may see, by
// namespace and name.
func (s *Server) ListContracts(ctx context.Context, req *registryv1.ListContractsRequest) (*registryv1.ListContractsResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	var rows []paging.Keyed[*registry.Contract]
	s.cfg.Writer.Read(func(ix *registry.Index) {
		for c := range ix.Contracts() {
			if ns := req.GetNamespace(); ns == "" || ns == c.Name.Namespace {
				rows = append(rows, paging.Keyed[*registry.Contract]{Key: keyOf(c.Name), Row: c})
			}
		}
	})
	rows = visible(rows, func(c *registry.Contract) bool { return s.maySeeOwn(who, c.Name) })
	out, next, err := paging.Cut(rows, "contracts/"+req.GetNamespace(), req.GetPageToken(), s.sizes.Of(req.GetPageSize()))
	if err != nil {
		return nil, err
	}
	resp := &registryv1.ListContractsResponse{NextPageToken: next}
	for _, c := range out {
		resp.Contracts = append(resp.Contracts, wire.ContractToProto(c))
	}
	return resp, nil
}

// DeleteContract removes a contract that no service names.
func (s *Server) DeleteContract(ctx context.Context, req *registryv1.DeleteContractRequest) (*registryv1.DeleteContractResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetName()}
	a := attempt{who: who, method: "DeleteContract", target: "contract/" + n.String(), validateOnly: req.GetValidateOnly()}
	return once(ctx, s, a, req.GetRequestId(), func() (*registryv1.DeleteContractResponse, error) {
		res, err := s.write(ctx, a, registry.DeleteContract{Name: n, By: source, Expect: req.GetRevision()})
		if err != nil {
			return nil, err
		}
		return &registryv1.DeleteContractResponse{Revision: res.Revision}, nil
	})
}
