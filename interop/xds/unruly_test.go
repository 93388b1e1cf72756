package xds

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// Whoever rejects everything, never reads, or sends garbage harms nobody else:
// well-behaved clients of both protocols see every change in time.
func TestUnrulyClientsAffectOnlyThemselves(t *testing.T) {
	t.Parallel()
	w := start(t)
	changes := []*registryv1.Change{harness.WithoutRamp("orders.shop"), harness.PutService("orders.shop"), harness.PutInstance("orders.shop", "a", at(1, 0)),
		harness.PutInstance("orders.shop", "b", at(1, 1)), harness.WithoutRamp("big.shop"), harness.PutService("big.shop")}
	for i := range 900 {
		addr := netip.AddrFrom4([4]byte{12, 0, byte(i >> 8), byte(i)})
		changes = append(changes, harness.PutInstance("big.shop", fmt.Sprintf("i-%03d", i), netip.AddrPortFrom(addr, 8443)))
	}
	w.api.Apply(t, changes...)
	w.published("big.shop", 900)
	w.published("orders.shop", 2)

	d, s := w.delta(nil), w.sotw(nil)
	w.ok(d.Subscribe(rawxds.EDS, "orders.shop"))
	w.ok(s.Ask(rawxds.EDS, "orders.shop"))
	// goesOn makes changes, and each reaches the two in time.
	goesOn := func() {
		t.Helper()
		var longest time.Duration
		for range 3 {
			for _, c := range []struct {
				change *registryv1.Change
				want   []netip.AddrPort
			}{
				{harness.DeleteInstance("orders.shop", "b"), []netip.AddrPort{at(1, 0)}},
				{harness.PutInstance("orders.shop", "b", at(1, 1)), []netip.AddrPort{at(1, 0), at(1, 1)}},
			} {
				w.api.Apply(t, c.change)
				began := time.Now()
				w.holds(d, "orders.shop", budget, c.want...)
				w.holds(s, "orders.shop", budget, c.want...)
				longest = max(longest, time.Since(began))
			}
		}
		t.Logf("the slowest change took %s", longest.Round(time.Millisecond))
	}
	goesOn()
	for name, misbehave := range map[string]func(){
		"rejects": func() { w.rejects() }, "never reads": func() { w.neverReads(20) }, "never acknowledges": func() { w.neverAcknowledges() },
		"sends garbage": func() { w.sendsGarbage() }, "asks nonsense": func() { w.asksNonsense() },
	} {
		t.Log(name)
		misbehave()
		goesOn()
	}
}

// rejects opens streams that reject everything.
func (w *world) rejects() {
	w.Helper()
	no := func(*rawxds.Response) rawxds.Answer { return rawxds.Answer{Reject: "this client rejects everything"} }
	d, s := w.delta(no), w.sotw(no)
	w.ok(d.Subscribe(rawxds.CDS, "*"))
	w.ok(d.Subscribe(rawxds.EDS, "orders.shop", "big.shop"))
	w.ok(s.Ask(rawxds.EDS, "orders.shop", "big.shop"))
	w.response(d, rawxds.EDS, 1, budget)
	w.response(s, rawxds.EDS, 1, budget)
}

// neverReads opens streams that ask for much and take nothing.
func (w *world) neverReads(streams int) {
	w.Helper()
	for range streams {
		ctx, cancel := context.WithCancel(context.Background())
		w.Cleanup(cancel)
		st, err := discoveryv3.NewAggregatedDiscoveryServiceClient(w.s.DialXDS(w, w.web)).DeltaAggregatedResources(ctx)
		w.ok(err)
		w.ok(st.Send(&discoveryv3.DeltaDiscoveryRequest{Node: rawxds.Node("stuck", envoyUA, "", ""), TypeUrl: rawxds.CDS}))
		w.ok(st.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: rawxds.EDS, ResourceNamesSubscribe: []string{"big.shop", "orders.shop"}}))
	}
}

// neverAcknowledges opens streams that take everything and say nothing.
func (w *world) neverAcknowledges() {
	w.Helper()
	d, s := w.delta(rawxds.Silence), w.sotw(rawxds.Silence)
	w.ok(d.Subscribe(rawxds.CDS, "*"))
	w.ok(d.Subscribe(rawxds.EDS, "orders.shop", "big.shop"))
	w.ok(s.Ask(rawxds.EDS, "orders.shop", "big.shop"))
	w.response(d, rawxds.EDS, 1, budget)
	w.response(s, rawxds.EDS, 1, budget)
}

// verbatim sends bytes as they are.
type verbatim struct{}

func (verbatim) Name() string                       { return "proto" }
func (verbatim) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (verbatim) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }

// sendsGarbage sends noise instead of messages, instead of HTTP/2, and instead of TLS.
func (w *world) sendsGarbage() {
	w.Helper()
	noise := make([]byte, 4096)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(noise)
	for _, method := range []string{"DeltaAggregatedResources", "StreamAggregatedResources"} {
		for _, size := range []int{0, 1, 100, len(noise)} {
			limit := budget
			if size == 0 { // a request without a type, which may be left unanswered
				limit = quiet
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			st, err := w.s.DialXDS(w, w.web).NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
				"/envoy.service.discovery.v3.AggregatedDiscoveryService/"+method, grpc.ForceCodec(verbatim{}))
			w.ok(err)
			w.ok(st.SendMsg(noise[:size]))
			var answer []byte
			if err := st.RecvMsg(&answer); err == nil && size > 0 {
				w.Errorf("%s: %d bytes of noise were answered", method, size)
			}
			cancel()
		}
	}
	for range 10 {
		c, err := net.DialTimeout("tcp", w.s.XDS, budget)
		w.ok(err)
		_, _ = c.Write(noise)
		c.Close()
		cfg := w.web.ClientTLS()
		cfg.NextProtos = []string{"h2"}
		tc, err := tls.Dial("tcp", w.s.XDS, cfg)
		w.ok(err)
		_, _ = tc.Write(noise)
		tc.Close()
	}
}

// asksNonsense sends well-formed requests that make no sense.
func (w *world) asksNonsense() {
	w.Helper()
	d := w.delta(nil)
	long := string(slices.Repeat([]byte("x"), 100_000))
	for _, q := range []*discoveryv3.DeltaDiscoveryRequest{
		{TypeUrl: "type.googleapis.com/nobody.knows.This", ResourceNamesSubscribe: []string{"a"}},
		{TypeUrl: rawxds.EDS, ResponseNonce: "forged", ResourceNamesSubscribe: []string{"", ".", "..", "a.b.c", "ORDERS.SHOP", long, "orders.shop:99999", "\x00"}},
		{TypeUrl: rawxds.EDS, ResourceNamesUnsubscribe: []string{"never-subscribed.shop", long}},
		{TypeUrl: rawxds.CDS, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: map[string]string{"orders.shop": "not a version", long: ""}},
		{TypeUrl: rawxds.CDS, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: map[string]string{"orders.shop": "18446744073709551615.18446744073709551615-x"}},
	} {
		if err := d.SendDelta(q); err != nil {
			break // it may be ended for that
		}
	}
	s := w.sotw(nil)
	_ = s.SendSotw(&discoveryv3.DiscoveryRequest{TypeUrl: rawxds.EDS, VersionInfo: "99999999999.1", ResponseNonce: "forged", ResourceNames: []string{"orders.shop", long}})
	_ = s.SendSotw(&discoveryv3.DiscoveryRequest{TypeUrl: "", ResourceNames: []string{"orders.shop"}})
	_ = d.Await(quiet, func() bool { return d.Err() != nil })
}

// A client that rejects one service keeps all others current.
func TestRejectedNameIsIsolated(t *testing.T) {
	t.Parallel()
	w := start(t)
	hosts := []string{"bad.shop", "ledger.shop", "orders.shop"}
	for i, host := range hosts {
		w.api.Apply(t, harness.WithoutRamp(host), harness.PutService(host), harness.PutInstance(host, "a", at(i, 0)))
		w.published(host, 1)
	}
	c := w.delta(func(r *rawxds.Response) rawxds.Answer {
		if r.Type == rawxds.EDS && slices.Contains(r.Names(), "bad.shop") {
			return rawxds.Answer{Reject: "bad.shop is not to this client's taste"}
		}
		return rawxds.Answer{}
	})
	w.ok(c.Subscribe(rawxds.EDS, hosts...))
	w.holds(c, "orders.shop", budget, at(2, 0))
	w.holds(c, "ledger.shop", budget, at(1, 0))
	w.ok(c.Await(budget, func() bool { // the bad one is tried alone, once
		return slices.ContainsFunc(c.Responses(rawxds.EDS), func(r *rawxds.Response) bool { return slices.Equal(r.Names(), []string{"bad.shop"}) })
	}))
	w.silent(c, rawxds.EDS)
	for i := range 3 {
		w.api.Apply(t, harness.PutInstance("bad.shop", fmt.Sprintf("b%d", i), at(0, 10+i)), harness.PutInstance("orders.shop", "b", at(2, 10+i)))
		w.holds(c, "orders.shop", budget, at(2, 0), at(2, 10+i))
	}
	for _, r := range c.Responses(rawxds.EDS)[1:] {
		if names := r.Names(); slices.Contains(names, "bad.shop") && len(names) > 1 {
			t.Errorf("the rejected name still travels with others: %v", names)
		}
	}
	if n := len(c.Responses(rawxds.EDS)); n > 20 {
		t.Errorf("%d responses: a rejection was answered by resending", n)
	}
	harness.Eventually(t, 5*time.Second, "the rejection is counted", func() error {
		if m := w.s.Metrics(t); !slices.ContainsFunc(splitLines(m), func(l string) bool { return isNackCount(l) }) {
			return fmt.Errorf("no NACK in the metrics")
		}
		return nil
	})
}
