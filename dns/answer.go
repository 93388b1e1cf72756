package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	mdns "github.com/miekg/dns"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/views"
)

// schemaVersion is what dns-version.<apex> answers (Kubernetes DNS schema).
const schemaVersion = "1.1.0"

// composer builds answers. It is immutable but for the visibility cache, and
// safe for concurrent use.
type composer struct {
	zones       []zone
	glue        netip.Addr // address of ns1.<apex>
	ttl         uint32     // seconds
	negativeTTL uint32     // seconds
	limit       int        // records per RRset
	visible     atomic.Pointer[visibility]
}

// question is one query, and who asks it.
type question struct {
	name   string // as asked
	qtype  uint16
	who    identity.Principal
	random uint64
}

// result is an answer before its envelope: sections, code, and what an
// extended error should say.
type result struct {
	rcode         int
	authoritative bool
	answer        []mdns.RR
	authority     []mdns.RR
	additional    []mdns.RR
	ede           *mdns.EDNS0_EDE
}

// compose answers one question of class IN from a snapshot under a policy. It
// reads nothing else, so every record of an answer comes from one view version.
func (c *composer) compose(q question, snap *views.Snapshot, policy *authz.Policy) result {
	labels := mdns.SplitDomainName(q.name)
	z, ok := findZone(c.zones, labels)
	switch {
	case !ok:
		return result{rcode: mdns.RcodeRefused}
	case !snap.Complete():
		return result{rcode: mdns.RcodeServerFailure, ede: &mdns.EDNS0_EDE{InfoCode: mdns.ExtendedErrorCodeNotReady, ExtraText: "views are being built"}}
	}
	t := parseName(q.name, labels, z)
	r, exists := c.records(q, t, z, snap, policy)
	r.authoritative = true
	switch {
	case !exists:
		r.rcode = mdns.RcodeNameError
		r.authority = []mdns.RR{c.soa(z, snap)}
	case q.qtype == mdns.TypeANY:
		// RFC 8482: one small record instead of everything.
		r.answer = []mdns.RR{&mdns.HINFO{Hdr: c.header(q.name, mdns.TypeHINFO, c.ttl), Cpu: "RFC8482"}}
		r.additional = nil
	case len(r.answer) == 0:
		r.authority = []mdns.RR{c.soa(z, snap)}
	}
	return r
}

// records returns what the name has of the asked type; exists is false for a
// name that is not there, or not there for this principal.
func (c *composer) records(q question, t target, z zone, snap *views.Snapshot, policy *authz.Policy) (r result, exists bool) {
	switch t.kind {
	case kindUnknown:
		return r, false
	case kindApex:
		return c.apex(q, z, snap), true
	case kindNameserver:
		r.answer = c.addressRecords(q, []netip.Addr{c.glue})
		return r, true
	case kindVersion:
		r.answer = c.text(q, schemaVersion)
		return r, true
	case kindServices:
		return r, true
	case kindNamespace:
		return r, c.namespaceVisible(t.service.Namespace, q.who, snap, policy)
	}
	v := snap.Get(t.service)
	if v == nil || !allowed(policy, q.who, v) {
		return r, false
	}
	return c.ofService(q, t, v)
}

// ofService answers for the names of one visible service.
func (c *composer) ofService(q question, t target, v *views.View) (r result, exists bool) {
	exists = true
	switch t.kind {
	case kindService:
		if q.qtype == mdns.TypeA || q.qtype == mdns.TypeAAAA {
			all := addresses(v, q.qtype == mdns.TypeAAAA)
			r.answer = c.addressRecords(q, pick(all, c.limit, q.random))
		}
		r.ede = guardError(v)
	case kindHost:
		m := findHost(v, t.host)
		if m == nil {
			return r, false
		}
		r.answer = c.addressRecords(q, []netip.Addr{m.Endpoint.Addr})
	case kindProtocol:
		exists = hasTransport(v, t.proto)
	case kindPort:
		list, ok := endpoints(v, t.port, t.proto)
		if !ok {
			return r, false
		}
		if q.qtype == mdns.TypeSRV {
			r.answer, r.additional = c.srv(q, t, ring(list, c.limit, q.random))
		}
		r.ede = guardError(v)
	case kindState:
		r.answer = c.text(q, stateText(v)...)
	}
	return r, exists
}

func (c *composer) apex(q question, z zone, snap *views.Snapshot) (r result) {
	ns := "ns1." + q.name
	switch q.qtype {
	case mdns.TypeSOA:
		soa := c.soa(z, snap)
		soa.Hdr = c.header(q.name, mdns.TypeSOA, c.ttl)
		r.answer = []mdns.RR{soa}
	case mdns.TypeNS:
		r.answer = []mdns.RR{&mdns.NS{Hdr: c.header(q.name, mdns.TypeNS, c.ttl), Ns: ns}}
		if !c.glue.IsUnspecified() { // an unspecified listen address is nobody's to dial
			r.additional = []mdns.RR{c.addressRecord(ns, c.glue)}
		}
	}
	return r
}

// soa is the zone's start of authority: its serial is the view version, its
// TTL the negative TTL (RFC 2308: a negative answer is cached for the smaller
// of the two).
func (c *composer) soa(z zone, snap *views.Snapshot) *mdns.SOA {
	return &mdns.SOA{
		Hdr:    c.header(z.apex, mdns.TypeSOA, c.negativeTTL),
		Ns:     "ns1." + z.apex,
		Mbox:   "hostmaster." + z.apex,
		Serial: uint32(snap.Version().Seq), //nolint:gosec // modulo 2^32 is the rule (DESIGN.md §8)
		// No secondary transfers this zone; the values are those of a zone that would be asked often.
		Refresh: 60, Retry: 10, Expire: 3600,
		Minttl: c.negativeTTL,
	}
}

func (c *composer) srv(q question, t target, list []endpoint) (answer, additional []mdns.RR) {
	for _, e := range list {
		host := e.member.DisplayName() + "." + t.suffix
		answer = append(answer, &mdns.SRV{
			Hdr:    c.header(q.name, mdns.TypeSRV, c.ttl),
			Weight: uint16(min(e.member.Weight, 65535)), //nolint:gosec // clamped
			Port:   e.number,
			Target: host,
		})
		additional = append(additional, c.addressRecord(host, e.member.Endpoint.Addr))
	}
	return answer, additional
}

// addressRecords makes A or AAAA records of those addresses that have the asked family.
func (c *composer) addressRecords(q question, addrs []netip.Addr) (out []mdns.RR) {
	for _, a := range addrs {
		if want4 := q.qtype == mdns.TypeA; a.IsValid() && !a.IsUnspecified() && (want4 || q.qtype == mdns.TypeAAAA) && a.Unmap().Is4() == want4 {
			out = append(out, c.addressRecord(q.name, a))
		}
	}
	return out
}

func (c *composer) addressRecord(name string, a netip.Addr) mdns.RR {
	a = a.Unmap()
	if a.Is4() {
		return &mdns.A{Hdr: c.header(name, mdns.TypeA, c.ttl), A: a.AsSlice()}
	}
	return &mdns.AAAA{Hdr: c.header(name, mdns.TypeAAAA, c.ttl), AAAA: a.AsSlice()}
}

func (c *composer) text(q question, parts ...string) []mdns.RR {
	if q.qtype != mdns.TypeTXT {
		return nil
	}
	return []mdns.RR{&mdns.TXT{Hdr: c.header(q.name, mdns.TypeTXT, c.ttl), Txt: parts}}
}

func (c *composer) header(name string, rrtype uint16, ttl uint32) mdns.RR_Header {
	return mdns.RR_Header{Name: name, Rrtype: rrtype, Class: mdns.ClassINET, Ttl: ttl}
}

// findHost returns the listed member with that label or uid and an address.
func findHost(v *views.View, host string) *views.Member {
	for _, m := range v.Members {
		if m.Listed && m.Endpoint.Addr.IsValid() && m.DisplayName() == host {
			return m
		}
	}
	return nil
}

// allowed is the one question that decides whether a service exists for somebody.
func allowed(policy *authz.Policy, who identity.Principal, v *views.View) bool {
	s := authz.Service{Namespace: v.Name.Namespace, Name: v.Name.Service, DNSAnonymous: v.DNSAnonymous}
	return policy.CanResolve(who, s).Allowed
}

// guardError tells a person with dig that the set is held by the guard (RFC 8914).
func guardError(v *views.View) *mdns.EDNS0_EDE {
	if !v.Guard.Tripped {
		return nil
	}
	text := fmt.Sprintf("fraction guard: %d of %d serving, all listed", v.Guard.Serving, v.Guard.Members)
	return &mdns.EDNS0_EDE{InfoCode: mdns.ExtendedErrorCodeOther, ExtraText: text[:min(len(text), maxEDE)]}
}

// stateText is the content of _sightline.<svc>: what the other surfaces show
// beside the members. A member's own state and capability are on Resolve and
// Watch; a TXT record counts and lists them.
func stateText(v *views.View) []string {
	guard := "guard=off"
	if v.Guard.Tripped {
		guard = "guard=tripped"
	}
	return []string{
		"view=" + v.Version().String(),
		"confidence=" + v.Confidence.String(),
		guard,
		"state=" + stateCounts(v),
		"capability=" + capabilities(v),
		fmt.Sprintf("listed=%d", v.ListedCount),
		fmt.Sprintf("members=%d", len(v.Members)),
	}
}

// stateCounts says how many members are in which state.
func stateCounts(v *views.View) string {
	var counts [views.Ineligible + 1]int
	for _, m := range v.Members {
		counts[m.State]++
	}
	var out []string
	for _, s := range [...]views.State{views.Eligible, views.Degraded, views.Unknown, views.Ineligible} {
		if counts[s] > 0 {
			out = append(out, fmt.Sprintf("%s:%d", s, counts[s]))
		}
	}
	return orNone(out)
}

// maxCapabilities is how many profile names a TXT record lists: with that many
// its string stays below the 255 bytes that one holds.
const maxCapabilities = 3

// capabilities lists the profiles of the members; members without one supply
// no evidence class.
func capabilities(v *views.View) string {
	var names []string
	for _, m := range v.Members {
		if m.Capability != "" && !slices.Contains(names, m.Capability) { // there are one or two
			names = append(names, m.Capability)
		}
	}
	slices.Sort(names)
	if left := len(names) - maxCapabilities; left > 0 {
		names = append(names[:maxCapabilities], fmt.Sprintf("+%d", left))
	}
	return orNone(names)
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ",")
}

func transport(p views.Port) string {
	if p.Protocol == views.UDP {
		return "udp"
	}
	return "tcp"
}

// visibility is the set of namespaces in which one class of anonymous callers
// sees a service. It is rebuilt when the snapshot or the policy changed.
type visibility struct {
	snap       *views.Snapshot
	policy     *authz.Policy
	namespaces map[string]bool
}

// namespaceVisible says whether <ns>.svc.<apex> exists: it is an empty
// non-terminal exactly while it holds a service that the caller may see.
func (c *composer) namespaceVisible(ns string, who identity.Principal, snap *views.Snapshot, policy *authz.Policy) bool {
	if !who.ID.IsZero() {
		for v := range snap.All() {
			if v.Name.Namespace == ns && allowed(policy, who, v) {
				return true
			}
		}
		return false
	}
	cached := c.visible.Load()
	if cached == nil || cached.snap != snap || cached.policy != policy {
		cached = &visibility{snap: snap, policy: policy, namespaces: map[string]bool{}}
		for v := range snap.All() {
			if allowed(policy, who, v) {
				cached.namespaces[v.Name.Namespace] = true
			}
		}
		c.visible.Store(cached)
	}
	return cached.namespaces[ns]
}
