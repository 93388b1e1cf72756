package envoy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
)

const (
	budget = 5 * time.Second  // a withdrawal (DESIGN.md §1)
	starts = 20 * time.Second // what a test needs before it begins
)

// world is a server, an operator, and a workload that calls.
type world struct {
	*testing.T
	s   *harness.Server
	api *harness.API
	web *harness.SVID
}

func start(t *testing.T) *world {
	t.Helper()
	s := harness.StartServer(t, harness.ServerConfig{})
	return &world{T: t, s: s, api: s.DialAPI(t, s.Operator(t)), web: s.CA.Mint(t, "/ns/shop/sa/web")}
}

func (w *world) envoy(name string, sotw bool) *harness.Envoy {
	w.Helper()
	return harness.StartEnvoy(w, harness.EnvoyConfig{XDS: w.s.XDS, SVID: w.web, NodeID: name, Region: "local", Zone: "a", SotW: sotw})
}

// dial is a stock grpc-go client of a service.
func (w *world) dial(target string) *harness.Caller {
	w.Helper()
	return harness.Dial(w, harness.Bootstrap{Server: w.s.XDS, SVID: w.web, NodeID: "go", Region: "local", Zone: "a"}, target)
}

// published waits until the service's view lists n members.
func (w *world) published(host string, n int) {
	w.Helper()
	harness.Eventually(w, starts, fmt.Sprintf("%s is published with %d members", host, n), func() error {
		v, err := w.api.View(host)
		if err != nil {
			return err
		}
		if got := len(harness.Listed(v, 0)); got != n {
			return fmt.Errorf("lists %d", got)
		}
		return nil
	})
}

// hosts waits until Envoy's cluster has exactly the addresses.
func (w *world) hosts(e *harness.Envoy, cluster string, want ...netip.AddrPort) {
	w.Helper()
	text := texts(want)
	harness.Eventually(w, budget, fmt.Sprintf("%s: %s is at %v", e.Name, cluster, text), func() error {
		hosts := e.Hosts(w, cluster)
		if hosts == nil {
			return fmt.Errorf("does not know the cluster")
		}
		var got []netip.AddrPort
		for _, h := range hosts {
			got = append(got, h.Addr)
		}
		if g := texts(got); !slices.Equal(g, text) {
			return fmt.Errorf("has %v", g)
		}
		return nil
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

// refusedNothing checks that Envoy has rejected no update.
func (w *world) refusedNothing(e *harness.Envoy) {
	w.Helper()
	if n := e.Rejected(w); n != 0 {
		w.Errorf("%s refused %d updates: %v", e.Name, n, e.Stats(w, `update_rejected$`))
	}
}

// backends start on addresses of their own: two instances of a service must not
// meet at one address where both serve an undeclared number.
func backends(t *testing.T, names ...string) []*harness.Backend {
	t.Helper()
	var bs []*harness.Backend
	for i, n := range names {
		bs = append(bs, harness.StartBackendAt(t, n, fmt.Sprintf("127.0.0.%d:0", 11+i)))
	}
	return bs
}

// atPort is where a backend would serve another port.
func atPort(b *harness.Backend, port int) netip.AddrPort {
	return netip.AddrPortFrom(b.Addr.Addr(), uint16(port))
}
