package prober

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

const (
	serving    = healthv1.SelfStatus_SELF_STATUS_SERVING
	notServing = healthv1.SelfStatus_SELF_STATUS_NOT_SERVING

	flapEvery = 20 * time.Second
	flapFor   = 110 * time.Second // the fifth change comes at 80 s; its hold of a minute is waited for
	sayEvery  = time.Second
)

// voices are the self-reports of a service's instances, each saying what it is
// told to, or nothing.
type voices struct {
	mu     sync.Mutex
	says   []healthv1.SelfStatus
	silent bool
}

// speak starts them; they end with the test.
func (s *service) speak() *voices {
	s.Helper()
	v := &voices{says: slices.Repeat([]healthv1.SelfStatus{serving}, len(s.uids))}
	client := healthv1.NewReportServiceClient(harness.DialTLS(s, s.s.API, s.s.CA.Mint(s, "/ns/shop/sa/"+s.name)))
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := client.ReportSelf(ctx)
	s.ok(err)
	s.ok(stream.Send(&healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Bind{Bind: &healthv1.SelfBind{Instances: s.uids}}}))
	var speaking sync.WaitGroup
	speaking.Go(func() {
		tick := time.NewTicker(sayEvery)
		defer tick.Stop()
		for {
			if b := v.batch(); b != nil && stream.Send(&healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Batch{Batch: b}}) != nil {
				return // the test asks what came of it
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	s.Cleanup(func() { cancel(); speaking.Wait() })
	return v
}

func (v *voices) batch() *healthv1.SelfBatch {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.silent {
		return nil
	}
	b := &healthv1.SelfBatch{Status: slices.Clone(v.says)}
	for i := range v.says {
		b.Instance = append(b.Instance, uint32(i))
	}
	return b
}

// all makes the first n say a status, and the others SERVING.
func (v *voices) all(n int, s healthv1.SelfStatus) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.says {
		v.says[i] = serving
		if i < n {
			v.says[i] = s
		}
	}
}

func (v *voices) hush(silent bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.silent = silent
}

// ten are backends at ten addresses of loopback, since DNS lists addresses and
// not ports.
func (w *world) ten(net4 byte) (at []netip.AddrPort) {
	w.Helper()
	for i := range 10 {
		l, err := net.Listen("tcp", netip.AddrFrom4([4]byte{127, 35, net4, byte(i + 1)}).String()+":0")
		w.ok(err)
		var accepting sync.WaitGroup
		accepting.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		})
		w.Cleanup(func() { _ = l.Close(); accepting.Wait() })
		at = append(at, l.Addr().(*net.TCPAddr).AddrPort())
	}
	return at
}

// dnsLists waits until DNS lists exactly the addresses.
func (s *service) dnsLists(within time.Duration, want ...netip.AddrPort) {
	s.Helper()
	var ips []string
	for _, a := range want {
		ips = append(ips, a.Addr().String())
	}
	slices.Sort(ips)
	harness.Eventually(s, within, fmt.Sprintf("DNS lists %d of %s", len(ips), s.host), func() error {
		got := harness.RunDig(s, s.s.DNS, s.host+".svc.sightline.test.", "A").Data("A")
		slices.Sort(got)
		if !slices.Equal(got, ips) {
			return fmt.Errorf("it lists %v", got)
		}
		return nil
	})
}

// incidents counts the server's log lines of a kind about a service.
func (s *service) incidents(kind string) (n int) {
	for line := range strings.Lines(s.s.Output()) {
		var l struct{ Msg, Kind, Service string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "incident" && l.Kind == kind && l.Service == "shop/"+s.name {
			n++
		}
	}
	return n
}

// listed are the addresses of each assignment of the service, in the order in
// which they came.
func (s *service) listed() (out []heldSet) {
	for _, r := range s.client.Responses(rawxds.EDS) {
		for _, res := range r.Resources {
			if res.Name == s.host {
				got, err := res.Addresses()
				s.ok(err)
				out = append(out, heldSet{r.At, got})
			}
		}
	}
	return out
}

type heldSet struct {
	at    time.Time
	addrs []string
}

// guarded waits until Resolve and the assignment say that the guard speaks, or
// that it does not.
func (s *service) guarded(within time.Duration, want bool) {
	s.Helper()
	harness.Eventually(s, within, fmt.Sprintf("the guard speaks for %s: %v", s.host, want), func() error {
		v, err := s.api.View(s.host)
		if err != nil {
			return err
		}
		if v.GetGuard().GetTripped() != want || (v.GetConfidence() == viewv1.Confidence_CONFIDENCE_DEGRADED) != want {
			return fmt.Errorf("Resolve says %v and %v", v.GetGuard(), v.GetConfidence())
		}
		m, err := s.client.Held(rawxds.EDS)[s.host].Assignment()
		if err != nil {
			return err
		}
		for _, l := range m.GetEndpoints() {
			for _, e := range l.GetLbEndpoints() {
				if says := e.GetMetadata().GetFilterMetadata()["sightline"].GetFields()["confidence"].GetStringValue(); (says == "degraded") != want {
					return fmt.Errorf("the assignment's confidence is %q", says)
				}
			}
		}
		return nil
	})
}

// C35: the observation path fails, then the service does, then it flaps, then it
// shrinks to one that fails; and its list is never emptied by any of it.
func TestC35MassLossAndFlaps(t *testing.T) {
	t.Parallel()
	w := start(t)
	probers := []*proberProcess{w.prober("p1", "z1"), w.prober("p2", "z2")}
	all, some := w.ten(1), w.ten(2)
	orders := w.service("orders", byProbeAndSelf, &registryv1.Probe{}, []string{"z1"}, all...)
	few := w.service("few", byProbeAndSelf, &registryv1.Probe{}, []string{"z1"}, some...)
	loud, quiet := orders.speak(), few.speak()
	orders.holds(starts, all...)
	few.holds(starts, some...)
	orders.states(starts, viewv1.State_STATE_ELIGIBLE, 10)
	began := time.Now()

	// 1: probes and self-reports are cut.
	for _, p := range probers {
		p.Stop()
	}
	loud.hush(true)
	quiet.hush(true)
	orders.states(20*time.Second, viewv1.State_STATE_UNKNOWN, 10)
	time.Sleep(10 * time.Second) // it stays so, also when the probers have left the set
	orders.states(time.Second, viewv1.State_STATE_UNKNOWN, 10)
	orders.holds(time.Second, all...)
	orders.dnsLists(time.Second, all...)

	// 2: they are back, and 7 of 10 do not serve.
	for _, z := range []string{"1", "2"} {
		w.prober("p"+z, "z"+z)
	}
	loud.hush(false)
	quiet.hush(false)
	orders.states(20*time.Second, viewv1.State_STATE_ELIGIBLE, 10)
	loud.all(7, notServing)
	orders.states(5*time.Second, viewv1.State_STATE_INELIGIBLE, 7)
	orders.guarded(5*time.Second, true)
	orders.holds(time.Second, all...)
	orders.dnsLists(time.Second, all...)
	if n := orders.incidents("guard-tripped"); n != 1 {
		t.Errorf("%d alerts that the guard tripped, want one", n)
	}
	for _, h := range orders.listed() {
		if h.at.After(began) && len(h.addrs) != 10 {
			t.Errorf("%v after the start %d of 10 were listed", h.at.Sub(began), len(h.addrs))
		}
	}
	loud.all(10, serving)
	// After 15 s of it; twice that and more when the machine stood still meanwhile:
	// a hold begins again after evidence was missing.
	orders.states(60*time.Second, viewv1.State_STATE_ELIGIBLE, 10)
	orders.guarded(60*time.Second, false)

	orders.flap(few, loud, quiet, some)

	// 4: it shrinks to one, and that one fails.
	loud.all(10, serving)
	orders.states(100*time.Second, viewv1.State_STATE_ELIGIBLE, 10)
	for i := 1; i < 10; i++ {
		w.api.Apply(t, harness.DeleteInstance("orders.shop", fmt.Sprintf("orders-%d", i)))
	}
	orders.holds(5*time.Second, all[0])
	loud.all(1, notServing)
	orders.states(10*time.Second, viewv1.State_STATE_INELIGIBLE, 1)
	harness.Eventually(t, 5*time.Second, "an incident says that the last one fails", func() error {
		if orders.incidents("last-serving-lost") == 0 {
			return fmt.Errorf("the log says nothing")
		}
		return nil
	})
	orders.holds(time.Second, all[0])
	orders.dnsLists(time.Second, all[0])
}

// flap is C35, 3: all ten of one service alternate, and three of ten of another.
func (s *service) flap(few *service, loud, quiet *voices, some []netip.AddrPort) {
	s.Helper()
	began := time.Now()
	says := notServing
	for time.Since(began) < flapFor {
		loud.all(10, says)
		quiet.all(3, says)
		time.Sleep(flapEvery)
		if says == serving {
			says = notServing
		} else {
			says = serving
		}
	}
	for _, h := range s.listed() {
		if h.at.After(began) && len(h.addrs) < 5 {
			s.Errorf("%v into the flapping %d of ten were listed", h.at.Sub(began), len(h.addrs))
		}
	}
	quiet.all(3, serving)
	few.holds(100*time.Second, some...) // the quarantine ends, and they return
	for _, a := range some[:3] {
		var out []time.Duration
		var left time.Time
		for _, h := range few.listed() {
			switch in := slices.Contains(h.addrs, a.String()); {
			case h.at.Before(began):
			case !in && left.IsZero():
				left = h.at
			case in && !left.IsZero():
				out, left = append(out, h.at.Sub(left).Round(time.Second)), time.Time{}
			}
		}
		// Out, in, out, in, out: the third absence begins with the 5th change.
		if len(out) < 3 || out[2] < time.Minute || out[0] > time.Minute {
			s.Errorf("%v was out for %v: the third time has to be at least a minute", a, out)
		}
	}
	for _, a := range some[3:] {
		for _, h := range few.listed() {
			if h.at.After(began) && !slices.Contains(h.addrs, a.String()) {
				s.Errorf("%v flapped not and was not listed %v into it", a, h.at.Sub(began))
			}
		}
	}
}
