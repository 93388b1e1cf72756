package xds_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/server/xds"
	"github.com/sightlinedev/sightline/views"
)

// loaded is what one kind of client reported of an instance.
type loaded struct {
	entry    xds.LoadEntry // summed up
	unpicked int           // reports that it was never picked
}

func (r *region) loaded(k xds.LoadKind, uid views.UID) (sum loaded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.loads {
		for _, e := range l.Entries {
			if l.Kind != k || e.UID != uid {
				continue
			}
			sum.entry.Issued += e.Issued
			sum.entry.OK += e.OK
			sum.entry.Failed += e.Failed
			if e.Weight > 0 && e.Issued+e.OK+e.Failed+e.InProgress == 0 {
				sum.unpicked++
			}
		}
	}
	return sum
}

// less is what was reported since then.
func (l loaded) less(o loaded) loaded {
	l.entry.Issued -= o.entry.Issued
	l.entry.OK -= o.entry.OK
	l.entry.Failed -= o.entry.Failed
	l.unpicked -= o.unpicked
	return l
}

// quiet waits until everything that was called is reported, and returns what was
// reported of the first two instances.
func (r *region) quiet(callers map[xds.LoadKind]*harness.Caller) map[xds.LoadKind][2]loaded {
	r.Helper()
	before, reports, since := make(map[xds.LoadKind][2]loaded), -1, time.Now()
	harness.Eventually(r, 20*time.Second, "no more reports come", func() error {
		n := r.told()
		if n != reports {
			reports, since = n, time.Now()
		}
		if time.Since(since) < 3*time.Second {
			return fmt.Errorf("the last of %d came a moment ago", n)
		}
		return nil
	})
	for k := range callers {
		before[k] = [2]loaded{r.loaded(k, 1), r.loaded(k, 2)}
	}
	return before
}

// told is the number of reports of calls.
func (r *region) told() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.loads {
		if len(l.Entries) > 0 {
			n++
		}
	}
	return n
}

// Stock clients, with nothing of ours in them, report each call that they make
// at the instance that took it. An instance that refuses connections shows as
// errors from Envoy, and from grpc-go as one that was never picked.
func TestRealClientsReportTheirCallsPerInstance(t *testing.T) {
	r := startRegion(t)
	bs := backend(t, "one", "two")
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	refusing := &harness.Backend{Name: "refusing", Addr: netip.MustParseAddrPort(closed.Addr().String())}
	must(t, closed.Close())
	r.set("checkout.shop", grpcPort, append(bs, refusing)...)
	bs[1].Fail(codes.Internal)
	e := r.envoy("delta", false)
	e.WaitLive(t, 10*time.Second)
	callers := map[xds.LoadKind]*harness.Caller{
		xds.GRPCLoad:  r.dial("checkout.shop"),
		xds.EnvoyLoad: harness.DialPlain(t, e.Outbound.String(), "checkout.shop"),
	}
	made := make(map[xds.LoadKind]map[string]int)
	call := func() {
		for k, c := range callers {
			if made[k] == nil {
				made[k] = make(map[string]int)
			}
			for answer, n := range c.Calls(30, time.Second) {
				made[k][answer] += n
			}
		}
	}
	harness.Eventually(t, 30*time.Second, "the refusing instance shows", func() error {
		call()
		envoy, grpc := r.loaded(xds.EnvoyLoad, 3), r.loaded(xds.GRPCLoad, 3)
		if envoy.entry.Failed == 0 || envoy.entry.Issued != 0 || grpc.unpicked == 0 || grpc.entry != (xds.LoadEntry{}) {
			return fmt.Errorf("Envoy says %+v, grpc-go %+v", envoy, grpc)
		}
		return nil
	})
	// What Envoy did before its first report began is in none.
	before := r.quiet(callers)
	clear(made)
	call()
	harness.Eventually(t, 10*time.Second, "each call is reported", func() error {
		for k := range callers {
			one, two := r.loaded(k, 1).less(before[k][0]), r.loaded(k, 2).less(before[k][1])
			ok, bad := uint32(made[k]["one"]), uint32(made[k]["ERR Internal"])
			switch {
			case ok == 0 || one.entry != xds.LoadEntry{Issued: ok, OK: ok} || one.unpicked > 0:
				return fmt.Errorf("%s: of %v, instance 1 is said to have %+v", k, made[k], one)
			case bad == 0 || two.entry != xds.LoadEntry{Issued: bad, Failed: bad} || two.unpicked > 0:
				return fmt.Errorf("%s: of %v, instance 2 is said to have %+v", k, made[k], two)
			}
		}
		return nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.drops, xds.DropInterval) // begun before the server was there
	for why, n := range r.drops {
		t.Errorf("%d entries were dropped: %s", n, why)
	}
	for _, l := range r.loads {
		if l.Interval < 500*time.Millisecond || l.Interval > 4*time.Second || l.Who.ID.String() != "spiffe://region.test/ns/shop/sa/web" {
			t.Errorf("a report of %s over %s", l.Who, l.Interval)
		}
	}
}
