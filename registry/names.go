package registry

import (
	"strconv"
	"strings"
)

// Limits of names (RFC 1035 §2.3.4, RFC 6335 §5.1, NAMES.md).
const (
	MaxLabel    = 63  // bytes of one DNS label
	MaxPortName = 15  // characters of a port name
	MaxApex     = 48  // bytes of a DNS apex, without the final dot
	MaxDNSName  = 253 // characters of a whole name, without the final dot
)

// The longest names that DNS derives from a service and an instance:
// _port._tcp.service.namespace.svc.apex and host.service.namespace.svc.apex.
// Labels and apex are limited so that both always fit; the constants below
// stop compiling if a limit is raised beyond that (uint cannot be negative).
const (
	longestSRV  = (1 + MaxPortName) + 1 + len("_tcp") + 1 + 2*(MaxLabel+1) + len("svc") + 1 + MaxApex
	longestHost = 3*(MaxLabel+1) + len("svc") + 1 + MaxApex

	_ = uint(MaxDNSName - longestSRV)
	_ = uint(MaxDNSName - longestHost)
)

// CheckLabel says what keeps s from being a DNS label in the only form that is
// accepted: lower case, 1 to 63 characters of a-z, 0-9 and hyphen, none of
// them a hyphen at either end. It returns "" for a good one.
func CheckLabel(s string) string {
	switch {
	case s == "":
		return "is empty; a DNS label of 1 to 63 characters is needed"
	case len(s) > MaxLabel:
		return "is " + strconv.Itoa(len(s)) + " bytes long, a DNS label has at most 63"
	case s[0] == '-' || s[len(s)-1] == '-':
		return strconv.Quote(s) + " starts or ends with a hyphen"
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
		case r >= 'A' && r <= 'Z':
			return strconv.Quote(s) + " has upper-case letters; write " + strconv.Quote(strings.ToLower(s))
		default:
			return strconv.Quote(s) + " has the character " + strconv.QuoteRune(r) + "; only a-z, 0-9 and hyphen are allowed"
		}
	}
	return ""
}

// CheckApex judges a DNS apex, with or without its final dot. field names the
// flag or field that it came from.
func CheckApex(field, apex string) Violations {
	var v Violations
	name := strings.TrimSuffix(apex, ".")
	if name == "" || len(name) > MaxApex {
		v.add(field, "dns-apex", "%q has %d bytes without its final dot; 1 to %d are allowed, so that every accepted name fits", apex, len(name), MaxApex)
		return v
	}
	for label := range strings.SplitSeq(name, ".") {
		if why := CheckLabel(label); why != "" {
			v.add(field, "dns-apex", "label %s", why)
		}
	}
	return v
}

// CheckName judges a service's, contract's or profile's full name.
func CheckName(n Name) Violations {
	var v Violations
	v.label("namespace", n.Namespace)
	v.label("name", n.Service)
	return v
}

func (v *Violations) label(field, s string) {
	if why := CheckLabel(s); why != "" {
		v.add(field, "dns-label", "%s", why)
	}
}

func (v *Violations) optionalLabel(field, s string) {
	if s != "" {
		v.label(field, s)
	}
}

// instanceLabel judges an instance's label: it shares DNS with the uids.
func (v *Violations) instanceLabel(field, s string) {
	if s == "" {
		return
	}
	v.label(field, s)
	if digits, ok := strings.CutPrefix(s, "i"); ok && digits != "" && strings.Trim(digits, "0123456789") == "" {
		v.add(field, "reserved", "%q has the form of a uid (i and digits); choose another label", s)
	}
}

// portName judges a port name by RFC 6335 §5.1.
func (v *Violations) portName(field, s string) {
	switch {
	case s == "" || len(s) > MaxPortName:
		v.add(field, "port-name", "%q has %d characters; 1 to %d are allowed", s, len(s), MaxPortName)
		return
	case CheckLabel(s) != "":
		v.add(field, "port-name", "%s", CheckLabel(s))
		return
	case strings.Contains(s, "--"):
		v.add(field, "port-name", "%q has two hyphens in a row", s)
	case !strings.ContainsFunc(s, func(r rune) bool { return r >= 'a' && r <= 'z' }):
		v.add(field, "port-name", "%q has no letter", s)
	}
}

func index(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }
