package authz

import "github.com/sightlinedev/sightline/identity"

// CanInspect decides whether a caller may look at how a service is run: its
// rows, its evidence, its history (RELIABILITY.md §5). A workload sees the
// services that it may serve, a reconciler of the trust domain all; everybody
// else sees what it may resolve. serves are the identities that the service's
// contract names. A service without a name stands for its whole namespace, one
// without a namespace for the region. A nil policy denies everything.
func (p *Policy) CanInspect(who identity.Principal, s Service, serves []identity.ID) Decision {
	switch {
	case p == nil:
		return Decision{Rule: "no policy loaded"}
	case who.Class() == identity.Workload && who.ID.TrustDomain() != p.TrustDomain:
		return Decision{Rule: "another trust domain"}
	case who.Class() == identity.Workload:
		return CanServe(who.ID, s, serves)
	case who.Class() == identity.Reconciler && who.ID.TrustDomain() == p.TrustDomain:
		return Decision{true, "class reconciler sees what it registers beside"}
	}
	return p.CanResolve(who, s)
}
