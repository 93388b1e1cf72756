package registry

import (
	"fmt"
	"strings"
)

// Violation is one broken rule of one field. Nothing that has a violation is
// stored.
type Violation struct {
	Field  string // path from the object's root: ports[1].number
	Rule   string // short and stable, for programs: dns-label, range, unique
	Detail string // the value seen and what to do, for a person
}

// Violations is every rule that an input breaks, in the order of its fields.
// It is the error that validation returns (INVALID_ARGUMENT on the wire).
type Violations []Violation

// Error lists field, rule and detail of each violation.
func (v Violations) Error() string {
	parts := make([]string, len(v))
	for i, x := range v {
		parts[i] = fmt.Sprintf("%s: %s (%s)", x.Field, x.Detail, x.Rule)
	}
	return strings.Join(parts, "; ")
}

// Err is nil when nothing is violated; it keeps an empty list from becoming a
// non-nil error.
func (v Violations) Err() error {
	if len(v) == 0 {
		return nil
	}
	return v
}

func (v *Violations) add(field, rule, format string, args ...any) {
	*v = append(*v, Violation{Field: field, Rule: rule, Detail: fmt.Sprintf(format, args...)})
}

// under moves every violation below a field of the enclosing object.
func (v *Violations) under(field string, inner Violations) {
	for _, x := range inner {
		x.Field = field + "." + x.Field
		*v = append(*v, x)
	}
}

// Reason says why a well-formed change cannot be made to the state as it is.
type Reason uint8

// The reasons of a refusal.
const (
	NotFound      Reason = iota + 1 // the object named is not there
	AlreadyExists                   // Create of what is there
	WrongSource                     // the row belongs to another source
	LabelTaken                      // another identity's live instance has the label
	AddressHeld                     // a newer instance has proved the address
	InUse                           // others refer to it
	ServiceFull                     // MaxInstances of one service
	Conflict                        // the row changed since the caller read it
	DamagedRow                      // the stored row does not decode; put it again first
)

var reasonNames = [...]string{"", "not-found", "already-exists", "wrong-source", "label-taken",
	"address-held", "in-use", "service-full", "conflict", "damaged-row"}

// String is the reason's stable name.
func (r Reason) String() string { return reasonNames[r] }

// Refusal is the error for a change that is well formed and not possible now.
type Refusal struct {
	Reason Reason
	Object string // what it is about: service shop/checkout, instance i17
	Detail string // the facts and what to do
}

// Error says what was refused, why, and what to do.
func (r *Refusal) Error() string { return r.Object + ": " + r.Detail }

func refuse(reason Reason, object, format string, args ...any) error {
	return &Refusal{Reason: reason, Object: object, Detail: fmt.Sprintf(format, args...)}
}
