package registryapi

import (
	"context"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
	"github.com/sightlinedev/sightline/server/status"
)

// PutContract creates or replaces a contract.
func (s *Server) PutContract(ctx context.Context, req *registryv1.PutContractRequest) (*registryv1.PutContractResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if reply, ok := remembered[*registryv1.PutContractResponse](s.replies, who.ID, "PutContract", req.GetRequestId()); ok {
		return reply, nil
	}
	row, err := wire.ContractFromProto(req.GetContract())
	if err != nil {
		return nil, statusOf(err, func(int) string { return "contract." })
	}
	row.Source = source
	m := registry.PutContract{Row: *row, Expect: row.Revision}
	if _, err := s.write(ctx, "PutContract", who, "contract/"+row.Name.String(), req.GetValidateOnly(), m); err != nil {
		return nil, err
	}
	reply := &registryv1.PutContractResponse{Contract: req.GetContract()}
	if !req.GetValidateOnly() {
		s.cfg.Writer.Read(func(ix *registry.Index) {
			if held, ok := ix.Contract(row.Name); ok {
				reply.Contract = wire.ContractToProto(held)
			}
		})
		s.replies.keep(who.ID, "PutContract", req.GetRequestId(), reply)
	}
	return reply, nil
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
	if row == nil || !s.maySee(who, n) {
		return nil, status.Hidden("contract", n.String())
	}
	effective := row.WithDefaults()
	return &registryv1.GetContractResponse{Contract: wire.ContractToProto(row), Effective: wire.ContractToProto(&effective)}, nil
}

// ListContracts returns a page of the contracts that the caller may see, by name.
func (s *Server) ListContracts(ctx context.Context, req *registryv1.ListContractsRequest) (*registryv1.ListContractsResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	var rows []keyed[*registry.Contract]
	s.cfg.Writer.Read(func(ix *registry.Index) {
		for c := range ix.Contracts() {
			if ns := req.GetNamespace(); ns == "" || ns == c.Name.Namespace {
				rows = append(rows, keyed[*registry.Contract]{c.Name.String(), c})
			}
		}
	})
	rows = visible(rows, func(c *registry.Contract) bool { return s.maySee(who, c.Name) })
	out, next, err := page(rows, "contracts/"+req.GetNamespace(), req.GetPageToken(), s.pageSize(req.GetPageSize()), s.cfg.API.PageSize)
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
	if reply, ok := remembered[*registryv1.DeleteContractResponse](s.replies, who.ID, "DeleteContract", req.GetRequestId()); ok {
		return reply, nil
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetName()}
	m := registry.DeleteContract{Name: n, By: source, Expect: req.GetRevision()}
	res, err := s.write(ctx, "DeleteContract", who, "contract/"+n.String(), req.GetValidateOnly(), m)
	if err != nil {
		return nil, err
	}
	reply := &registryv1.DeleteContractResponse{Revision: res.Revision}
	s.replies.keep(who.ID, "DeleteContract", req.GetRequestId(), reply)
	return reply, nil
}
