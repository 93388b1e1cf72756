package registryapi

import (
	"context"
	"errors"
	"fmt"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/status"
)

// Apply makes a batch of changes, all or nothing. What it should delete and is
// not there is no refusal.
func (s *Server) Apply(ctx context.Context, req *registryv1.ApplyRequest) (*registryv1.ApplyResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	a := attempt{who: who, method: "Apply", target: fmt.Sprintf("%d objects", len(req.GetChanges())), validateOnly: req.GetValidateOnly()}
	return once(ctx, s, a, req.GetRequestId(), func() (*registryv1.ApplyResponse, error) {
		ms, err := s.mutations(req)
		if err != nil {
			return nil, s.refuse(ctx, a, err)
		}
		return s.applyAll(ctx, a, req, ms)
	})
}

func (s *Server) mutations(req *registryv1.ApplyRequest) ([]registry.Mutation, error) {
	if n, most := len(req.GetChanges()), s.cfg.API.ApplyObjects; n > most {
		return nil, status.Limit("API.ApplyObjects", fmt.Sprintf("%d objects in one batch; this one has %d", most, n))
	}
	var ms []registry.Mutation
	var all registry.Violations
	for i, c := range req.GetChanges() {
		m, err := s.mutationOf(c)
		var bad registry.Violations
		if err != nil && !errors.As(err, &bad) {
			return nil, err
		}
		all = placed(all, bad, itemPath(req, i))
		ms = append(ms, m)
	}
	if len(all) > 0 {
		return nil, violated(all)
	}
	return ms, nil
}

func (s *Server) applyAll(ctx context.Context, a attempt, req *registryv1.ApplyRequest, ms []registry.Mutation) (*registryv1.ApplyResponse, error) {
	request := desired.Request{ValidateOnly: a.validateOnly}
	var at []int // where in the request each mutation is
	for i, m := range ms {
		if !s.absent(m) {
			request.Mutations, at = append(request.Mutations, m), append(at, i)
		}
	}
	if a.audited() {
		request.Audit = s.record(a)
		request.Audit.Details = map[string]string{}
		for i, c := range req.GetChanges()[:min(len(ms), auditedObjects)] {
			request.Audit.Details[fmt.Sprint(i)] = describe(c, itemPath(req, i))
		}
	}
	res, err := s.cfg.Writer.Write(ctx, request)
	if err != nil {
		return nil, statusOf(err, func(i int) string { return itemPath(req, at[i]) })
	}
	reply := &registryv1.ApplyResponse{Revision: res.Revision, Results: make([]*registryv1.ChangeResult, len(ms))}
	for i := range reply.Results {
		reply.Results[i] = &registryv1.ChangeResult{Outcome: registryv1.Outcome_OUTCOME_ABSENT}
	}
	for k, o := range res.Outcomes {
		r := reply.Results[at[k]]
		r.Outcome = outcomeOf(request.Mutations[k], o)
		if o.UID == 0 {
			continue
		}
		r.Uid = o.UID.String()
		if p, ok := request.Mutations[k].(registry.PutInstance); ok && !a.validateOnly {
			s.cfg.Renew(p.Row.Service, o.UID)
		}
	}
	return reply, nil
}

// absent says that a mutation deletes what is not there: neither live, nor
// damaged, nor on its way out.
func (s *Server) absent(m registry.Mutation) (absent bool) {
	switch m := m.(type) {
	case registry.DeleteService:
		return !s.cfg.Writer.LeavingService(m.Name) && s.noRow(registry.RowKey{Kind: registry.ServiceRow, Name: m.Name})
	case registry.DeleteContract:
		return s.noRow(registry.RowKey{Kind: registry.ContractRow, Name: m.Name})
	case registry.DeleteProfile:
		return s.noRow(registry.RowKey{Kind: registry.ProfileRow, Name: m.Name})
	case registry.RemoveInstance:
		if m.UID != 0 {
			_, leaving := s.cfg.Writer.Leaving(m.UID)
			i, live := s.cfg.Writer.Lookup(m.UID)
			if live && !m.Service.IsZero() && i.Service != m.Service {
				return true // the name says another service's
			}
			return !live && !leaving && s.noRow(registry.RowKey{Kind: registry.InstanceRow, Name: m.Service, UID: m.UID})
		}
		_, live := s.find(m.Service, m.Label)
		_, leaving := s.cfg.Writer.LeavingLabel(m.Service, m.Label)
		return !live && !leaving
	}
	return false
}

// noRow says that there is no such row, readable or not.
func (s *Server) noRow(k registry.RowKey) bool {
	found := false
	s.cfg.Writer.Read(func(ix *registry.Index) {
		switch k.Kind {
		case registry.ServiceRow:
			_, found = ix.Service(k.Name)
		case registry.ContractRow:
			_, found = ix.Contract(k.Name)
		case registry.ProfileRow:
			_, found = ix.Profile(k.Name)
		}
		if _, damaged := ix.Damaged(k); damaged {
			found = true
		}
	})
	return !found
}

// auditedObjects is how many objects of a batch its audit record names.
const auditedObjects = 64

// mutationOf converts one change. What an operator applies is asserted by it.
func (s *Server) mutationOf(c *registryv1.Change) (registry.Mutation, error) {
	switch c := c.GetChange().(type) {
	case *registryv1.Change_PutService:
		row, err := wire.ServiceFromProto(c.PutService)
		if err != nil {
			return nil, err
		}
		row.Source = source
		return registry.PutService{Row: *row, Expect: row.Revision}, nil
	case *registryv1.Change_PutInstance:
		row, err := s.instanceOf(c.PutInstance)
		if err != nil {
			return nil, err
		}
		row.Source, row.Proof = source, registry.ByOperator
		return registry.PutInstance{Row: *row, Expect: row.Revision}, nil
	case *registryv1.Change_PutContract:
		row, err := wire.ContractFromProto(c.PutContract)
		if err != nil {
			return nil, err
		}
		row.Source = source
		return registry.PutContract{Row: *row, Expect: row.Revision}, nil
	case *registryv1.Change_PutProfile:
		row, err := wire.ProfileFromProto(c.PutProfile)
		if err != nil {
			return nil, err
		}
		row.Source = source
		return registry.PutProfile{Row: *row, Expect: row.Revision}, nil
	case *registryv1.Change_DeleteService:
		return registry.DeleteService{Name: nameOf(c.DeleteService), By: source}, nil
	case *registryv1.Change_DeleteContract:
		return registry.DeleteContract{Name: nameOf(c.DeleteContract), By: source}, nil
	case *registryv1.Change_DeleteProfile:
		return registry.DeleteProfile{Name: nameOf(c.DeleteProfile), By: source}, nil
	case *registryv1.Change_DeleteInstance:
		return removalOf(c.DeleteInstance), nil
	}
	return nil, registry.Violations{{Field: "change", Rule: wire.RuleRequired, Detail: "say what to put or delete"}}
}

func nameOf(o *registryv1.ObjectName) registry.Name {
	return registry.Name{Namespace: o.GetNamespace(), Service: o.GetName()}
}

func removalOf(o *registryv1.InstanceName) registry.RemoveInstance {
	m := registry.RemoveInstance{
		By: source, Removal: registry.RemovedByOperator,
		Service: registry.Name{Namespace: o.GetNamespace(), Service: o.GetService()},
	}
	if uid, err := registry.ParseUID(o.GetInstance()); err == nil {
		m.UID = uid
		return m
	}
	m.Label = o.GetInstance()
	return m
}

// describe names one change for the audit log.
func describe(c *registryv1.Change, path string) string {
	var what interface{ GetNamespace() string }
	name := ""
	switch c := c.GetChange().(type) {
	case *registryv1.Change_PutService:
		what, name = c.PutService, c.PutService.GetName()
	case *registryv1.Change_PutInstance:
		what, name = c.PutInstance, c.PutInstance.GetService()+"/"+c.PutInstance.GetLabel()
	case *registryv1.Change_PutContract:
		what, name = c.PutContract, c.PutContract.GetName()
	case *registryv1.Change_PutProfile:
		what, name = c.PutProfile, c.PutProfile.GetName()
	case *registryv1.Change_DeleteService:
		what, name = c.DeleteService, c.DeleteService.GetName()
	case *registryv1.Change_DeleteContract:
		what, name = c.DeleteContract, c.DeleteContract.GetName()
	case *registryv1.Change_DeleteProfile:
		what, name = c.DeleteProfile, c.DeleteProfile.GetName()
	case *registryv1.Change_DeleteInstance:
		what, name = c.DeleteInstance, c.DeleteInstance.GetService()+"/"+c.DeleteInstance.GetInstance()
	default:
		return path
	}
	return path + what.GetNamespace() + "/" + name
}

// itemPath is the path of one change of the batch, down to its object.
func itemPath(req *registryv1.ApplyRequest, i int) string {
	if i < 0 || i >= len(req.GetChanges()) {
		return ""
	}
	m := req.GetChanges()[i].ProtoReflect()
	field := m.WhichOneof(m.Descriptor().Oneofs().ByName("change"))
	if field == nil {
		return fmt.Sprintf("changes[%d].", i)
	}
	return fmt.Sprintf("changes[%d].%s.", i, field.Name())
}

func outcomeOf(m registry.Mutation, o registry.Outcome) registryv1.Outcome {
	switch m.(type) {
	case registry.RemoveInstance, registry.DeleteService, registry.DeleteContract, registry.DeleteProfile:
		if o.Changed {
			return registryv1.Outcome_OUTCOME_DELETED
		}
		return registryv1.Outcome_OUTCOME_ABSENT
	}
	switch {
	case o.Created:
		return registryv1.Outcome_OUTCOME_CREATED
	case o.Changed:
		return registryv1.Outcome_OUTCOME_CONFIGURED
	}
	return registryv1.Outcome_OUTCOME_UNCHANGED
}
