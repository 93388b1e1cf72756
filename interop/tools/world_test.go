package tools

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
)

const (
	starts = 20 * time.Second
	zone   = "svc.sightline.test."
)

// world is a server, an operator, and a workload that asks.
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

func (w *world) dig(question ...string) harness.DNSAnswer {
	w.Helper()
	return harness.RunDig(w, w.s.DNS, question...)
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
