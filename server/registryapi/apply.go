package registryapi

import (
	"context"
	"fmt"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/status"
)

// Apply makes a batch of changes, all or nothing.
func (s *Server) Apply(ctx context.Context, req *registryv1.ApplyRequest) (*registryv1.ApplyResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if reply, ok := remembered[*registryv1.ApplyResponse](s.replies, who.ID, "Apply", req.GetRequestId()); ok {
		return reply, nil
	}
	if n, most := len(req.GetChanges()), s.cfg.API.ApplyObjects; n > most {
		return nil, status.Limit("api.apply_objects", fmt.Sprintf("%d objects in one batch; this one has %d", most, n))
	}
	var ms []registry.Mutation
	var bad registry.Violations
	for i, c := range req.GetChanges() {
		m, err := mutationOf(c)
		if v, ok := err.(registry.Violations); ok { //nolint:errorlint // wire returns the list itself
			for _, x := range v {
				x.Field = itemPath(req, i) + x.Field
				bad = append(bad, x)
			}
		} else if err != nil {
			return nil, err
		}
		ms = append(ms, m)
	}
	if len(bad) > 0 {
		return nil, invalid(bad, "")
	}
	reply, err := s.applyAll(ctx, req, ms)
	if err != nil {
		return nil, err
	}
	if !req.GetValidateOnly() {
		s.replies.keep(who.ID, "Apply", req.GetRequestId(), reply)
	}
	return reply, nil
}

func (s *Server) applyAll(ctx context.Context, req *registryv1.ApplyRequest, ms []registry.Mutation) (*registryv1.ApplyResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	request := desired.Request{Mutations: ms, ValidateOnly: req.GetValidateOnly()}
	if privileged(who.Class()) && !req.GetValidateOnly() {
		request.Audit = s.record(who, "Apply", fmt.Sprintf("%d objects", len(ms)))
		request.Audit.Details = map[string]string{}
		for i, c := range req.GetChanges() {
			if i == auditedObjects {
				break
			}
			request.Audit.Details[fmt.Sprint(i)] = describe(c, itemPath(req, i))
		}
	}
	res, err := s.cfg.Writer.Write(ctx, request)
	if err != nil {
		return nil, statusOf(err, func(i int) string { return itemPath(req, i) })
	}
	reply := &registryv1.ApplyResponse{Revision: res.Revision}
	for i, o := range res.Outcomes {
		r := &registryv1.ChangeResult{Outcome: outcomeOf(ms[i], o)}
		if o.UID != 0 {
			r.Uid = o.UID.String()
			if p, ok := ms[i].(registry.PutInstance); ok && !req.GetValidateOnly() {
				s.cfg.Renew(p.Row.Service, o.UID)
			}
		}
		reply.Results = append(reply.Results, r)
	}
	return reply, nil
}

// auditedObjects is how many objects of a batch its audit record names.
const auditedObjects = 64

// mutationOf converts one change. What an operator applies is asserted by it.
func mutationOf(c *registryv1.Change) (registry.Mutation, error) {
	switch c := c.GetChange().(type) {
	case *registryv1.Change_PutService:
		row, err := wire.ServiceFromProto(c.PutService)
		if err != nil {
			return nil, err
		}
		row.Source = source
		return registry.PutService{Row: *row, Expect: row.Revision}, nil
	case *registryv1.Change_PutInstance:
		row, err := wire.InstanceFromProto(c.PutInstance)
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
	m := registry.RemoveInstance{By: source, Removal: registry.RemovedByOperator}
	if uid, err := registry.ParseUID(o.GetInstance()); err == nil {
		m.UID = uid
		return m
	}
	m.Service = registry.Name{Namespace: o.GetNamespace(), Service: o.GetService()}
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
