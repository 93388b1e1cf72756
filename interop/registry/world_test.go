package registry

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
)

const (
	budget = 5 * time.Second  // a change reaches every stream (C31, DESIGN.md §1)
	starts = 20 * time.Second // what a test needs before it begins
	zone   = "svc.sightline.test."
)

// world is a server, an operator, and a workload that asks.
type world struct {
	*testing.T
	s   *harness.Server
	api *harness.API
	web *harness.SVID
}

func start(t *testing.T, cfg harness.ServerConfig) *world {
	t.Helper()
	s := harness.StartServer(t, cfg)
	return &world{T: t, s: s, api: s.DialAPI(t, s.Operator(t)), web: s.CA.Mint(t, "/ns/shop/sa/web")}
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// delta opens a delta stream that is closed, and has broken no rule, at the end.
func (w *world) delta() *rawxds.Client {
	w.Helper()
	c, err := rawxds.Delta(context.Background(), w.s.DialXDS(w, w.web), rawxds.Node("delta", "envoy", "local", "a"), nil)
	w.ok(err)
	return w.lasting(c)
}

// sotw is delta for state of the world.
func (w *world) sotw() *rawxds.Client {
	w.Helper()
	c, err := rawxds.Sotw(context.Background(), w.s.DialXDS(w, w.web), rawxds.Node("sotw", "gRPC Go", "local", "a"), nil)
	w.ok(err)
	return w.lasting(c)
}

func (w *world) lasting(c *rawxds.Client) *rawxds.Client {
	w.Cleanup(func() {
		c.Close()
		if v := c.Violations(); len(v) > 0 {
			w.Errorf("the server broke rules: %q", v)
		}
	})
	return c
}

// holds waits until the client's assignment of a service has exactly the addresses.
func (w *world) holds(c *rawxds.Client, host string, within time.Duration, want ...netip.AddrPort) {
	w.Helper()
	text := texts(want)
	var got []string
	if err := c.Await(within, func() bool {
		res, ok := c.Held(rawxds.EDS)[host]
		if !ok {
			return false
		}
		got, _ = res.Addresses()
		return slices.Equal(got, text)
	}); err != nil {
		w.Fatalf("%s at %v: %v (holds %v)", host, text, err, got)
	}
}

// lists waits until Resolve lists exactly the addresses on the default port.
func (w *world) lists(host string, within time.Duration, want ...netip.AddrPort) {
	w.Helper()
	harness.Eventually(w, within, fmt.Sprintf("%s is at %v", host, want), func() error {
		v, err := w.api.View(host)
		if err == nil && !slices.Equal(harness.Listed(v, 0), texts(want)) {
			err = fmt.Errorf("lists %v", harness.Listed(v, 0))
		}
		return err
	})
}

func texts(addrs []netip.AddrPort) []string {
	list := make([]string, 0, len(addrs))
	for _, a := range addrs {
		list = append(list, a.String())
	}
	slices.Sort(list)
	return list
}

// at is an address that no other instance of the test has.
func at(service, instance int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(service >> 8), byte(service), byte(instance + 1)}), uint16(7000+instance))
}

func itoa(n int) string { return strconv.Itoa(n) }
