package dns

import (
	"fmt"
	"strings"

	mdns "github.com/miekg/dns"

	"github.com/sightlinedev/sightline/views"
)

// MaxApex is the longest apex in bytes, without its final dot (STORE.md §2):
// with it, every name that the registry accepts fits the 253 bytes of a domain
// name.
const MaxApex = 48

// zone is one apex that we answer for.
type zone struct {
	apex   string   // lower case, with trailing dot
	labels []string // of the apex, lower case
}

func parseZone(s string) (zone, error) {
	apex := strings.ToLower(mdns.Fqdn(s))
	labels := mdns.SplitDomainName(apex)
	if len(labels) == 0 || len(apex) > MaxApex+len(".") {
		return zone{}, fmt.Errorf("DNS zone %q: an apex has 1 to %d characters", s, MaxApex)
	}
	for _, l := range labels {
		if !validLabel(l) {
			return zone{}, fmt.Errorf("DNS zone %q: %q is not a DNS label (a-z, 0-9, dash, at most 63)", s, l)
		}
	}
	return zone{apex: apex, labels: labels}, nil
}

// kind says what a name inside a zone stands for.
type kind uint8

const (
	kindUnknown    kind = iota // nothing of ours can have this name
	kindApex                   // the zone itself
	kindNameserver             // ns1.<apex>
	kindVersion                // dns-version.<apex>
	kindServices               // svc.<apex>: an empty non-terminal
	kindNamespace              // <ns>.svc.<apex>: an empty non-terminal while it holds a visible service
	kindService                // <svc>.<ns>.svc.<apex>
	kindHost                   // <host>.<svc>.<ns>.svc.<apex>
	kindProtocol               // _<proto>.<svc>.<ns>.svc.<apex>: an empty non-terminal
	kindPort                   // _<port>._<proto>.<svc>.<ns>.svc.<apex>
	kindState                  // _sightline.<svc>.<ns>.svc.<apex>
)

// target is what a question's name stands for.
type target struct {
	kind    kind
	service views.Name
	host    string // kindHost: instance label or uid; kindNamespace: empty
	port    string // kindPort
	proto   string // kindPort, kindProtocol: "tcp" or "udp"
	// suffix is the part of the question's own name that starts at the
	// service label, in the question's letter case: targets of SRV records
	// are built on it (DNS.md §1).
	suffix string
}

// findZone returns the zone with the longest label suffix of the name.
func findZone(zones []zone, labels []string) (zone, bool) {
	best, found := zone{}, false
	for _, z := range zones {
		if len(labels) < len(z.labels) || found && len(z.labels) <= len(best.labels) {
			continue
		}
		tail := labels[len(labels)-len(z.labels):]
		match := true
		for i, l := range tail {
			match = match && strings.EqualFold(l, z.labels[i])
		}
		if match {
			best, found = z, true
		}
	}
	return best, found
}

// parseName reads a name that lies in the zone. name is as asked, labels are
// its labels as asked; nothing is unescaped: a label that holds an escape
// holds a character that no name of ours has.
func parseName(name string, labels []string, z zone) target {
	rel := make([]string, len(labels)-len(z.labels))
	for i := range rel {
		rel[i] = strings.ToLower(labels[i])
	}
	n := len(rel)
	switch {
	case n == 0:
		return target{kind: kindApex}
	case n == 1 && rel[0] == "ns1":
		return target{kind: kindNameserver}
	case n == 1 && rel[0] == "dns-version":
		return target{kind: kindVersion}
	case rel[n-1] != "svc":
		return target{}
	case n == 1:
		return target{kind: kindServices}
	case !validLabel(rel[n-2]):
		return target{}
	case n == 2:
		return target{kind: kindNamespace, service: views.Name{Namespace: rel[0]}}
	case !validLabel(rel[n-3]):
		return target{}
	}
	t := target{kind: kindService, service: views.Name{Namespace: rel[n-2], Service: rel[n-3]}, suffix: suffixFrom(name, n-3)}
	return parsePrefix(t, rel[:n-3])
}

// parsePrefix reads the labels before the service's.
func parsePrefix(t target, prefix []string) target {
	switch len(prefix) {
	case 0:
		return t
	case 1:
		switch p := prefix[0]; {
		case p == "_sightline":
			t.kind = kindState
		case p == "_tcp" || p == "_udp":
			t.kind, t.proto = kindProtocol, p[1:]
		case validLabel(p):
			t.kind, t.host = kindHost, p
		default:
			return target{}
		}
		return t
	case 2:
		port, ok := strings.CutPrefix(prefix[0], "_")
		if ok && validLabel(port) && (prefix[1] == "_tcp" || prefix[1] == "_udp") {
			t.kind, t.port, t.proto = kindPort, port, prefix[1][1:]
			return t
		}
	}
	return target{}
}

// suffixFrom cuts the first n labels off a name.
func suffixFrom(name string, n int) string {
	idx := mdns.Split(name)
	return name[idx[n]:]
}

// validLabel reports whether s is a lower-case DNS label (RFC 1123).
func validLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
			return false
		}
	}
	return true
}
