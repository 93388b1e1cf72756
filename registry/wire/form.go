package wire

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

// Rules of form that a field can break, as Violation.Rule names them.
const (
	RuleRequired  = "required"   // a message, or one of a oneof, is missing
	RuleEnum      = "enum"       // the number is no value of the enumeration
	RuleUnique    = "unique"     // the same value twice in a set
	RuleRange     = "range"      // the number does not fit
	RuleNotZero   = "not-zero"   // given as zero, where only leaving it out means the default
	RuleDuration  = "duration"   // not a valid duration
	RuleAddress   = "ip-address" // not an IP address
	RuleIdentity  = "spiffe-id"  // not a canonical SPIFFE ID
	RuleUID       = "uid"        // not an instance uid
	RuleReference = "reference"  // not of the form namespace/name
)

// form collects what is wrong with the form of one message.
type form struct{ violations registry.Violations }

func (f *form) refuse(field, rule, format string, args ...any) {
	f.violations = append(f.violations, registry.Violation{Field: field, Rule: rule, Detail: fmt.Sprintf(format, args...)})
}

// enum is a generated enumeration whose zero means "not given".
type enum interface {
	~int32
	Descriptor() protoreflect.EnumDescriptor
}

// fromEnum maps an enumeration to the core's, which has the same order and no
// value for "not given": that is its zero, the default.
func fromEnum[R ~uint8, P enum](f *form, field string, p P) R {
	if p == 0 {
		return 0
	}
	if p.Descriptor().Values().ByNumber(protoreflect.EnumNumber(p)) == nil {
		f.refuse(field, RuleEnum, "%d is not a value of %s", p, p.Descriptor().Name())
		return 0
	}
	return R(p - 1)
}

// toEnum is the inverse of fromEnum; it never returns "not given".
func toEnum[P enum, R ~uint8](r R) P { return P(r) + 1 }

func (f *form) port(field string, n uint32) uint16 {
	if n > math.MaxUint16 {
		f.refuse(field, RuleRange, "%d is not a port number; use 1 to %d", n, math.MaxUint16)
		return 0
	}
	return uint16(n)
}

// duration reads a duration of which zero means the same as none.
func (f *form) duration(field string, d *durationpb.Duration) time.Duration {
	if d == nil {
		return 0
	}
	v := d.AsDuration()
	if err := d.CheckValid(); err != nil || durationpb.New(v).GetSeconds() != d.GetSeconds() {
		f.refuse(field, RuleDuration, "%d s %d ns is not a duration that can be kept (at most 292 years, both of one sign)", d.GetSeconds(), d.GetNanos())
		return 0
	}
	return v
}

// setDuration reads a duration whose default is not zero: zero is refused.
func (f *form) setDuration(field string, d *durationpb.Duration) time.Duration {
	v := f.duration(field, d)
	if d != nil && d.GetSeconds() == 0 && d.GetNanos() == 0 {
		f.notZero(field)
	}
	return v
}

func (f *form) setNumber(field string, n *uint32) uint32 {
	if n == nil {
		return 0
	}
	if *n == 0 {
		f.notZero(field)
	}
	return *n
}

func (f *form) setFraction(field string, n *float64) float64 {
	switch {
	case n == nil:
		return 0
	case *n == 0:
		f.notZero(field)
		return 0
	case math.IsNaN(*n) || math.IsInf(*n, 0):
		f.refuse(field, RuleRange, "%v is not a number between 0 and 1", *n)
		return 0
	}
	return *n
}

func (f *form) notZero(field string) {
	f.refuse(field, RuleNotZero, "it is 0; leave it out for the default")
}

// identity reads a SPIFFE ID; empty is the zero ID.
func (f *form) identity(field, s string) identity.ID {
	if s == "" {
		return identity.ID{}
	}
	id, err := identity.Parse(s)
	if err != nil {
		f.refuse(field, RuleIdentity, "%v", err)
	}
	return id
}

func (f *form) address(field, s string) netip.Addr {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		f.refuse(field, RuleAddress, "%q is not an IP address; write one without port, zone or brackets", s)
		return netip.Addr{}
	}
	return a
}

// uid reads an instance's uid; empty is zero, "not assigned yet".
func (f *form) uid(field, s string) registry.UID {
	if s == "" {
		return 0
	}
	u, err := registry.ParseUID(s)
	if err != nil {
		f.refuse(field, RuleUID, "%v", err)
	}
	return u
}

// names reads references to services.
func (f *form) names(field string, refs []string) []registry.Name {
	var out []registry.Name
	for i, ref := range refs {
		ns, name, ok := strings.Cut(ref, "/")
		if !ok || ns == "" || name == "" || strings.Contains(name, "/") {
			f.refuse(index(field, i), RuleReference, "%q does not name a service; write namespace/name", ref)
			continue
		}
		out = append(out, registry.Name{Namespace: ns, Service: name})
	}
	return out
}

func index(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }

// toDuration leaves out what is zero, "not given".
func toDuration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// given is a pointer to the value, or nil for zero, "not given".
func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func toNames(names []registry.Name) []string {
	var out []string
	for _, n := range names {
		out = append(out, n.String())
	}
	return out
}
