package authz

import (
	"slices"

	"github.com/sightlinedev/sightline/identity"
)

// CanServe decides whether an identity may serve a service as one of its
// instances. serves are the identities that the service's contract names; when
// it names none, those of the service's own namespace may.
func CanServe(instance identity.ID, s Service, serves []identity.ID) Decision {
	if len(serves) > 0 {
		if slices.Contains(serves, instance) {
			return Decision{true, "the contract names the identity"}
		}
		return Decision{Rule: "the contract does not name the identity"}
	}
	if ns, _, ok := instance.Workload(); ok && ns == s.Namespace {
		return Decision{true, "own namespace"}
	}
	return Decision{Rule: "not of the service's namespace, and its contract names no identities"}
}
