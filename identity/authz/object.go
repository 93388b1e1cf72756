package authz

import "github.com/sightlinedev/sightline/identity"

// CanReport decides whether a caller may report on an instance as that
// instance itself: the instance's registered identity must be the caller's. An
// instance without an identity of its own has nobody who can speak for it.
func CanReport(who identity.Principal, instance identity.ID) Decision {
	switch {
	case who.ID.IsZero():
		return Decision{Rule: "the caller has no identity"}
	case instance.IsZero():
		return Decision{Rule: "the instance was registered without an identity"}
	case who.ID != instance:
		return Decision{Rule: "the instance belongs to another identity"}
	}
	return Decision{true, "the caller is the instance"}
}

// CanRegister decides whether a caller may register, renew, change or
// deregister an instance of the given identity. A workload speaks for itself
// alone; a reconciler and an operator speak for others, and what they assert
// is audited by whoever applies it.
func CanRegister(who identity.Principal, instance identity.ID) Decision {
	switch who.Class() {
	case identity.Operator, identity.Reconciler:
		return Decision{true, "class " + who.Class().String() + " asserts for others"}
	case identity.Workload:
		if instance == who.ID {
			return Decision{true, "the caller is the instance"}
		}
		return Decision{Rule: "a workload registers itself only"}
	}
	return Decision{Rule: "class " + who.Class().String() + " registers nothing"}
}
