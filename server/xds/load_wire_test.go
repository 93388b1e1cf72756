package xds

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/views"
)

// dumps are reports as real clients sent them: grpc-go, C-core, Java, Envoy.
var dumps = []string{
	`{"clusterStats":[{"clusterName":"checkout.shop","upstreamLocalityStats":[{"locality":{"region":"r","zone":"z","subZone":"i1"},"totalSuccessfulRequests":"50","totalIssuedRequests":"50"},{"locality":{"region":"r","zone":"z","subZone":"i2"},"totalErrorRequests":"42","totalIssuedRequests":"42"}],"loadReportInterval":"0.999986874s"}]}`,
	`{"clusterStats":[{"clusterName":"checkout.shop","upstreamLocalityStats":[{"locality":{"region":"r","zone":"z","subZone":"i1"},"totalSuccessfulRequests":"50","totalIssuedRequests":"50","totalRequestsInProgress":"3"},{"locality":{"region":"r","zone":"z","subZone":"i3"}}],"loadReportInterval":"1.001s"}]}`,
	`{"node":{"id":"n1","userAgentName":"gRPC Java","locality":{"zone":"z"}},"clusterStats":[{"clusterName":"checkout.shop","clusterServiceName":"checkout.shop","upstreamLocalityStats":[{"locality":{"subZone":"g12-far"},"totalIssuedRequests":"1","priority":1}],"totalDroppedRequests":"7","droppedRequests":[{"category":"empty","droppedCount":"7"}],"loadReportInterval":"2s"}]}`,
	`{"node":{"id":"e","userAgentName":"envoy"},"clusterStats":[{"clusterName":"sightline","loadReportInterval":"2s"},{"clusterName":"checkout.shop:9091","upstreamLocalityStats":[{"locality":{},"totalIssuedRequests":"12","totalSuccessfulRequests":"11","totalErrorRequests":"2","upstreamEndpointStats":[{"address":{"socketAddress":{"address":"10.0.0.1","portValue":9091}},"totalSuccessfulRequests":"11","totalIssuedRequests":"12"},{"address":{"socketAddress":{"address":"fd00::1","portValue":9091}},"totalErrorRequests":"2","loadMetricStats":[{"metricName":"m","totalMetricValue":1.5}]}]}],"loadReportInterval":"2.000s"}]}`,
	`{}`,
}

func wireOf(t testing.TB, text string) []byte {
	t.Helper()
	var m loadstatsv3.LoadStatsRequest
	if err := protojson.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// slowly reads a report by its generated messages, and writes it as brief does.
func slowly(m *loadstatsv3.LoadStatsRequest) []string {
	var lines []string
	for _, c := range m.ClusterStats {
		name := c.ClusterName
		n, ok := resolveName(name)
		if !ok || len(name) > maxName {
			n = resourceName{}
		}
		d := time.Duration(0)
		if i := c.LoadReportInterval; i.GetSeconds() >= 0 && i.GetNanos() >= 0 && i.GetNanos() < 1e9 {
			d = time.Duration(min(i.GetSeconds(), 86400))*time.Second + time.Duration(i.GetNanos())
		}
		for _, l := range c.UpstreamLocalityStats {
			sub := l.GetLocality().GetSubZone()
			uid, err := views.ParseUID(sub)
			if len(l.UpstreamEndpointStats) == 0 {
				r := loadRow{issued: count(l.TotalIssuedRequests), ok: count(l.TotalSuccessfulRequests), failed: count(l.TotalErrorRequests), current: count(l.TotalRequestsInProgress)}
				if err == nil {
					r.uid = uid
				} else if strings.HasSuffix(sub, "-far") && sub != "-far" {
					r.tier = tierFar
				} else if strings.HasSuffix(sub, "-last") && sub != "-last" {
					r.tier = tierLast
				}
				lines = append(lines, line(n, d, r)...)
			}
			for _, e := range l.UpstreamEndpointStats {
				r := loadRow{issued: count(e.TotalIssuedRequests), ok: count(e.TotalSuccessfulRequests), failed: count(e.TotalErrorRequests), current: count(e.TotalRequestsInProgress)}
				s := e.GetAddress().GetSocketAddress()
				if ip, err := netip.ParseAddr(s.GetAddress()); err == nil && s.GetPortValue() > 0 && s.GetPortValue() < 65536 {
					r.addr = netip.AddrPortFrom(ip.Unmap().WithZone(""), uint16(s.GetPortValue()))
				}
				lines = append(lines, line(n, d, r)...)
			}
		}
	}
	return lines
}

func line(n resourceName, d time.Duration, r loadRow) []string {
	if r.issued+r.ok+r.failed+r.current == 0 && max(r.issued, r.ok, r.failed, r.current) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%+v %s %+v", n, d, r)}
}

func (m *loadMessage) lines() []string {
	var lines []string
	for _, p := range m.parts {
		for _, r := range m.rows[p.from:p.to] {
			lines = append(lines, line(p.name, p.interval, r)...)
		}
	}
	return lines
}

// FuzzLoadReport: whatever a client sends is read without a panic and within
// its size; a report that protobuf has written is read as protobuf reads it.
func FuzzLoadReport(f *testing.F) {
	for _, text := range dumps {
		b := wireOf(f, text)
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := loadMessage{limit: 1 << 20, wantNode: true}
		err := m.readWire(b)
		if rows := len(m.rows); rows > len(b)/2 {
			t.Fatalf("%d rows out of %d bytes", rows, len(b))
		}
		for _, p := range m.parts {
			if p.from >= p.to || p.to > len(m.rows) || p.interval < 0 || err == nil && p.interval > m.interval {
				t.Fatalf("part %+v of %d rows", p, len(m.rows))
			}
		}
		var ref loadstatsv3.LoadStatsRequest
		if proto.Unmarshal(b, &ref) != nil {
			return
		}
		canonical, err := proto.Marshal(&ref)
		if err != nil {
			return
		}
		if err := m.readWire(canonical); err != nil {
			t.Fatalf("a valid report is refused: %v", err)
		}
		if got, want := m.lines(), slowly(&ref); !slices.Equal(got, want) {
			t.Fatalf("read as\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// What a stream keeps between reports is bounded by what reports usually are.
func TestLoadMessageKeepsLittle(t *testing.T) {
	m := loadMessage{limit: 16 << 20}
	for i := range 3 * keptNames {
		c := &endpointv3.ClusterStats{ClusterName: fmt.Sprintf("s%d.shop", i), LoadReportInterval: durationpb.New(time.Second)}
		b, err := proto.Marshal(&loadstatsv3.LoadStatsRequest{ClusterStats: []*endpointv3.ClusterStats{c}})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.readWire(b); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.names) > keptNames+1 {
		t.Errorf("%d names are remembered", len(m.names))
	}
	if err := m.readWire(localities(t, 3*keptRows)); err != nil || len(m.rows) != 3*keptRows {
		t.Fatalf("%d rows, %v", len(m.rows), err)
	}
	if err := m.readWire(localities(t, 1)); err != nil || cap(m.rows) > keptRows {
		t.Errorf("room for %d rows is kept, %v", cap(m.rows), err)
	}
}

// Large reports are read a few at a time, and small ones beside them; one that
// cannot be read makes room as well.
func TestLargeLoadReportsAreReadAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := localities(t, largeReport/10)
		if len(large) <= largeReport {
			t.Fatalf("%d bytes are not large", len(large))
		}
		room := make(chan struct{}, 1)
		first, second, small := loadMessage{limit: 16 << 20, large: room}, loadMessage{limit: 16 << 20, large: room}, loadMessage{limit: 16 << 20, large: room}
		if err := first.readWire(append(large[:len(large):len(large)], 0xff)); err == nil {
			t.Fatal("what cannot be read was read")
		}
		read := make(chan error)
		go func() { read <- second.readWire(large) }()
		synctest.Wait()
		if err := small.readWire(localities(t, 1)); err != nil || len(small.rows) != 1 {
			t.Errorf("a small one: %v, %d rows", err, len(small.rows))
		}
		small.release()
		select {
		case err := <-read:
			t.Errorf("two large ones at once: %v", err)
		default:
		}
		first.release()
		first.release()
		if err := <-read; err != nil || len(second.rows) != largeReport/10 {
			t.Errorf("the second: %v, %d rows", err, len(second.rows))
		}
		if len(room) != 1 {
			t.Errorf("%d are counted", len(room))
		}
		second.release()
		if len(room) != 0 {
			t.Errorf("%d are counted after all", len(room))
		}
	})
}

// localities is a report of a gRPC client on n instances.
func localities(t testing.TB, n int) []byte {
	c := &endpointv3.ClusterStats{ClusterName: "checkout.shop", LoadReportInterval: durationpb.New(loadInterval)}
	for i := range n {
		c.UpstreamLocalityStats = append(c.UpstreamLocalityStats, &endpointv3.UpstreamLocalityStats{
			Locality:                &corev3.Locality{Region: "local", Zone: "a", SubZone: views.UID(1832519379 + i).String()},
			TotalSuccessfulRequests: 90, TotalErrorRequests: 10, TotalIssuedRequests: 100,
		})
	}
	return requestOf(t, c)
}

// endpoints is a report of Envoy on n instances.
func endpoints(t testing.TB, n int) []byte {
	l := &endpointv3.UpstreamLocalityStats{Locality: &corev3.Locality{Region: "local", Zone: "a"}}
	for i := range n {
		m := member(views.UID(1832519379 + i))
		l.UpstreamEndpointStats = append(l.UpstreamEndpointStats, &endpointv3.UpstreamEndpointStats{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: m.Endpoint.Addr.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 9090}}}},
			TotalSuccessfulRequests: 90, TotalErrorRequests: 10, TotalIssuedRequests: 100,
		})
	}
	return requestOf(t, &endpointv3.ClusterStats{ClusterName: "checkout.shop", LoadReportInterval: durationpb.New(loadInterval),
		UpstreamLocalityStats: []*endpointv3.UpstreamLocalityStats{l}})
}

func requestOf(t testing.TB, cs ...*endpointv3.ClusterStats) []byte {
	b, err := proto.Marshal(&loadstatsv3.LoadStatsRequest{ClusterStats: cs})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// BenchmarkLoadReport takes in whole reports, from the wire to the row that is
// handed on; wire alone beside protobuf's own decoding.
func BenchmarkLoadReport(b *testing.B) {
	const n = 133
	var ms []*views.Member
	for i := range n {
		ms = append(ms, member(views.UID(1832519379+i)))
	}
	v := viewOf(1, ms...)
	snap := views.NewSnapshot(true, v)
	who := identity.Principal{ID: identity.MustParse("spiffe://test/ns/shop/sa/web")}
	taken := 0
	s := New(Config{
		Snapshot: func() *views.Snapshot { return snap },
		Policy:   func() *authz.Policy { return &authz.Policy{TrustDomain: "test", Default: authz.WholeTrustDomain} },
		Loads:    func(r LoadReport) { taken += len(r.Entries) },
	})
	s.since = time.Now().Add(-time.Hour)
	ads := &stream{srv: s, who: who, met: true, kind: kindOf("gRPC Go", false), shape: rendering{size: views.SizeGo, zone: "a"}}
	r := ads.know("checkout.shop")
	r.set(eds, subscribed|held)
	ads.watched = map[nameID]holding{r.id: {{view: v, acked: time.Now().Add(-time.Hour)}}}
	s.connections.join("c1", ads)
	perEntry := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/entry")
	}
	for name, c := range map[string]struct {
		agent string
		wire  []byte
	}{"grpc": {"gRPC Go", localities(b, n)}, "envoy": {"envoy", endpoints(b, n)}} {
		b.Run(name, func(b *testing.B) {
			l := &loadStream{srv: s, who: who, scope: s.scopeOf(who), key: "c1", kind: kindOf(c.agent, false), spoke: make(map[views.Name]time.Time),
				msg: loadMessage{limit: limits.Default().XDS.LoadReportBytes}}
			taken = 0
			b.ReportAllocs()
			for b.Loop() {
				if err := l.msg.readWire(c.wire); err != nil {
					b.Fatal(err)
				}
				l.take(time.Now())
			}
			perEntry(b)
			if taken != b.N*n {
				b.Fatalf("%d entries of %d", taken, b.N*n)
			}
		})
		b.Run(name+"/wire", func(b *testing.B) {
			m := loadMessage{limit: 1 << 20}
			for b.Loop() {
				if err := m.readWire(c.wire); err != nil {
					b.Fatal(err)
				}
			}
			perEntry(b)
		})
		b.Run(name+"/protobuf", func(b *testing.B) {
			for b.Loop() {
				var m loadstatsv3.LoadStatsRequest
				if err := proto.Unmarshal(c.wire, &m); err != nil {
					b.Fatal(err)
				}
			}
			perEntry(b)
		})
	}
}

// A large report leaves nothing behind on a stream that says no more after it.
func TestLargeLoadReportIsNotKept(t *testing.T) {
	m := &loadstatsv3.LoadStatsRequest{}
	for i := range 3 * keptNames {
		m.ClusterStats = append(m.ClusterStats, &endpointv3.ClusterStats{ClusterName: fmt.Sprintf("c%d.shop", i),
			UpstreamLocalityStats: []*endpointv3.UpstreamLocalityStats{{TotalIssuedRequests: 1}}})
	}
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	msg := loadMessage{limit: len(b)}
	if err := msg.readWire(b); err != nil || len(msg.rows) != 3*keptNames {
		t.Fatalf("%v, %d rows", err, len(msg.rows))
	}
	msg.release()
	if cap(msg.rows) > keptRows || cap(msg.parts) > keptParts || len(msg.names) > keptNames {
		t.Errorf("kept %d rows, %d parts, %d names", cap(msg.rows), cap(msg.parts), len(msg.names))
	}
	small := wireOf(t, dumps[0])
	if err := msg.readWire(small); err != nil || len(msg.rows) != 2 {
		t.Fatalf("%v, %d rows", err, len(msg.rows))
	}
	msg.release()
	if cap(msg.rows) == 0 || cap(msg.parts) == 0 || len(msg.names) == 0 {
		t.Error("what every report needs is not kept")
	}
}
