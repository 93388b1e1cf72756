package xds

import (
	"math"
	"net/netip"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sightlinedev/sightline/views"
)

// Field numbers of envoy.service.load_stats.v3 and of
// envoy.config.endpoint.v3's load report. Those of the counts of a locality and
// of an endpoint are the same but for the calls issued.
const (
	loadNode    = 1
	loadCluster = 2

	clusterName     = 1
	clusterLocality = 2
	clusterInterval = 4

	statsOwner      = 1 // locality, or address
	statsOK         = 2
	statsInProgress = 3
	statsFailed     = 4
	statsEndpoint   = 7 // of a locality
	statsIssued     = 8 // of a locality
	endpointIssued  = 7 // of an endpoint
)

// loadRow is one locality's or endpoint's counts, of which one is not 0.
type loadRow struct {
	uid     views.UID      // a locality that is one instance's own; 0: it is not
	addr    netip.AddrPort // an endpoint
	tier    tier           // of a shared locality
	issued  uint32
	ok      uint32
	failed  uint32
	current uint32 // calls in progress
}

// loadPart is one Cluster's part of a load report.
type loadPart struct {
	name     resourceName // zero: it can be nobody's
	interval time.Duration
	from, to int // its rows
}

// loadMessage reads LoadStatsRequests straight from the wire, into memory that
// the next one reuses: a region's clients report all the time, and decoding
// into generated messages takes 400 ns and five allocations a locality.
type loadMessage struct {
	limit    int  // bytes
	wantNode bool // later ones repeat it, from some clients
	// large has room for the large reports that are in memory at once, over all
	// streams; nil: there is no bound. in: this one is among them.
	large chan struct{}
	in    bool

	node     clientNode
	size     int // above limit nothing was read
	parts    []loadPart
	rows     []loadRow
	names    map[string]resourceName // Clusters that were named before
	interval time.Duration           // the longest
}

const (
	keptRows  = 4096 // what a stream keeps room for between reports
	keptParts = 4096
	// A report of more than largeReport bytes is one of largeAtOnce that are read
	// and taken in at a time: read, it takes twenty times its size, and one caller
	// may have two thousand streams.
	largeReport = 256 << 10
	largeAtOnce = 4
	keptNames   = 8192
)

// readWire reads a LoadStatsRequest.
func (m *loadMessage) readWire(b []byte) error {
	m.size, m.interval = len(b), 0
	m.parts, m.rows = m.parts[:0], m.rows[:0]
	if m.size > m.limit {
		return nil
	}
	m.release()
	if m.large != nil && m.size > largeReport {
		m.large <- struct{}{} // whoever is in goes on by itself, and leaves
		m.in = true
	}
	return each(b, func(n protowire.Number, v []byte) error {
		switch {
		case n == loadCluster:
			return m.readCluster(v)
		case n == loadNode && m.wantNode:
			r := request{wantNode: true}
			err := r.readNode(v)
			m.node = *r.node
			return err
		}
		return nil
	})
}

// release gives back the memory of a report that was taken in, if it was a large
// one: a stream that says no more would keep twenty times the report's size.
func (m *loadMessage) release() {
	if cap(m.rows) > keptRows {
		m.rows = nil
	}
	if cap(m.parts) > keptParts {
		m.parts = nil
	}
	if len(m.names) > keptNames {
		m.names = nil
	}
	if m.in {
		m.in = false
		<-m.large
	}
}

// readCluster reads a ClusterStats.
func (m *loadMessage) readCluster(b []byte) error {
	p := loadPart{from: len(m.rows)}
	err := each(b, func(n protowire.Number, v []byte) (err error) {
		switch n {
		case clusterName:
			p.name = m.named(v)
		case clusterLocality:
			err = m.readLocality(v)
		case clusterInterval:
			p.interval, err = readDuration(v)
		}
		return err
	})
	p.to = len(m.rows)
	if p.to > p.from {
		m.parts = append(m.parts, p)
		m.interval = max(m.interval, p.interval)
	}
	return err
}

// named reads a Cluster's name; of one that was named before it allocates nothing.
func (m *loadMessage) named(v []byte) resourceName {
	if len(v) > maxName {
		return resourceName{}
	}
	if n, ok := m.names[string(v)]; ok {
		return n
	}
	n, _ := resolveName(string(v))
	if m.names == nil {
		m.names = make(map[string]resourceName)
	}
	m.names[string(v)] = n
	return n
}

// readLocality reads an UpstreamLocalityStats: as the counts of its endpoints
// where it names them, else as its own.
func (m *loadMessage) readLocality(b []byte) error {
	row, endpoints := loadRow{}, false
	for len(b) > 0 {
		n, kind, v, x, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case kind == protowire.BytesType && n == statsOwner:
			err = row.readOwner(v)
		case kind == protowire.BytesType && n == statsEndpoint:
			endpoints = true
			err = m.readEndpoint(v)
		case kind == protowire.VarintType && n == statsIssued:
			row.issued = count(x)
		case kind == protowire.VarintType:
			row.count(n, x)
		}
		if err != nil {
			return err
		}
	}
	if !endpoints {
		m.keep(&row)
	}
	return nil
}

// keep takes a row, unless it says nothing.
func (m *loadMessage) keep(r *loadRow) {
	if r.issued|r.ok|r.failed|r.current != 0 {
		m.rows = append(m.rows, *r)
	}
}

// readEndpoint reads an UpstreamEndpointStats.
func (m *loadMessage) readEndpoint(b []byte) error {
	var row loadRow
	for len(b) > 0 {
		n, kind, v, x, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case kind == protowire.BytesType && n == statsOwner:
			row.addr, err = readAddress(v)
		case kind == protowire.VarintType && n == endpointIssued:
			row.issued = count(x)
		case kind == protowire.VarintType:
			row.count(n, x)
		}
		if err != nil {
			return err
		}
	}
	m.keep(&row)
	return nil
}

// count takes a count that localities and endpoints have under one number.
func (r *loadRow) count(n protowire.Number, x uint64) {
	switch n {
	case statsOK:
		r.ok = count(x)
	case statsInProgress:
		r.current = count(x)
	case statsFailed:
		r.failed = count(x)
	}
}

// count keeps what fits: nobody makes more calls than that.
func count(x uint64) uint32 { return uint32(min(x, math.MaxUint32)) }

// readOwner reads the Locality that counts belong to.
func (r *loadRow) readOwner(b []byte) error {
	for len(b) > 0 {
		n, kind, v, _, rest, err := nextField(b)
		if err != nil {
			return err
		}
		if b = rest; n != localitySubZone || kind != protowire.BytesType {
			continue
		}
		if r.uid = readUID(v); r.uid == 0 {
			r.tier = tierOfLocality(v)
		}
	}
	return nil
}

// readUID reads a uid as ParseUID does, without an allocation; 0: it is none.
func readUID(v []byte) views.UID {
	if len(v) < 2 || len(v) > 21 || v[0] != 'i' || v[1] == '0' {
		return 0
	}
	var n uint64
	for _, c := range v[1:] {
		if c < '0' || c > '9' || n > (math.MaxUint64-uint64(c-'0'))/10 {
			return 0
		}
		n = 10*n + uint64(c-'0')
	}
	return views.UID(n)
}

// tierOfLocality tells the tier of a locality that members share by its name.
func tierOfLocality(subZone []byte) tier {
	for t := tierFar; t < tiers; t++ {
		if s := t.suffix(); len(subZone) > len(s) && string(subZone[len(subZone)-len(s):]) == s {
			return t
		}
	}
	return tierNear
}

// readAddress reads the socket address in a core.Address. One that is not an
// IP, or none at all, is the zero value, which nobody has.
func readAddress(b []byte) (at netip.AddrPort, err error) {
	err = each(b, func(n protowire.Number, v []byte) error {
		if n != addressSocket {
			return nil
		}
		var ip netip.Addr
		var port uint16
		for len(v) > 0 {
			n, kind, text, x, rest, err := nextField(v)
			if err != nil {
				return err
			}
			switch v = rest; {
			case n == socketAddress && kind == protowire.BytesType:
				ip = readIP(text)
			case n == socketPort && kind == protowire.VarintType && x <= math.MaxUint16:
				port = uint16(x)
			}
		}
		if ip.IsValid() && port != 0 {
			at = netip.AddrPortFrom(ip, port)
		}
		return nil
	})
	return at, err
}

// readIP reads an address; IPv4, which is nearly all, without an allocation.
func readIP(v []byte) netip.Addr {
	const longest = 45 // an IPv6 address with an IPv4 tail
	var quad [4]byte
	part, digits, n := 0, 0, 0
	for _, c := range v {
		switch {
		case c >= '0' && c <= '9' && digits < 3 && (digits == 0 || n > 0):
			n, digits = 10*n+int(c-'0'), digits+1
		case c == '.' && digits > 0 && n < 256 && part < 3:
			quad[part] = byte(n)
			part, digits, n = part+1, 0, 0
		default:
			if len(v) > longest {
				return netip.Addr{}
			}
			ip, err := netip.ParseAddr(string(v))
			if err != nil {
				return netip.Addr{}
			}
			return ip.Unmap().WithZone("")
		}
	}
	if part != 3 || digits == 0 || n > 255 {
		return netip.Addr{}
	}
	quad[3] = byte(n)
	return netip.AddrFrom4(quad)
}

// readDuration reads a google.protobuf.Duration. One that is negative, or no
// duration, is 0.
func readDuration(b []byte) (time.Duration, error) {
	var seconds, nanos int64
	for len(b) > 0 {
		n, kind, _, x, rest, err := nextField(b)
		if err != nil {
			return 0, err
		}
		switch b = rest; {
		case n == 1 && kind == protowire.VarintType:
			seconds = int64(x)
		case n == 2 && kind == protowire.VarintType:
			nanos = int64(int32(x))
		}
	}
	const day = 24 * 3600
	if seconds < 0 || nanos < 0 || nanos >= int64(time.Second) {
		return 0, nil
	}
	return time.Duration(min(seconds, day))*time.Second + time.Duration(nanos), nil
}

// nextField takes a field off a message: v is the content of one that has a
// length, x that of a varint.
func nextField(b []byte) (n protowire.Number, kind protowire.Type, v []byte, x uint64, rest []byte, err error) {
	n, kind, size := protowire.ConsumeTag(b)
	if size < 0 {
		return 0, 0, nil, 0, nil, errWire
	}
	b = b[size:]
	switch kind {
	case protowire.BytesType:
		v, size = protowire.ConsumeBytes(b)
	case protowire.VarintType:
		x, size = protowire.ConsumeVarint(b)
	default:
		size = protowire.ConsumeFieldValue(n, kind, b)
	}
	if size < 0 {
		return 0, 0, nil, 0, nil, errWire
	}
	return n, kind, v, x, b[size:], nil
}
