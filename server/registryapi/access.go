package registryapi

import (
	"context"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
)

// caller is the verified principal of a request.
func (s *Server) caller(ctx context.Context) (identity.Principal, error) {
	who, ok := s.cfg.Principal(ctx)
	if !ok {
		return who, status.Errorf(status.NoIdentity, "the connection carries no verified identity")
	}
	return who, nil
}

// maySee says whether the caller may read a service's rows: everything for
// those who run the region, by the resolution policy for everybody else.
func (s *Server) maySee(who identity.Principal, n registry.Name) bool {
	switch who.Class() {
	case identity.Operator, identity.SecurityAdmin, identity.Replica, identity.Reconciler:
		return true
	}
	return s.cfg.Policy().CanResolve(who, serviceOf(n)).Allowed
}

// maySeeNamespace is maySee for contracts and profiles, which belong to a
// namespace: its whole is judged, by the name of a service that nobody has.
func (s *Server) maySeeNamespace(who identity.Principal, namespace string) bool {
	return s.maySee(who, registry.Name{Namespace: namespace})
}

func serviceOf(n registry.Name) authz.Service {
	return authz.Service{Namespace: n.Namespace, Name: n.Service}
}

// mayRegister decides on an instance of a service under an identity. A
// service that is not there is refused like one of somebody else's.
func (s *Server) mayRegister(who identity.Principal, n registry.Name, self identity.ID) error {
	var serves []identity.ID
	exists := false
	s.cfg.Writer.Read(func(ix *registry.Index) {
		if svc, ok := ix.Service(n); ok {
			c := ix.EffectiveContract(svc)
			exists, serves = true, c.Identities
		}
	})
	if !exists && s.maySee(who, n) {
		return status.Hidden("service", n.String())
	}
	d := authz.CanRegister(who, self)
	if d.Allowed && !privileged(who.Class()) {
		d = authz.CanServe(self, serviceOf(n), serves)
	}
	if d.Allowed && exists {
		return nil
	}
	if !s.maySee(who, n) {
		return status.Hidden("service", n.String())
	}
	return status.Errorf(status.NotOneself, "%s may not register an instance of %s that serves as %q: %s", who, n, self, d.Rule)
}

// own finds a live instance that the caller may change: its own, or any for
// those who assert instances.
func (s *Server) own(who identity.Principal, i *registry.Instance, ok bool, name string) error {
	if !ok || !privileged(who.Class()) && i.Identity != who.ID {
		return status.Hidden("instance", name)
	}
	return nil
}

// find looks an instance up by uid or by label.
func (s *Server) find(n registry.Name, ref string) (i *registry.Instance, ok bool) {
	if uid, err := registry.ParseUID(ref); err == nil {
		i, ok = s.cfg.Writer.Lookup(uid)
		if ok && !n.IsZero() && i.Service != n {
			return nil, false
		}
		return i, ok
	}
	s.cfg.Writer.Read(func(ix *registry.Index) { i, ok = ix.InstanceByLabel(n, ref) })
	return i, ok
}
