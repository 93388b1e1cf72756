package prober

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

const (
	softWithin = 10 * time.Second // from a failure that answers to its withdrawal (DESIGN.md §1)
	hardWithin = time.Second      // from the second prober's refused connection (HEALTH.md, R3)
)

// Two probers in two zones see what each kind of backend says of itself: the one
// that fails is withdrawn, and comes back after it is repaired.
func TestProbesWithdraw(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.prober("p1", "z1")
	w.prober("p2", "z2")
	for name, row := range map[string]struct {
		probe *registryv1.Probe
		make  func() *backend
	}{
		"rpc": {&registryv1.Probe{Kind: registryv1.ProbeKind_PROBE_KIND_GRPC, Service: "shop.Rpc"}, func() *backend { return w.grpcBackend("shop.Rpc") }},
		"web": {&registryv1.Probe{Kind: registryv1.ProbeKind_PROBE_KIND_HTTP, Path: "/healthz"}, w.httpBackend},
	} {
		var backends []*backend
		for range 4 {
			backends = append(backends, row.make())
		}
		all := addrs(backends)
		s := w.service(name, byProbe, row.probe, []string{"z1", "z2"}, all...)
		t.Run(name, func(t *testing.T) {
			s.holds(starts, all...)
			s.states(starts, viewv1.State_STATE_ELIGIBLE, 4)
			backends[1].breakIt()
			broke := time.Now()
			t.Logf("withdrawn %v after it failed", s.holds(softWithin, without(all, 1)...).Sub(broke))
			backends[1].repair()
			repaired := time.Now()
			back := s.holds(60*time.Second, all...).Sub(repaired)
			t.Logf("back %v after it was repaired", back)
			if back < 15*time.Second {
				t.Errorf("back after %v: its evidence has to be good for 15 s first", back)
			}
		})
	}
}

// A refused connection is withdrawn within a second of the second prober's word.
func TestRefusedIsHard(t *testing.T) {
	t.Parallel()
	w := start(t)
	probers := []*proberProcess{w.prober("p1", "z1"), w.prober("p2", "z2")}
	var backends []*backend
	for range 6 {
		backends = append(backends, w.tcpBackend())
	}
	all := addrs(backends)
	s := w.service("raw", byProbe, &registryv1.Probe{}, []string{"z1", "z2"}, all...)
	s.holds(starts, all...)
	s.states(starts, viewv1.State_STATE_ELIGIBLE, 6)
	for i := range 2 {
		backends[0].stop()
		stopped := time.Now()
		all, backends = all[1:], backends[1:]
		gone := s.holds(softWithin, all...)
		var second time.Time
		for _, p := range probers {
			var at time.Time
			harness.Eventually(t, 5*time.Second, p.name+" sees it", func() error {
				var ok bool
				if at, ok = p.saw(s.uids[i], "refused", stopped.Add(-time.Second)); !ok {
					return fmt.Errorf("not yet")
				}
				return nil
			})
			if at.After(second) {
				second = at
			}
		}
		t.Logf("withdrawn %v after it was stopped, %v after the second prober was refused", gone.Sub(stopped), gone.Sub(second))
		if d := gone.Sub(second); d > hardWithin {
			t.Errorf("withdrawn %v after the second prober was refused", d)
		}
	}
}

// A prober that is killed is replaced: its targets are with the others within 12
// s, and nothing leaves meanwhile.
func TestKilledProberIsReplaced(t *testing.T) {
	t.Parallel()
	w := start(t)
	probers := []*proberProcess{w.prober("p1", "z1"), w.prober("p2", "z2"), w.prober("p3", "z2")}
	var backends []*backend
	for range 12 {
		backends = append(backends, w.tcpBackend())
	}
	all := addrs(backends)
	s := w.service("raw", byProbe, &registryv1.Probe{}, []string{"z1", "z2"}, all...)
	s.holds(starts, all...)
	s.states(starts, viewv1.State_STATE_ELIGIBLE, len(all))
	assigned := func(within time.Duration, want int, probers ...*proberProcess) {
		t.Helper()
		harness.Eventually(t, within, fmt.Sprintf("%d targets are assigned", want), func() error {
			sum := 0
			for _, p := range probers {
				n, err := p.targets()
				if err != nil {
					return err
				}
				sum += n
			}
			if sum != want {
				return fmt.Errorf("%d are", sum)
			}
			return nil
		})
	}
	assigned(starts, 2*len(all), probers...)
	if n, err := probers[2].targets(); err != nil || n == 0 || n == len(all) {
		t.Errorf("p3 has %d of %d targets that it shares with p2 (%v)", n, len(all), err)
	}
	before := len(s.client.Responses(rawxds.EDS))
	probers[2].Kill()
	assigned(12*time.Second, 2*len(all), probers[:2]...)
	for _, r := range s.client.Responses(rawxds.EDS)[before:] {
		for _, res := range r.Resources {
			if got, err := res.Addresses(); err != nil || len(got) != len(all) {
				t.Errorf("while the prober was replaced %d of %d were listed (%v)", len(got), len(all), err)
			}
		}
	}
	// Who took over is believed: a backend that dies now is withdrawn.
	backends[0].stop()
	s.holds(softWithin, all[1:]...)
}
