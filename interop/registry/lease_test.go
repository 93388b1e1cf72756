package registry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// The lease of C32: the default term, renewed a little more often than each
// third of it, and the latest end of an instance that stopped renewing.
const (
	term       = 25 * time.Second
	renewEvery = 8 * time.Second
	goneWithin = 30 * time.Second
)

// holder is a workload that holds the lease of an instance, as a library does:
// it renews while it can, and holds the same instance again after an outage.
type holder struct {
	api      *harness.API
	instance *registryv1.Instance
	slow     time.Duration // waited before it comes back after an outage

	mu      sync.Mutex
	renewed time.Time // when its last renewal was answered
	uids    []string  // it was registered under
	stalled chan struct{}
}

// hold starts it; it ends with the test.
func (w *world) hold(api *harness.API, host, label string, at netip.AddrPort) *holder {
	w.Helper()
	i := harness.PutInstance(host, label, at).GetPutInstance()
	h := &holder{api: api, instance: i, stalled: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			h.stream(ctx)
			pause(ctx, h.slow+50*time.Millisecond+rand.N(100*time.Millisecond))
		}
	}()
	w.Cleanup(func() { cancel(); <-done })
	return h
}

// stream holds until the stream breaks.
func (h *holder) stream(ctx context.Context) {
	stream, err := h.api.Registry.HoldInstance(ctx)
	if err != nil {
		return
	}
	frame := &registryv1.HoldInstanceRequest{Frame: &registryv1.HoldInstanceRequest_Register{Register: h.instance}}
	for {
		_ = stream.Send(frame) // a failure's reason is in Recv, and an outage is not looked into
		answer, err := stream.Recv()
		if err != nil {
			return
		}
		h.mu.Lock()
		h.renewed = time.Now()
		if i := answer.GetInstance(); i != nil {
			h.instance.Uid = i.GetUid()
			h.uids = append(h.uids, i.GetUid())
		}
		stalled := h.stalled
		h.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-stalled: // as a process that is stopped: the stream stays open and says nothing
			<-ctx.Done()
			return
		case <-time.After(renewEvery):
		}
		frame = &registryv1.HoldInstanceRequest{}
	}
}

// stall stops it from renewing, and returns when it last did.
func (h *holder) stall() (renewed time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.stalled)
	return h.renewed
}

func (h *holder) registered() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.uids)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// leased is a world with a service, a workload that serves it, and addresses.
func leased(t *testing.T) (w *world, serve *harness.API) {
	t.Helper()
	w = start(t, harness.ServerConfig{})
	w.api.Apply(t, harness.WithoutRamp("orders.shop"), harness.PutService("orders.shop"))
	return w, w.s.DialAPI(t, w.s.CA.Mint(t, "/ns/shop/sa/orders"))
}

// dnsLists fails unless DNS lists exactly the addresses by a moment.
func (w *world) dnsLists(host string, by time.Time, want ...netip.AddrPort) {
	w.Helper()
	var ips []string
	for _, a := range want {
		ips = append(ips, a.Addr().String())
	}
	slices.Sort(ips)
	harness.Eventually(w, time.Until(by), fmt.Sprintf("DNS lists %v", ips), func() error {
		got := harness.RunDig(w, w.s.DNS, host+"."+zone, "A").Data("A")
		slices.Sort(got)
		if !slices.Equal(got, ips) {
			return fmt.Errorf("DNS lists %v", got)
		}
		return nil
	})
}

// C32, 1: an instance that stops renewing is gone from the assignment and from
// DNS after its term and within 30 s of its last renewal; one that is stopped as
// a process likewise.
func TestC32LeaseRunsOnce(t *testing.T) {
	t.Parallel()
	w, serve := leased(t)
	var addrs []netip.AddrPort
	var holders []*holder
	for i := range 3 {
		addrs = append(addrs, at(32, i))
		holders = append(holders, w.hold(serve, "orders.shop", fmt.Sprintf("orders-%d", i), addrs[i]))
	}
	addrs = append(addrs, at(32, 3))
	who := w.s.CA.Mint(t, "/ns/shop/sa/orders")
	process := harness.Start(t, "orders-3", harness.SightlineBinary(t), nil, "instance", "register", "shop/orders", "--label", "orders-3",
		"--address", addrs[3].String(), "--zone", "a", "--api", w.s.API, "--cert", who.CertFile, "--key", who.KeyFile, "--bundle", who.BundleFile)
	c := w.delta()
	w.ok(c.Subscribe(rawxds.EDS, "orders.shop"))
	w.holds(c, "orders.shop", starts, addrs...)

	process.Signal(syscall.SIGSTOP)
	stopped := time.Now()
	defer process.Signal(syscall.SIGCONT)
	w.holds(c, "orders.shop", goneWithin, addrs[:3]...)
	// It renews each third of its term, so its last renewal was up to that long ago.
	if d := time.Since(stopped); d < term-term/3-time.Second {
		t.Errorf("a stopped process is gone %v after it was stopped, its term is %v", d, term)
	}
	w.dnsLists("orders.shop", stopped.Add(goneWithin), addrs[:3]...)

	renewed := holders[2].stall()
	w.holds(c, "orders.shop", time.Until(renewed.Add(goneWithin)), addrs[:2]...)
	if d := time.Since(renewed); d < term {
		t.Errorf("gone %v after its last renewal, its term is %v", d, term)
	}
	w.dnsLists("orders.shop", renewed.Add(goneWithin), addrs[:2]...)
	// The others never left.
	for _, r := range c.Responses(rawxds.EDS) {
		for _, res := range r.Resources {
			if got, err := res.Addresses(); err != nil || len(got) < 2 && r.At.After(stopped) {
				t.Errorf("an assignment listed %v (%v)", got, err)
			}
		}
	}
}

// C32, 2: a restart gives every lease one full term and no more: who died before
// it is gone within 30 s of readiness, who renews stays.
func TestC32LeaseOverARestart(t *testing.T) {
	t.Parallel()
	w, serve := leased(t)
	var addrs []netip.AddrPort
	var holders []*holder
	for i := range 4 {
		addrs = append(addrs, at(33, i))
		holders = append(holders, w.hold(serve, "orders.shop", fmt.Sprintf("orders-%d", i), addrs[i]))
	}
	w.lists("orders.shop", starts, addrs...)
	holders[3].stall()
	pause(context.Background(), 10*time.Second)
	w.s.Stop()
	w.s.Restart(t)
	ready := time.Now()
	c := w.delta()
	w.ok(c.Subscribe(rawxds.EDS, "orders.shop"))
	w.holds(c, "orders.shop", budget, addrs...)
	w.holds(c, "orders.shop", time.Until(ready.Add(goneWithin)), addrs[:3]...)
	if d := time.Since(ready); d < term-time.Second {
		t.Errorf("gone %v after readiness, a full term is %v", d, term)
	}
	w.dnsLists("orders.shop", ready.Add(goneWithin), addrs[:3]...)
	for i, h := range holders[:3] {
		if uids := h.registered(); len(slices.Compact(slices.Clone(uids))) != 1 {
			t.Errorf("orders-%d lives and was registered as %v", i, uids)
		}
	}
}

// C32, 3: an outage longer than the term ends no lease of a client that renews
// within one term of readiness, and none comes back as another instance.
func TestC32LeaseOverAnOutage(t *testing.T) {
	t.Parallel()
	const clients, perConnection = 100, 25
	w, _ := leased(t)
	var addrs []netip.AddrPort
	var holders []*holder
	who := w.s.CA.Mint(t, "/ns/shop/sa/orders")
	var serve *harness.API
	for i := range clients {
		if i%perConnection == 0 { // one has 100 streams at most
			serve = w.s.DialAPI(t, who)
		}
		addrs = append(addrs, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 34, 0, byte(i + 1)}), 7000))
		h := w.hold(serve, "orders.shop", fmt.Sprintf("orders-%d", i), addrs[i])
		h.slow = time.Duration(i%10) * time.Second
		holders = append(holders, h)
	}
	slices.SortFunc(addrs, func(a, b netip.AddrPort) int { return strings.Compare(a.String(), b.String()) })
	w.lists("orders.shop", starts, addrs...)
	w.s.Kill()
	pause(context.Background(), 45*time.Second)
	w.s.Restart(t)
	ready := time.Now()
	c := w.delta()
	w.ok(c.Subscribe(rawxds.EDS, "orders.shop"))
	w.holds(c, "orders.shop", budget, addrs...)
	pause(context.Background(), time.Until(ready.Add(term+10*time.Second)))
	w.holds(c, "orders.shop", time.Second, addrs...)
	for _, r := range c.Responses(rawxds.EDS) {
		for _, res := range r.Resources {
			if got, err := res.Addresses(); err != nil || len(got) != clients {
				t.Errorf("%v after readiness an assignment listed %d of %d (%v)", r.At.Sub(ready), len(got), clients, err)
			}
		}
	}
	for i, h := range holders {
		if uids := h.registered(); len(uids) < 2 || len(slices.Compact(slices.Clone(uids))) != 1 {
			t.Errorf("orders-%d was registered as %v", i, uids)
		}
	}
}
