package xds

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
)

const (
	soon    = time.Second            // an answer that depends on nothing (C01, C02, C05) [J]
	idle    = 2 * time.Second        // an admission on an idle server (C02) [J]
	budget  = 5 * time.Second        // a withdrawal (DESIGN.md §1)
	quiet   = 700 * time.Millisecond // stands for the cases' 10 s and 20 s of nothing
	starts  = 20 * time.Second       // what a test needs before it begins
	envoyUA = "envoy"
	goUA    = "gRPC Go"
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

// at is an address that no other service or instance of the test has.
func at(service, instance int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(service >> 8), byte(service), byte(instance + 1)}), 8443)
}

// published waits until the service's view lists n members: what was applied is
// published soon after, not before the answer.
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

func (w *world) delta(react rawxds.Reaction) *rawxds.Client {
	w.Helper()
	return w.client(func(ctx context.Context) (*rawxds.Client, error) {
		return rawxds.Delta(ctx, w.s.DialXDS(w, w.web), rawxds.Node("raw-delta", envoyUA, "local", "a"), react)
	})
}

func (w *world) sotw(react rawxds.Reaction) *rawxds.Client {
	w.Helper()
	return w.client(func(ctx context.Context) (*rawxds.Client, error) {
		return rawxds.Sotw(ctx, w.s.DialXDS(w, w.web), rawxds.Node("raw-sotw", goUA, "local", "a"), react)
	})
}

// client opens a stream that lives until the test ends, and then checks that the
// server broke no rule on it.
func (w *world) client(open func(context.Context) (*rawxds.Client, error)) *rawxds.Client {
	w.Helper()
	c, err := open(context.Background())
	w.ok(err)
	w.Cleanup(func() {
		c.Close()
		if v := c.Violations(); len(v) > 0 {
			w.Errorf("the server broke rules: %q", v)
		}
	})
	return c
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// response waits for the n-th response of a type.
func (w *world) response(c *rawxds.Client, typ string, n int, within time.Duration) *rawxds.Response {
	w.Helper()
	r, err := c.Count(typ, n, within)
	w.ok(err)
	return r
}

// silent checks that no further response of the type comes for a while.
func (w *world) silent(c *rawxds.Client, typ string) {
	w.Helper()
	n := len(c.Responses(typ))
	err := c.Await(quiet, func() bool { return len(c.Responses(typ)) > n })
	switch {
	case err == nil:
		r := c.Responses(typ)[n]
		w.Errorf("a response that nobody asked for: %v, removed %v", r.Names(), r.Removed)
	case !errors.Is(err, rawxds.ErrWait):
		w.Fatal(err)
	}
}

// holds waits until the client's assignment of a service has exactly the addresses.
func (w *world) holds(c *rawxds.Client, host string, within time.Duration, want ...netip.AddrPort) {
	w.Helper()
	var text []string
	for _, a := range want {
		text = append(text, a.String())
	}
	slices.Sort(text)
	var got []string
	err := c.Await(within, func() bool {
		res, ok := c.Held(rawxds.EDS)[host]
		if !ok {
			return false
		}
		var err error
		got, err = res.Addresses()
		return err == nil && slices.Equal(got, text)
	})
	if err != nil {
		w.Fatalf("%s at %v: %v (holds %v)", host, text, err, got)
	}
}

// same compares two lists without regard to order.
func (w *world) same(what string, got []string, want ...string) {
	w.Helper()
	got, want = slices.Clone(got), slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.Errorf("%s: %v, want %v", what, got, want)
	}
}
