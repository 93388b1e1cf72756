package registryapi

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/identity"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
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
	if reply, ok := remembered[*registryv1.RegisterInstanceResponse](s.replies, who.ID, "RegisterInstance", req.GetRequestId()); ok {
		return reply, nil
	}
	i, term, err := s.register(ctx, who, "RegisterInstance", req.GetInstance(), req.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	reply := &registryv1.RegisterInstanceResponse{Instance: wire.InstanceToProto(i), Lease: durationpb.New(term)}
	if !req.GetValidateOnly() {
		s.replies.keep(who.ID, "RegisterInstance", req.GetRequestId(), reply)
	}
	return reply, nil
}

// register checks, writes and renews. An instance that gives the uid it was
// given before goes on as the same one, if its address and identity are the
// same; without a uid it is a new one.
func (s *Server) register(ctx context.Context, who identity.Principal, method string, p *registryv1.Instance, validateOnly bool) (*registry.Instance, time.Duration, error) {
	row, err := wire.InstanceFromProto(p)
	if err != nil {
		return nil, 0, statusOf(err, func(int) string { return "instance." })
	}
	if row.Identity.IsZero() && !privileged(who.Class()) {
		row.Identity = who.ID
	}
	if err := s.mayRegister(who, row.Service, row.Identity); err != nil {
		return nil, 0, err
	}
	if row.UID != 0 {
		held, ok := s.cfg.Writer.Lookup(row.UID)
		if err := s.own(who, held, ok && held.Service == row.Service, row.UID.String()); err != nil {
			return nil, 0, err
		}
	}
	row.Source = source
	row.Proof = s.cfg.SelfProof
	if privileged(who.Class()) {
		row.Proof = registry.ByOperator
	} else if err := s.checkExternal(row); err != nil {
		return nil, 0, err
	}
	if row.Lease == 0 && !privileged(who.Class()) {
		row.Lease = s.contractLease(row.Service) // nothing else would ever say that it is gone
	}
	m := registry.PutInstance{Row: *row, Register: row.UID == 0 && !privileged(who.Class())}
	if row.UID != 0 {
		m.Mode = registry.Update // it comes back; what it was registered with stays
	}
	res, err := s.write(ctx, method, who, "instance/"+row.Service.String()+"/"+row.DisplayName(), validateOnly, m)
	if err != nil || validateOnly {
		return row, row.Lease, err
	}
	uid := res.Outcomes[0].UID
	if uid == 0 {
		uid = row.UID
	}
	held, ok := s.cfg.Writer.Lookup(uid)
	if !ok && row.Label != "" {
		held, ok = s.find(row.Service, row.Label)
	}
	if !ok {
		return nil, 0, status.Errorf(status.LeaseGone, "instance %s was removed while it registered", uid)
	}
	s.stay(held.UID)
	s.cfg.Renew(held.Service, held.UID)
	return held, held.Lease, nil
}

// checkExternal keeps addresses that only an operator may assert out of
// self-registration.
func (s *Server) checkExternal(row *registry.Instance) error {
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
	if reply, ok := remembered[*registryv1.UpdateInstanceResponse](s.replies, who.ID, "UpdateInstance", req.GetRequestId()); ok {
		return reply, nil
	}
	row, err := wire.InstanceFromProto(req.GetInstance())
	if err != nil {
		return nil, statusOf(err, func(int) string { return "instance." })
	}
	ref := row.Label
	if row.UID != 0 {
		ref = row.UID.String()
	}
	held, ok := s.find(row.Service, ref)
	if err := s.own(who, held, ok, ref); err != nil {
		return nil, err
	}
	if row.Identity.IsZero() {
		row.Identity = held.Identity
	}
	if err := s.mayRegister(who, row.Service, row.Identity); err != nil {
		return nil, err
	}
	row.UID, row.Source, row.Proof = held.UID, source, held.Proof
	if row.Endpoint != held.Endpoint || row.Identity != held.Identity {
		row.Proof = s.cfg.SelfProof // what was proved was another address
		if privileged(who.Class()) {
			row.Proof = registry.ByOperator
		}
	}
	m := registry.PutInstance{Row: *row, Mode: registry.Update, Expect: row.Revision}
	res, err := s.write(ctx, "UpdateInstance", who, "instance/"+held.Service.String()+"/"+held.DisplayName(), req.GetValidateOnly(), m)
	if err != nil {
		return nil, err
	}
	if now, ok := s.cfg.Writer.Lookup(res.Outcomes[0].UID); ok && !req.GetValidateOnly() {
		row = now
	}
	reply := &registryv1.UpdateInstanceResponse{Instance: wire.InstanceToProto(row)}
	if !req.GetValidateOnly() {
		s.replies.keep(who.ID, "UpdateInstance", req.GetRequestId(), reply)
	}
	return reply, nil
}

// DeregisterInstance removes an instance at once, or, with a grace, marks it
// draining now and removes it when the grace has passed.
func (s *Server) DeregisterInstance(ctx context.Context, req *registryv1.DeregisterInstanceRequest) (*registryv1.DeregisterInstanceResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if reply, ok := remembered[*registryv1.DeregisterInstanceResponse](s.replies, who.ID, "DeregisterInstance", req.GetRequestId()); ok {
		return reply, nil
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetService()}
	i, ok := s.find(n, req.GetInstance())
	if uid, err := registry.ParseUID(req.GetInstance()); !ok && err == nil {
		i, ok = s.cfg.Writer.Leaving(uid) // a retry of a removal that is not durable yet
	}
	if err := s.own(who, i, ok, n.String()+"/"+req.GetInstance()); err != nil {
		return nil, err
	}
	grace := req.GetGrace().AsDuration()
	if grace < 0 || grace > maxGrace {
		return nil, status.Field(status.InvalidField, "grace", wire.RuleRange, "0 to "+maxGrace.String())
	}
	revision, err := s.remove(ctx, who, "DeregisterInstance", i, grace, req.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	reply := &registryv1.DeregisterInstanceResponse{Revision: revision}
	if !req.GetValidateOnly() {
		s.replies.keep(who.ID, "DeregisterInstance", req.GetRequestId(), reply)
	}
	return reply, nil
}

// remove takes an instance out: by its own word, or an operator's.
func (s *Server) remove(ctx context.Context, who identity.Principal, method string, i *registry.Instance, grace time.Duration, validateOnly bool) (uint64, error) {
	target := "instance/" + i.Service.String() + "/" + i.DisplayName()
	removal := registry.RemoveInstance{UID: i.UID, By: i.Source, Removal: registry.Deregistered}
	if privileged(who.Class()) {
		removal.By, removal.Removal = source, registry.RemovedByOperator
	}
	if grace == 0 || validateOnly {
		res, err := s.write(ctx, method, who, target, validateOnly, removal)
		return res.Revision, err
	}
	row := *i
	row.Draining = true
	res, err := s.write(ctx, method, who, target, false, registry.PutInstance{Row: row, Mode: registry.Update})
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
	var names []keyed[registry.Name]
	s.cfg.Writer.Read(func(ix *registry.Index) {
		for svc := range ix.Services() {
			n := svc.Name
			if (req.GetNamespace() == "" || req.GetNamespace() == n.Namespace) && (req.GetService() == "" || req.GetService() == n.Service) {
				names = append(names, keyed[registry.Name]{n.String(), n})
			}
		}
	})
	names = visible(names, func(n registry.Name) bool { return s.maySee(who, n) })
	var rows []keyed[*registry.Instance]
	s.cfg.Writer.Read(func(ix *registry.Index) {
		for _, n := range names {
			for _, i := range ix.Instances(n.row) {
				rows = append(rows, keyed[*registry.Instance]{n.key + "/" + sortable(i.UID), i})
			}
		}
	})
	filter := "instances/" + req.GetNamespace() + "/" + req.GetService()
	out, next, err := page(rows, filter, req.GetPageToken(), s.pageSize(req.GetPageSize()), s.cfg.API.PageSize)
	if err != nil {
		return nil, err
	}
	resp := &registryv1.ListInstancesResponse{NextPageToken: next}
	for _, i := range out {
		resp.Instances = append(resp.Instances, wire.InstanceToProto(i))
	}
	return resp, nil
}
