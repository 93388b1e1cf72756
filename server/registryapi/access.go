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

// maySee says whether the caller may read a service's rows.
func (s *Server) maySee(who identity.Principal, n registry.Name) bool {
	_, serves := s.service(n)
	return s.cfg.Policy().CanInspect(who, serviceOf(n), serves).Allowed
}

// maySeeOwn is maySee for contracts and profiles, which belong to a namespace
// and are judged like a service of their name.
func (s *Server) maySeeOwn(who identity.Principal, n registry.Name) bool {
	return s.cfg.Policy().CanInspect(who, serviceOf(n), nil).Allowed
}

// service says whether a service exists, and which identities its contract
// names.
func (s *Server) service(n registry.Name) (exists bool, serves []identity.ID) {
	s.cfg.Writer.Read(func(ix *registry.Index) {
		if svc, ok := ix.Service(n); ok {
			exists, serves = true, ix.EffectiveContract(svc).Identities
		}
	})
	return exists, serves
}

func serviceOf(n registry.Name) authz.Service {
	return authz.Service{Namespace: n.Namespace, Name: n.Service}
}

// mayRegister decides on an instance of a service under an identity. A service
// that is not there is refused like one that the caller may not know of.
func (s *Server) mayRegister(who identity.Principal, n registry.Name, self identity.ID) error {
	exists, serves := s.service(n)
	d := authz.CanRegister(who, self)
	if d.Allowed && !privileged(who.Class()) {
		d = s.mayServe(self, n, serves)
	}
	if d.Allowed && exists {
		return nil
	}
	if exists && s.cfg.Events.Refused != nil {
		s.cfg.Events.Refused(who, n, d.Rule)
	}
	if known := s.cfg.Policy().CanResolve(who, serviceOf(n)).Allowed; !exists || !known {
		return status.Hidden("service", n.String())
	}
	return status.Errorf(status.NotOneself, "%s may not register an instance of %s that serves as %q: %s", who, n, self, d.Rule)
}

// mayServe is authz.CanServe within the trust domain: a namespace of another
// one has the same name and is another.
func (s *Server) mayServe(self identity.ID, n registry.Name, serves []identity.ID) authz.Decision {
	if p := s.cfg.Policy(); len(serves) == 0 && (p == nil || self.TrustDomain() != p.TrustDomain) {
		return authz.Decision{Rule: "another trust domain, and the contract does not name the identity"}
	}
	return authz.CanServe(self, serviceOf(n), serves)
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
