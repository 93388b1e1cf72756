package registry

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of rows.
const (
	MaxInstances    = 10_000 // endpoints of one service (DESIGN.md §1)
	MaxPorts        = 32
	MaxConsumes     = 1_000
	MaxMetadata     = 4 << 10 // bytes of keys and values together (STORE.md §2)
	MaxMetadataKeys = 32
	MaxURL          = 2_048
	DefaultWeight   = 100
	MaxWeight       = 1_000
	MinLease        = 5 * time.Second
	MaxLease        = 10 * time.Minute
)

// CheckService judges a service row by itself.
func CheckService(s *Service) Violations {
	v := CheckName(s.Name)
	v.source(s.Source)
	v.ports(s.Ports)
	v.optionalLabel("contract", s.Contract)
	v.optionalLabel("profile", s.Profile)
	v.consumes(s.Consumes)
	v.texts("annotations", s.Annotations)
	return v
}

// CheckInstance judges an instance row by itself; what depends on its service,
// profile or contract is judged when it is planned.
func CheckInstance(i *Instance) Violations {
	var v Violations
	v.under("service", CheckName(i.Service))
	v.source(i.Source)
	v.instanceLabel("label", i.Label)
	v.endpoint(i.Endpoint)
	seen := make(map[string]bool, len(i.Ports))
	for n, p := range i.Ports {
		v.portName(index("ports", n)+".name", p.Name)
		v.portNumber(index("ports", n)+".number", p.Number)
		if seen[p.Name] {
			v.add(index("ports", n)+".name", "unique", "%q is given twice", p.Name)
		}
		seen[p.Name] = true
	}
	v.optionalLabel("region", i.Region)
	v.optionalLabel("zone", i.Zone)
	if i.Weight < 1 || i.Weight > MaxWeight {
		v.add("weight", "range", "%d is outside 1..%d", i.Weight, MaxWeight)
	}
	v.optionalLabel("profile", i.Profile)
	if i.Lease != 0 && (i.Lease < MinLease || i.Lease > MaxLease) {
		v.add("lease", "range", "%s is outside %s..%s; 0 means no lease", i.Lease, MinLease, MaxLease)
	}
	if i.Proof > ByRegistration {
		v.add("proof", "enum", "%d is not a kind of proof", i.Proof)
	}
	v.consumes(i.Consumes)
	v.texts("metadata", i.Metadata)
	return v
}

// CheckProfile judges a capability profile.
func CheckProfile(p *Profile) Violations {
	v := CheckName(p.key())
	v.source(p.Source)
	v.classes("supplies", p.Supplies)
	return v
}

// source judges who owns a row: api, file:<name>, kube:<name>.
func (v *Violations) source(s string) {
	kind, name, named := strings.Cut(s, ":")
	switch {
	case kind == "api" && !named:
	case (kind == "file" || kind == "kube") && named && name != "" && len(name) <= 255 && printable(name):
	default:
		v.add("source", "source", "%q is not one of api, file:<name>, kube:<name>", s)
	}
}

func (v *Violations) ports(ports []Port) {
	if len(ports) == 0 || len(ports) > MaxPorts {
		v.add("ports", "count", "there are %d; 1 to %d are needed, the first is the default port", len(ports), MaxPorts)
	}
	names, numbers := make(map[string]bool), make(map[uint16]bool)
	for i, p := range ports {
		at := index("ports", i)
		v.portName(at+".name", p.Name)
		v.portNumber(at+".number", p.Number)
		if p.Protocol > GRPC {
			v.add(at+".protocol", "enum", "%d is not a protocol", p.Protocol)
		}
		if names[p.Name] {
			v.add(at+".name", "unique", "%q is declared twice", p.Name)
		}
		if numbers[p.Number] && p.Number != 0 {
			v.add(at+".number", "unique", "%d is declared twice; callers dial a port by its number", p.Number)
		}
		names[p.Name], numbers[p.Number] = true, true
	}
}

func (v *Violations) portNumber(field string, n uint16) {
	if n == 0 {
		v.add(field, "range", "0 is outside 1..65535")
	}
}

func (v *Violations) consumes(names []Name) {
	if len(names) > MaxConsumes {
		v.add("consumes", "count", "there are %d, the limit is %d", len(names), MaxConsumes)
		return
	}
	seen := make(map[Name]bool, len(names))
	for i, n := range names {
		v.under(index("consumes", i), CheckName(n))
		if seen[n] {
			v.add(index("consumes", i), "unique", "%s is given twice", n)
		}
		seen[n] = true
	}
}

// texts judges metadata and annotations. Invalid UTF-8 would make every later
// marshalling of a view fail, so it never gets in (C31).
func (v *Violations) texts(field string, m map[string]string) {
	if len(m) > MaxMetadataKeys {
		v.add(field, "count", "there are %d keys, the limit is %d", len(m), MaxMetadataKeys)
	}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(m)) {
		size += len(k) + len(m[k])
		switch {
		case k == "" || !printable(k):
			v.add(field, "key", "key %q is empty or not printable UTF-8", k)
		case !utf8.ValidString(m[k]):
			v.add(field+"."+k, "utf-8", "the value is not valid UTF-8")
		}
	}
	if size > MaxMetadata {
		v.add(field, "size", "keys and values have %d bytes, the limit is %d", size, MaxMetadata)
	}
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func (v *Violations) endpoint(e Endpoint) {
	given := 0
	for _, set := range []bool{e.Addr.IsValid(), e.Host != "", e.URL != ""} {
		if set {
			given++
		}
	}
	switch {
	case given != 1:
		v.add("endpoint", "one-of", "%d of address, host and url are given; exactly one is needed", given)
	case e.Addr.IsValid():
		v.address(e.Addr)
	case e.Host != "":
		v.host(e.Host)
	default:
		v.url(e.URL)
	}
}

func (v *Violations) address(a netip.Addr) {
	why := ""
	switch {
	case a.IsUnspecified():
		why = "is unspecified"
	case a.IsMulticast():
		why = "is multicast"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		why = "is the broadcast address"
	case a.Zone() != "":
		why = "has a zone, which means something on one host only"
	case a.IsLinkLocalUnicast():
		why = "is link-local, which callers on other links cannot reach"
	}
	if why != "" {
		v.add("endpoint.address", "address", "%s %s; give the unicast address that callers dial", a, why)
	}
}

func (v *Violations) host(h string) {
	const field = "endpoint.host"
	if len(h) > MaxDNSName {
		v.add(field, "host-name", "it has %d characters, the limit is %d", len(h), MaxDNSName)
		return
	}
	if _, err := netip.ParseAddr(h); err == nil {
		v.add(field, "host-name", "%q is an IP address; give it as address", h)
		return
	}
	for label := range strings.SplitSeq(h, ".") {
		if why := CheckLabel(label); why != "" {
			v.add(field, "host-name", "label %s", why)
			return
		}
	}
}

func (v *Violations) url(u string) {
	const field = "endpoint.url"
	rest, secure := strings.CutPrefix(u, "https://")
	if !secure {
		var plain bool
		if rest, plain = strings.CutPrefix(u, "http://"); !plain {
			v.add(field, "url", "%q does not start with https:// or http://", u)
			return
		}
	}
	authority, _, _ := strings.Cut(rest, "/")
	switch {
	case len(u) > MaxURL:
		v.add(field, "url", "it has %d bytes, the limit is %d", len(u), MaxURL)
	case !printable(u) || strings.ContainsAny(u, " #\"<>\\"):
		v.add(field, "url", "it has a space, a fragment or a character that a URL does not allow")
	case authority == "" || strings.ContainsAny(authority, "@?"):
		v.add(field, "url", "%q needs a host, without user information", u)
	}
}

func (v *Violations) classes(field string, s ClassSet) {
	if s&^AllClasses != 0 {
		v.add(field, "enum", "%#x holds an unknown evidence class", uint8(s))
	}
}

// normalizeService brings a row to the form that is stored: owned by the
// registry, with empty collections nil.
func normalizeService(s *Service) {
	s.Ports = cloneList(s.Ports)
	s.Consumes = cloneList(s.Consumes)
	s.Annotations = cloneMap(s.Annotations)
}

func normalizeInstance(i *Instance) {
	i.Ports = cloneList(i.Ports)
	slices.SortFunc(i.Ports, func(a, b PortNumber) int { return strings.Compare(a.Name, b.Name) })
	i.Consumes = cloneList(i.Consumes)
	i.Metadata = cloneMap(i.Metadata)
	i.Endpoint.Addr = i.Endpoint.Addr.Unmap()
	if i.Weight == 0 {
		i.Weight = DefaultWeight
	}
}

func normalizeContract(c *Contract) {
	c.Dependencies = cloneList(c.Dependencies)
	slices.SortFunc(c.Dependencies, func(a, b Dependency) int { return strings.Compare(a.Name, b.Name) })
	c.Identities = cloneList(c.Identities)
}

func cloneList[T any](in []T) []T {
	if len(in) == 0 {
		return nil
	}
	return slices.Clone(in)
}

func cloneMap(in map[string]string) map[string]string {
	if len(in) == 0 {
		return nil
	}
	return maps.Clone(in)
}
