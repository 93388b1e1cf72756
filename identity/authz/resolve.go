package authz

import "github.com/sightlinedev/sightline/identity"

// Service is what a resolution policy looks at.
type Service struct {
	Namespace    string
	Name         string
	DNSAnonymous bool // its exposure lets the anonymous principal resolve it
}

// Decision is an answer that explains itself.
type Decision struct {
	Allowed bool
	Rule    string // the rule that decided, for people
}

// DefaultScope says what a workload may resolve where no grant speaks.
type DefaultScope uint8

// The default scopes.
const (
	OwnNamespace     DefaultScope = iota // production
	WholeTrustDomain                     // dev and demo
)

// Callee is the right-hand side of a grant. An empty Namespace is every
// service, an empty Name every service of the namespace.
type Callee struct{ Namespace, Name string }

func (c Callee) covers(s Service) bool {
	return (c.Namespace == "" || c.Namespace == s.Namespace) && (c.Name == "" || c.Name == s.Name)
}

// Grant lets the callers that match resolve the callee.
type Grant struct {
	Caller identity.Pattern
	Callee Callee
}

// Policy is the resolution policy of a region. It is immutable; Generation
// rises whenever it is replaced.
type Policy struct {
	Generation  uint64
	TrustDomain string
	Default     DefaultScope
	Grants      []Grant
}

// CanResolve is the one decision on whether a caller may see a service; every
// surface asks it (DESIGN.md §8, Scope). A nil policy denies everything.
func (p *Policy) CanResolve(who identity.Principal, s Service) Decision {
	if p == nil {
		return Decision{Rule: "no policy loaded"}
	}
	switch who.Class() {
	case identity.Anonymous:
		if s.DNSAnonymous {
			return Decision{true, "service exposure dns_anonymous"}
		}
		return Decision{Rule: "anonymous callers need exposure.dns_anonymous"}
	case identity.Operator, identity.SecurityAdmin, identity.Replica:
		if who.ID.TrustDomain() == p.TrustDomain {
			return Decision{true, "class " + who.Class().String() + " resolves all services"}
		}
	}
	for _, g := range p.Grants {
		if g.Callee.covers(s) && g.Caller.Match(who.ID) {
			return Decision{true, "grant " + g.Caller.String()}
		}
	}
	return p.byDefault(who, s)
}

func (p *Policy) byDefault(who identity.Principal, s Service) Decision {
	switch {
	case who.ID.TrustDomain() != p.TrustDomain:
		return Decision{Rule: "another trust domain, and no grant names it"}
	case p.Default == WholeTrustDomain:
		return Decision{true, "default: whole trust domain"}
	}
	if ns, _, ok := who.ID.Workload(); ok && ns == s.Namespace {
		return Decision{true, "default: own namespace"}
	}
	return Decision{Rule: "not the caller's own namespace, and no grant names the pair"}
}
