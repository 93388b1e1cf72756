package xds

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/views"
)

func TestEnvoyAcceptsItsRenderingAndRoutesByIt(t *testing.T) {
	_, ms := backends(t, 17, 3)
	ms[1].Weight, ms[1].State = 50, views.Degraded
	ms[2].Zone, ms[2].State = "b", views.Unknown
	_, others := backends(t, 40, 1)
	guarded := viewOf(1, ms...)
	guarded.Guard.Tripped, guarded.Confidence = true, views.ConfidenceDegraded
	ledger := viewOf(1, others...)
	ledger.Name = views.Name{Namespace: "shop", Service: "ledger"}
	ledger.PreferZone = true
	empty := viewOf(1)
	empty.Name = views.Name{Namespace: "shop", Service: "quotes"}
	s, e := envoyFor(t, "a", guarded, ledger, empty)
	for _, authority := range []string{"checkout.shop", "checkout.shop:9090"} {
		c := harness.DialPlain(t, e.Outbound.String(), authority)
		c.WaitFor(t, 10*time.Second)
		within(t, c.Calls(500, time.Second), 500, map[string]float64{"i17": 0.4, "i18": 0.2, "i19": 0.4})
	}
	harness.DialPlain(t, e.Outbound.String(), "ledger.shop").WaitOnly(t, 10*time.Second, "i40")
	if got := harness.DialPlain(t, e.Outbound.String(), "quotes.shop").Calls(3, time.Second); got["ERR Unavailable"] != 3 {
		t.Errorf("a service without members answered %v", got)
	}
	if got := harness.DialPlain(t, e.Outbound.String(), "nobody.shop").Calls(3, time.Second); got["ERR Unimplemented"] != 3 {
		t.Errorf("a name that nobody has answered %v", got)
	}
	s.set(viewOf(2, ms[2]))
	harness.DialPlain(t, e.Outbound.String(), "checkout.shop").WaitOnly(t, 10*time.Second, "i19")
	s.assertNoNACK(t)
	assertNoneRejected(t, e)
}

func assertNoneRejected(t *testing.T, e *harness.Envoy) {
	t.Helper()
	if n := e.Rejected(t); n != 0 {
		t.Errorf("Envoy refused %d updates", n)
	}
}

// envoyFor starts a plain server and an Envoy that is LIVE with the views given.
func envoyFor(t *testing.T, zone string, vs ...*views.View) (*plainServer, *harness.Envoy) {
	t.Helper()
	s := startPlainServer(t, rendering{envoy: true, zone: zone})
	s.rd.outbound = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(harness.FreeBlock(t)))
	s.set(vs...)
	e := harness.StartEnvoy(t, harness.EnvoyConfig{XDS: s.addr, NodeID: "envoy", Zone: zone, Outbound: int(s.rd.outbound.Port())})
	e.WaitLive(t, 20*time.Second)
	return s, e
}

// A declared number chooses the port, and an HTTP port is spoken to in HTTP/1.1.
func TestEnvoyRoutesByTheDeclaredNumber(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s to %s", r.Proto, r.Host) }))
	defer web.Close()
	_, ms := backends(t, 17, 1)
	ms[0].Ports = append(ms[0].Ports, views.PortNumber{Name: "admin", Number: netip.MustParseAddrPort(web.Listener.Addr().String()).Port()})
	s, e := envoyFor(t, "a", viewOf(1, ms...))
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, host := range []string{"checkout.shop:9091", "Checkout.Shop:9091"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.Outbound.String()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "HTTP/1.1 to "+host {
			t.Errorf("%s: %s %q", host, resp.Status, body)
		}
	}
	harness.DialPlain(t, e.Outbound.String(), "checkout.shop:9090").WaitOnly(t, 10*time.Second, "i17")
	s.assertNoNACK(t)
	assertNoneRejected(t, e)
}

// A call that hangs until its caller's deadline is counted against the endpoint
// by Envoy, which needs the route's gRPC timeout settings.
func TestEnvoyCountsAHangAgainstTheEndpoint(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	m := member(17)
	at := netip.MustParseAddrPort(silent.Addr().String())
	m.Endpoint.Addr, m.Ports = at.Addr(), []views.PortNumber{{Name: "grpc", Number: at.Port()}}
	_, e := envoyFor(t, "a", viewOf(1, m))
	if got := harness.DialPlain(t, e.Outbound.String(), "checkout.shop").Calls(3, 300*time.Millisecond); len(got) != 1 {
		t.Errorf("calls of a silent endpoint: %v", got)
	}
	harness.Eventually(t, 5*time.Second, "the hangs are counted", func() error {
		var n int64
		for _, v := range e.Stats(t, `^cluster\.checkout\.shop\.upstream_rq_timeout$`) {
			n += v
		}
		if n != 3 {
			return fmt.Errorf("%d of 3: %v", n, e.Stats(t, `checkout.shop.*upstream_rq`))
		}
		return nil
	})
}

func TestEnvoyPrefersItsZoneAndFallsBack(t *testing.T) {
	_, ms := backends(t, 17, 3)
	ms[1].Zone, ms[2].Zone = "b", "b"
	ms[2].LastResort, ms[2].Weight = true, 1
	preferring := func(seq uint64, ms ...*views.Member) *views.View {
		v := viewOf(seq, ms...)
		v.PreferZone = true
		return v
	}
	s, e := envoyFor(t, "a", preferring(1, ms...))
	c := harness.DialPlain(t, e.Outbound.String(), "checkout.shop")
	for i, want := range []string{"i17", "i18", "i19"} {
		s.set(preferring(uint64(2+i), ms[i:]...))
		c.WaitOnly(t, 10*time.Second, want)
	}
	if hosts := e.Hosts(t, "checkout.shop"); len(hosts) != 1 || hosts[0].Zone != "b" || hosts[0].Weight != 1 {
		t.Errorf("hosts %v", hosts)
	}
	s.assertNoNACK(t)
	assertNoneRejected(t, e)
}
