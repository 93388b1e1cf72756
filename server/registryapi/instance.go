package registryapi

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/identity"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
	"github.com/sightlinedev/sightline/server/paging"
	"github.com/sightlinedev/sightline/server/status"
)

// maxGrace bounds how long a deregistered instance may stay as draining; the
// longest lease is the longest that a row may outlive its process.
const maxGrace = 10 * time.Minute

// RegisterInstance registers an instance once; its lease is renewed by calls
// of RenewLease.
func (s *Server) RegisterInstance(ctx context.Context, req *registryv1.RegisterInstanceRequest) (*registryv1.RegisterInstanceResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	a := attemptInstance(who, "RegisterInstance", "instance.", req.GetInstance(), req.GetValidateOnly())
	return once(ctx, s, a, req.GetRequestId(), func() (*registryv1.RegisterInstanceResponse, error) {
		i, err := s.register(ctx, a, req.GetInstance())
		if err != nil {
			return nil, err
		}
		return &registryv1.RegisterInstanceResponse{Instance: wire.InstanceToProto(i), Lease: durationpb.New(i.Lease)}, nil
	})
}

func attemptInstance(who identity.Principal, method, field string, p *registryv1.Instance, validateOnly bool) attempt {
	name := p.GetLabel()
	if name == "" {
		name = p.GetUid()
	}
	return attempt{
		who: who, method: method, field: field, validateOnly: validateOnly,
		target: "instance/" + p.GetNamespace() + "/" + p.GetService() + "/" + name,
	}
}

// register checks, writes and renews. An instance that gives the uid it was
// given before goes on as the same one, if its address and identity are the
// same; without a uid it is a new one.
func (s *Server) register(ctx context.Context, a attempt, p *registryv1.Instance) (*registry.Instance, error) {
	row, err := s.registration(a, p)
	if err != nil {
		return nil, s.refuse(ctx, a, err)
	}
	m := registry.PutInstance{Row: *row, Register: row.UID == 0}
	if row.UID != 0 {
		m.Mode = registry.Update // it comes back; what it was registered with stays
	}
	res, err := s.write(ctx, a, m)
	if err != nil || a.validateOnly {
		return row, err
	}
	uid := res.Outcomes[0].UID
	held, ok := s.cfg.Writer.Lookup(uid)
	if !ok {
		return nil, status.Errorf(status.LeaseGone, "instance %s was removed while it registered", uid)
	}
	s.stay(uid)
	s.cfg.Renew(held.Service, uid)
	return held, nil
}

// registration is the row that a caller asks to register, as far as it may.
func (s *Server) registration(a attempt, p *registryv1.Instance) (*registry.Instance, error) {
	row, err := s.instanceOf(p)
	if err != nil {
		return nil, a.status(err)
	}
	asserts := privileged(a.who.Class())
	if row.Identity.IsZero() && !asserts {
		row.Identity = a.who.ID
	}
	row.Source, row.Proof = source, s.cfg.SelfProof
	if asserts {
		row.Proof = registry.ByOperator
	}
	// What is malformed is nobody's: it says nothing of what exists.
	checked := *row
	if checked.Weight == 0 {
		checked.Weight = registry.DefaultWeight
	}
	if err := registry.CheckInstance(&checked).Err(); err != nil {
		return nil, a.status(err)
	}
	if err := s.mayRegister(a.who, row.Service, row.Identity); err != nil {
		return nil, err
	}
	if row.UID != 0 {
		held, ok := s.cfg.Writer.Lookup(row.UID)
		if err := s.own(a.who, held, ok && held.Service == row.Service, row.UID.String()); err != nil {
			return nil, err
		}
	}
	if row.Lease == 0 && (!asserts || a.method == methodHold) {
		row.Lease = s.contractLease(row.Service) // nothing else would ever say that it is gone
	}
	if asserts {
		return row, nil
	}
	return row, checkExternal(row)
}

// instanceOf reads an instance; one that names no region is in the server's own.
func (s *Server) instanceOf(p *registryv1.Instance) (*registry.Instance, error) {
	row, err := wire.InstanceFromProto(p)
	if err == nil {
		row.Region = cmp.Or(row.Region, s.cfg.Region)
	}
	return row, err
}

// checkExternal keeps addresses that only an operator may assert out of
// self-registration.
func checkExternal(row *registry.Instance) error {
	if row.Endpoint.Host != "" || row.Endpoint.URL != "" {
		return status.Errorf(status.AddressUnproved, "a host name or a URL cannot be proved by the instance itself")
	}
	return nil
}

// contractLease is the lease that the service's contract grants.
func (s *Server) contractLease(n registry.Name) (term time.Duration) {
	s.cfg.Writer.Read(func(ix *registry.Index) {
		if svc, ok := ix.Service(n); ok {
			c := ix.EffectiveContract(svc)
			term = c.Lease
		}
	})
	return term
}

// RenewLease renews one lease. It reads no disk.
func (s *Server) RenewLease(ctx context.Context, req *registryv1.RenewLeaseRequest) (*registryv1.RenewLeaseResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	uid, err := registry.ParseUID(req.GetUid())
	if err != nil {
		return nil, status.Field(status.InvalidField, "uid", wire.RuleUID, err.Error())
	}
	i, ok := s.cfg.Writer.Lookup(uid)
	if err := s.own(who, i, ok, req.GetUid()); err != nil {
		return nil, status.Errorf(status.LeaseGone, "instance %s is not registered by this identity: register again", req.GetUid())
	}
	s.cfg.Renew(i.Service, uid)
	return &registryv1.RenewLeaseResponse{Lease: durationpb.New(i.Lease)}, nil
}

// UpdateInstance changes an instance that is there, by its uid or its label.
func (s *Server) UpdateInstance(ctx context.Context, req *registryv1.UpdateInstanceRequest) (*registryv1.UpdateInstanceResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	a := attemptInstance(who, "UpdateInstance", "instance.", req.GetInstance(), req.GetValidateOnly())
	return once(ctx, s, a, req.GetRequestId(), func() (*registryv1.UpdateInstanceResponse, error) {
		row, err := s.update(a, req.GetInstance())
		if err != nil {
			return nil, s.refuse(ctx, a, err)
		}
		if _, err := s.write(ctx, a, registry.PutInstance{Row: *row, Mode: registry.Update, Expect: row.Revision}); err != nil {
			return nil, err
		}
		if now, ok := s.cfg.Writer.Lookup(row.UID); ok && !a.validateOnly {
			row = now
		}
		return &registryv1.UpdateInstanceResponse{Instance: wire.InstanceToProto(row)}, nil
	})
}

// update is the row that a caller asks an instance to have, as far as it may.
func (s *Server) update(a attempt, p *registryv1.Instance) (*registry.Instance, error) {
	row, err := s.instanceOf(p)
	if err != nil {
		return nil, a.status(err)
	}
	ref := row.Label
	if row.UID != 0 {
		ref = row.UID.String()
	}
	held, ok := s.find(row.Service, ref)
	if err := s.own(a.who, held, ok, ref); err != nil {
		return nil, err
	}
	if row.Identity.IsZero() {
		row.Identity = held.Identity
	}
	if row.Lease == 0 && !privileged(a.who.Class()) {
		row.Lease = held.Lease // nobody but an authority ends a lease
	}
	row.UID, row.Source, row.Proof = held.UID, source, held.Proof
	return row, s.mayRegister(a.who, row.Service, row.Identity)
}

// DeregisterInstance removes an instance at once, or, with a grace, marks it
// draining now and removes it when the grace has passed.
func (s *Server) DeregisterInstance(ctx context.Context, req *registryv1.DeregisterInstanceRequest) (*registryv1.DeregisterInstanceResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetService()}
	name := n.String() + "/" + req.GetInstance()
	a := attempt{who: who, method: "DeregisterInstance", target: "instance/" + name, validateOnly: req.GetValidateOnly()}
	return once(ctx, s, a, req.GetRequestId(), func() (*registryv1.DeregisterInstanceResponse, error) {
		i, ok := s.find(n, req.GetInstance())
		if !ok {
			i, ok = s.leaving(n, req.GetInstance())
		}
		if err := s.own(who, i, ok, name); err != nil {
			return nil, s.refuse(ctx, a, err)
		}
		revision, err := s.remove(ctx, a, i, req.GetGrace(), "grace")
		if err != nil {
			return nil, err
		}
		return &registryv1.DeregisterInstanceResponse{Revision: revision}, nil
	})
}

// leaving is find for an instance whose removal is not durable yet: a retry of
// it is judged by what it was, and waits for the same.
func (s *Server) leaving(n registry.Name, ref string) (*registry.Instance, bool) {
	uid, err := registry.ParseUID(ref)
	if err != nil {
		return s.cfg.Writer.LeavingLabel(n, ref)
	}
	i, ok := s.cfg.Writer.Leaving(uid)
	return i, ok && (n.IsZero() || i.Service == n)
}

// remove takes an instance out: by its own word, or an operator's.
func (s *Server) remove(ctx context.Context, a attempt, i *registry.Instance, wait *durationpb.Duration, field string) (uint64, error) {
	grace := wait.AsDuration()
	if wait != nil && wait.CheckValid() != nil || grace < 0 || grace > maxGrace {
		return 0, s.refuse(ctx, a, status.Field(status.InvalidField, field, wire.RuleRange, "0s to "+maxGrace.String()))
	}
	a.target = "instance/" + i.Service.String() + "/" + i.DisplayName()
	removal := registry.RemoveInstance{UID: i.UID, By: source, Removal: registry.Deregistered}
	if privileged(a.who.Class()) {
		removal.Removal = registry.RemovedByOperator
	}
	if grace == 0 || a.validateOnly {
		res, err := s.write(ctx, a, removal)
		return res.Revision, err
	}
	row := *i
	row.Draining, row.Source = true, source
	if row.Lease == 0 {
		// Should this process not live to remove it, the lapse will.
		row.Lease = min(max(grace, registry.MinLease), registry.MaxLease)
	}
	res, err := s.write(ctx, a, registry.PutInstance{Row: row, Mode: registry.Update})
	if err != nil {
		return 0, err
	}
	s.leaveLater(removal, grace)
	return res.Revision, nil
}

// GetInstance returns one instance, by uid or label.
func (s *Server) GetInstance(ctx context.Context, req *registryv1.GetInstanceRequest) (*registryv1.GetInstanceResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetService()}
	i, ok := s.find(n, req.GetInstance())
	if !ok || !s.maySee(who, i.Service) {
		return nil, status.Hidden("instance", n.String()+"/"+req.GetInstance())
	}
	return &registryv1.GetInstanceResponse{Instance: wire.InstanceToProto(i)}, nil
}

// ListInstances returns a page of the instances that the caller may see, by
// service and uid.
func (s *Server) ListInstances(ctx context.Context, req *registryv1.ListInstancesRequest) (*registryv1.ListInstancesResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	var names []paging.Keyed[registry.Name]
	s.cfg.Writer.Read(func(ix *registry.Index) {
		for svc := range ix.Services() {
			n := svc.Name
			if (req.GetNamespace() == "" || req.GetNamespace() == n.Namespace) && (req.GetService() == "" || req.GetService() == n.Service) {
				names = append(names, paging.Keyed[registry.Name]{Key: keyOf(n), Row: n})
			}
		}
	})
	names = visible(names, func(n registry.Name) bool { return s.maySee(who, n) })
	var rows []paging.Keyed[*registry.Instance]
	s.cfg.Writer.Read(func(ix *registry.Index) {
		for _, n := range names {
			for _, i := range ix.Instances(n.Row) {
				rows = append(rows, paging.Keyed[*registry.Instance]{Key: n.Key + "\x00" + sortable(i.UID), Row: i})
			}
		}
	})
	filter := "instances/" + req.GetNamespace() + "/" + req.GetService()
	out, next, err := paging.Cut(rows, filter, req.GetPageToken(), s.sizes.Of(req.GetPageSize()))
	if err != nil {
		return nil, err
	}
	resp := &registryv1.ListInstancesResponse{NextPageToken: next}
	for _, i := range out {
		resp.Instances = append(resp.Instances, wire.InstanceToProto(i))
	}
	return resp, nil
}
