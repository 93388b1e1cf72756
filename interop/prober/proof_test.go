package prober

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// beside is an address of this machine that is not loopback's: probers of a
// production server dial no other.
func beside(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr().String()
		}
	}
	t.Fatal("this test needs an IPv4 address beside loopback's, and the machine has none")
	return ""
}

// workload serves mutual TLS at an address of its own, as an identity.
func (w *world) workload(host string, who *harness.SVID) netip.AddrPort {
	w.Helper()
	l, err := tls.Listen("tcp", host+":0", who.ServerTLS())
	w.ok(err)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				_, _ = io.Copy(io.Discard, c) // the handshake, and what a stranger says
			})
		}
	})
	w.Cleanup(func() { _ = l.Close(); conns.Wait() })
	return netip.MustParseAddrPort(l.Addr().String())
}

// registers has a workload register an instance of its service at an address.
func (w *world) registers(name string, who *harness.SVID, at netip.AddrPort) (uid string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), starts)
	defer cancel()
	i := harness.PutInstance(name+".shop", "", at).GetPutInstance()
	r, err := w.s.DialAPI(w, who).Registry.RegisterInstance(ctx, &registryv1.RegisterInstanceRequest{Instance: i})
	w.ok(err)
	return r.GetInstance().GetUid()
}

// An address that an instance registered itself is listed once a prober has met
// the registered identity there; whoever registers the address of another is
// never listed, and takes it from nobody.
func TestDialBackProvesAnAddress(t *testing.T) {
	t.Parallel()
	w := startAs(t, "server")
	host := beside(t)
	orders, thief := w.s.CA.Mint(t, "/ns/shop/sa/orders"), w.s.CA.Mint(t, "/ns/shop/sa/thief")
	w.api.Apply(t, harness.PutService("orders.shop"), harness.PutService("thief.shop"))
	w.ok(w.client.Subscribe(rawxds.EDS, "orders.shop", "thief.shop"))
	place := w.workload(host, orders)
	w.registers("orders", orders, place)
	stolen := w.registers("thief", thief, place)

	s := &service{world: w, host: "orders.shop", name: "orders"}
	none := &service{world: w, host: "thief.shop", name: "thief"}
	time.Sleep(2 * time.Second)
	s.holds(time.Second) // nobody has proved it
	p := w.proberWith("p1", "z1")
	w.proberWith("p2", "z2")
	s.holds(starts, place)
	s.dnsLists(5*time.Second, place)
	harness.Eventually(t, starts, "a prober says who answered", func() error {
		if _, ok := p.saw(stolen, "wrong identity", time.Time{}); !ok {
			return io.EOF
		}
		return nil
	})
	time.Sleep(5 * time.Second)
	s.holds(time.Second, place)
	none.holds(time.Second)
}
