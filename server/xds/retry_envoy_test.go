package xds

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/views"
)

// An instance that died and is still listed costs no call through Envoy: what
// its kernel refuses is offered to another member.
func TestEnvoyOffersARefusedCallToAnotherMember(t *testing.T) {
	_, ms := backends(t, 17, 3)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(gone.Addr().String())
	_ = gone.Close()
	dead := member(30)
	dead.Endpoint.Addr, dead.Ports = at.Addr(), []views.PortNumber{{Name: "grpc", Number: at.Port()}}
	_, e := envoyFor(t, "a", viewOf(1, append(ms, dead)...))
	c := harness.DialPlain(t, e.Outbound.String(), "checkout.shop")
	c.WaitFor(t, 10*time.Second)
	for outcome, n := range c.Calls(400, time.Second) {
		if outcome != "i17" && outcome != "i18" && outcome != "i19" {
			t.Errorf("%d calls ended with %s", n, outcome)
		}
	}
	var refused int64
	for _, v := range e.Stats(t, `^cluster\.checkout\.shop\.upstream_cx_connect_fail$`) {
		refused += v
	}
	if refused == 0 {
		t.Error("the dead member was never tried: this shows nothing")
	}
}
