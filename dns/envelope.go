package dns

import (
	mdns "github.com/miekg/dns"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/views"
)

const (
	// minPayload is what every client can take (RFC 1035); smaller EDNS sizes mean it (RFC 6891 §6.2.3).
	minPayload = 512
	// maxPayload avoids fragmentation (DNS flag day 2020).
	maxPayload = 1232
	// maxEDE bounds the text of an extended error (DNS.md §1).
	maxEDE = 48
)

// asker is the circumstance of one query.
type asker struct {
	who    identity.Principal
	tcp    bool
	random uint64
}

// reply answers a whole query message. It returns nil where silence is right
// (a message that is itself a response).
func (c *composer) reply(req *mdns.Msg, from asker, nsid string, snap *views.Snapshot, policy *authz.Policy) *mdns.Msg {
	if req.Response {
		return nil
	}
	m := new(mdns.Msg)
	m.SetReply(req)
	m.Authoritative, m.RecursionAvailable = false, false
	m.Rcode = refusal(req)
	opt := req.IsEdns0()
	if m.Rcode == mdns.RcodeSuccess && opt != nil && opt.Version() != 0 {
		m.Rcode = mdns.RcodeBadVers
	}
	var ede *mdns.EDNS0_EDE
	if m.Rcode == mdns.RcodeSuccess {
		r := c.compose(question{name: req.Question[0].Name, qtype: req.Question[0].Qtype, who: from.who, random: from.random}, snap, policy)
		m.Rcode, m.Authoritative = r.rcode, r.authoritative
		m.Answer, m.Ns, m.Extra = r.answer, r.authority, r.additional
		ede = r.ede
	}
	if opt != nil {
		m.Extra = append(m.Extra, replyOPT(m, opt, nsid, ede))
	}
	c.fit(m, payload(opt, from.tcp))
	return m
}

// refusal says which code ends a query before its name is looked at, or
// success. The order is that of RFC 8906's tests.
func refusal(req *mdns.Msg) int {
	switch {
	case req.Opcode == mdns.OpcodeUpdate || req.Opcode == mdns.OpcodeNotify:
		return mdns.RcodeRefused
	case req.Opcode != mdns.OpcodeQuery:
		return mdns.RcodeNotImplemented
	case len(req.Question) != 1, countOPT(req) > 1: // RFC 6891 §6.1.1
		return mdns.RcodeFormatError
	}
	switch q := req.Question[0]; {
	case q.Qclass != mdns.ClassINET:
		return mdns.RcodeRefused
	case q.Qtype == mdns.TypeAXFR || q.Qtype == mdns.TypeIXFR:
		return mdns.RcodeRefused
	}
	return mdns.RcodeSuccess
}

func countOPT(m *mdns.Msg) (n int) {
	for _, rr := range m.Extra {
		if rr.Header().Rrtype == mdns.TypeOPT {
			n++
		}
	}
	return n
}

// replyOPT builds the OPT record of a reply: version 0, our payload size, the
// DO bit as asked (RFC 3225), the server's id if asked for, and an extended
// error. Options that we do not know are not echoed.
func replyOPT(m *mdns.Msg, asked *mdns.OPT, nsid string, ede *mdns.EDNS0_EDE) *mdns.OPT {
	opt := &mdns.OPT{Hdr: mdns.RR_Header{Name: ".", Rrtype: mdns.TypeOPT}}
	opt.SetUDPSize(maxPayload)
	opt.SetExtendedRcode(uint16(m.Rcode)) //nolint:gosec // an rcode has 12 bits
	if asked.Do() {
		opt.SetDo()
	}
	for _, o := range asked.Option {
		if _, ok := o.(*mdns.EDNS0_NSID); ok && nsid != "" {
			opt.Option = append(opt.Option, &mdns.EDNS0_NSID{Code: mdns.EDNS0NSID, Nsid: hexOf(nsid)})
		}
	}
	if ede != nil {
		opt.Option = append(opt.Option, ede)
	}
	return opt
}

// payload is the room for a reply in bytes.
func payload(opt *mdns.OPT, tcp bool) int {
	switch {
	case tcp:
		return mdns.MaxMsgSize
	case opt == nil:
		return minPayload
	}
	return min(max(int(opt.UDPSize()), minPayload), maxPayload)
}

// fit cuts a reply to its room at record boundaries: additionals first, then
// the extended error, then answers, and only the last sets TC (DNS.md §1).
func (c *composer) fit(m *mdns.Msg, room int) {
	m.Compress = true
	if m.Len() <= room {
		return
	}
	var tail []mdns.RR // the OPT record, always last and never dropped
	if opt := m.IsEdns0(); opt != nil {
		tail = []mdns.RR{opt}
	}
	extra := m.Extra[:len(m.Extra)-len(tail)]
	keep := longestPrefix(len(extra), func(n int) bool {
		m.Extra = append(append([]mdns.RR{}, extra[:n]...), tail...)
		return m.Len() <= room
	})
	m.Extra = append(append([]mdns.RR{}, extra[:keep]...), tail...)
	if m.Len() <= room {
		return
	}
	if opt := m.IsEdns0(); opt != nil {
		opt.Option = nil
		if m.Len() <= room {
			return
		}
	}
	m.Truncated = true
	answer := m.Answer
	keep = longestPrefix(len(answer), func(n int) bool {
		m.Answer = answer[:n]
		return m.Len() <= room
	})
	m.Answer = answer[:keep]
}

// longestPrefix returns the largest n up to limit for which fits holds; fits
// must hold for every smaller n too.
func longestPrefix(limit int, fits func(n int) bool) int {
	lo, hi := 0, limit
	for lo < hi {
		if mid := (lo + hi + 1) / 2; fits(mid) {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// hexOf is the text form in which miekg/dns holds an NSID.
func hexOf(s string) string {
	const digits = "0123456789abcdef"
	out := make([]byte, 0, 2*len(s))
	for i := range len(s) {
		out = append(out, digits[s[i]>>4], digits[s[i]&15])
	}
	return string(out)
}
