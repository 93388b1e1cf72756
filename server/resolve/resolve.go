package resolve

import (
	"context"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/svid"
	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
	"github.com/sightlinedev/sightline/views/wire"
)

// Config is what the Service needs; every field but Events is required.
type Config struct {
	Snapshot func() *views.Snapshot
	Policy   func() *authz.Policy
	// MissesPerMinute is how many names one identity may ask for in vain within
	// a minute (limits.API.UnknownNamesPerCall); zero: no limit.
	MissesPerMinute int
	Events          Events
}

// Events report what was asked; each may be nil.
type Events struct {
	// Answered: the caller got the view.
	Answered func(who identity.Principal, n views.Name)
	// Refused: the service exists, and the rule keeps it from the caller. Whoever
	// records it bounds it (once per principal, name and minute).
	Refused func(who identity.Principal, n views.Name, rule string)
	// Unknown: there is no such service. To be counted, not listed.
	Unknown func(who identity.Principal)
}

// Service implements resolvev1.ResolveServiceServer.
type Service struct {
	resolvev1.UnimplementedResolveServiceServer
	c      Config
	misses misses
}

// New returns the Service.
func New(c Config) *Service {
	return &Service{c: c, misses: misses{perMinute: c.MissesPerMinute}}
}

// Resolve returns the published view of one service.
func (s *Service) Resolve(ctx context.Context, req *resolvev1.ResolveRequest) (*resolvev1.ResolveResponse, error) {
	who, ok := svid.PrincipalFrom(ctx)
	if !ok {
		return nil, status.Errorf(status.NoIdentity, "Resolve needs a verified caller")
	}
	snap := s.c.Snapshot()
	if !snap.Complete() {
		return nil, status.Errorf(status.ViewsLoading, "the server is still building its views")
	}
	n, err := nameOf(req)
	if err != nil {
		return nil, status.Field(status.InvalidField, "name", "service-name", err.Error())
	}
	if !s.misses.allow(who.ID, time.Now()) {
		return nil, status.Limit("API.UnknownNamesPerCall", "too many names asked for in vain within a minute")
	}
	v := s.visible(snap, who, n)
	if v == nil {
		s.misses.add(who.ID)
		return nil, status.Hidden("service", n.String())
	}
	if s.c.Events.Answered != nil {
		s.c.Events.Answered(who, n)
	}
	return &resolvev1.ResolveResponse{View: wire.View(v), HeadVersion: snap.Version().String()}, nil
}

// visible returns the view if the caller may see it. The policy is asked about
// a name that does not exist too, so that the time tells nothing.
func (s *Service) visible(snap *views.Snapshot, who identity.Principal, n views.Name) *views.View {
	v := snap.Get(n)
	asked := authz.Service{Namespace: n.Namespace, Name: n.Service, DNSAnonymous: v != nil && v.DNSAnonymous}
	d := s.c.Policy().CanResolve(who, asked)
	switch {
	case v != nil && d.Allowed:
		return v
	case v != nil && s.c.Events.Refused != nil:
		s.c.Events.Refused(who, n, d.Rule)
	case v == nil && s.c.Events.Unknown != nil:
		s.c.Events.Unknown(who)
	}
	return nil
}

// nameOf reads the request's name: namespace and name apart, or in the name
// alone as shop/checkout or, as every wire writes it, checkout.shop.
func nameOf(req *resolvev1.ResolveRequest) (views.Name, error) {
	if req.GetNamespace() != "" {
		return views.ParseName(req.GetNamespace() + "/" + req.GetName())
	}
	if service, namespace, ok := strings.Cut(req.GetName(), "."); ok {
		return views.ParseName(namespace + "/" + service)
	}
	return views.ParseName(req.GetName())
}
