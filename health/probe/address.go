package probe

import "net/netip"

// refused are the networks that no instance is reached in, or that answer for
// somebody else than an instance: asking one would make the prober a way into
// them (GO-2022-0615). What IPv4 address an IPv6 address stands for is looked
// at too.
var refused = []struct {
	net netip.Prefix
	why string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "an unspecified address"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address (cloud metadata is there)"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved or broadcast address"},
	{netip.MustParsePrefix("192.0.0.0/24"), "a protocol's own address (cloud metadata is there)"},
	{netip.MustParsePrefix("100.100.100.200/32"), "a cloud metadata address"},
	{netip.MustParsePrefix("168.63.129.16/32"), "a cloud metadata address"},
	{netip.MustParsePrefix("::/128"), "an unspecified address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("fec0::/10"), "a site-local address, which is no longer used"},
	{netip.MustParsePrefix("ff00::/8"), "a multicast address"},
	{netip.MustParsePrefix("fd00:ec2::/32"), "a cloud metadata address"},
	{netip.MustParsePrefix("fd20:ce::254/128"), "a cloud metadata address"},
	{netip.MustParsePrefix("fd00:42::42/128"), "a cloud metadata address"},
	{netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), "a cloud metadata address"},
	{netip.MustParsePrefix("2001::/32"), "a Teredo address, which hides another"},
}

// embedding are the IPv6 networks whose addresses hold an IPv4 one, and the byte
// where it starts.
var embedding = []struct {
	net netip.Prefix
	at  int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},   // RFC 6052
	{netip.MustParsePrefix("64:ff9b:1::/96"), 12}, // RFC 8215, as a /96
	{netip.MustParsePrefix("2002::/16"), 2},       // RFC 3056
	{netip.MustParsePrefix("::/96"), 12},          // RFC 4291 §2.5.5.1
}

// forbidden says why an address must not be asked; "" where it may be.
func forbidden(a netip.Addr, allowLoopback bool) string {
	if !a.IsValid() {
		return "no address"
	}
	a = a.Unmap()
	if a.IsLoopback() {
		if allowLoopback {
			return ""
		}
		return "a loopback address, which is another machine's on every machine"
	}
	if a.Zone() != "" {
		return "an address of one interface"
	}
	for _, r := range refused {
		if r.net.Contains(a) {
			return r.why
		}
	}
	for _, e := range embedding {
		if e.net.Contains(a) {
			raw := a.As16()
			inner := netip.AddrFrom4([4]byte(raw[e.at : e.at+4]))
			if why := forbidden(inner, false); why != "" {
				return "an address that stands for " + why
			}
		}
	}
	return ""
}
