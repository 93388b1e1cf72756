package registry

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// The random histories: enough to meet every kind of change on every service,
// few enough to stay within seconds.
const (
	rounds       = 25
	randServices = 3
	randMembers  = 6
)

// model is what should be served: per service (absent: deleted) the members.
type model map[string]map[string]netip.AddrPort

// After any sequence of changes, one of them a crash, Resolve, delta, state of
// the world and DNS hold the same, and what was asked for.
func TestFourSurfacesAgree(t *testing.T) {
	t.Parallel()
	w := start(t, harness.ServerConfig{})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	hosts := make([]string, randServices)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("random-%d.shop", i)
	}
	d, s := w.delta(), w.sotw()
	w.ok(d.Subscribe(rawxds.EDS, hosts...))
	w.ok(s.Ask(rawxds.EDS, hosts...))
	want, serial := model{}, 0
	var history []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("history:\n%s", strings.Join(history, "\n"))
		}
	})
	for round := range rounds {
		var changes []*registryv1.Change
		touched := make(map[string]bool)
		for range 1 + r.IntN(4) {
			changes = append(changes, want.change(r, hosts, touched, &serial))
		}
		history = append(history, fmt.Sprint(changes))
		w.api.Apply(t, changes...)
		if round%3 == 0 {
			continue // two batches at once
		}
		if round == rounds/2 {
			w.s.Kill()
			w.s.Restart(t)
			d, s = w.delta(), w.sotw()
			w.ok(d.Subscribe(rawxds.EDS, hosts...))
			w.ok(s.Ask(rawxds.EDS, hosts...))
		}
		for _, host := range hosts {
			w.agree(host, want, d, s)
		}
	}
}

// change makes one random change of the model. A batch is planned in the order
// of dependencies, removals first: it removes nothing that it puts.
func (m model) change(r *rand.Rand, hosts []string, touched map[string]bool, serial *int) *registryv1.Change {
	host := hosts[r.IntN(len(hosts))]
	members := m[host]
	label := fmt.Sprintf("m%d", r.IntN(randMembers))
	defer func() { touched[host], touched[host+label] = true, true }()
	switch {
	case members == nil:
		m[host] = map[string]netip.AddrPort{}
		return harness.PutService(host)
	case r.IntN(12) == 0 && !touched[host]:
		delete(m, host)
		return harness.DeleteService(host)
	case members[label].IsValid() && r.IntN(2) == 0 && !touched[host+label]:
		delete(members, label)
		return harness.DeleteInstance(host, label)
	}
	if !members[label].IsValid() || r.IntN(3) == 0 {
		*serial++ // a new address is a new instance
		members[label] = at(1000+*serial/200, *serial%200)
	}
	return harness.Weighing(harness.PutInstance(host, label, members[label]), uint32(50+r.IntN(3)*25))
}

// agree waits until all four surfaces hold what the model says.
func (w *world) agree(host string, want model, d, s *rawxds.Client) {
	w.Helper()
	members, exists := want[host]
	text := texts(slices.Collect(maps.Values(members)))
	harness.Eventually(w, budget, fmt.Sprintf("%s is at %v on every surface", host, text), func() error {
		v, err := w.api.View(host)
		if exists != (err == nil) {
			return fmt.Errorf("Resolve: %v", err)
		}
		if got := harness.Listed(v, 0); !slices.Equal(got, text) {
			return fmt.Errorf("Resolve: %v", got)
		}
		for name, c := range map[string]*rawxds.Client{"delta": d, "state of the world": s} {
			if c.Err() != nil {
				return c.Err()
			}
			res, held := c.Held(rawxds.EDS)[host]
			if name == "delta" && held != exists {
				return fmt.Errorf("%s holds it: %t", name, held)
			}
			var got []string
			if held {
				got, err = res.Addresses()
			}
			if err != nil && exists || !slices.Equal(got, text) {
				return fmt.Errorf("%s: %v, %v", name, got, err)
			}
		}
		if got := w.overDNS(host, exists); !slices.Equal(got, text) {
			return fmt.Errorf("DNS: %v", got)
		}
		return nil
	})
}

// overDNS joins SRV with its additionals.
func (w *world) overDNS(host string, exists bool) (list []string) {
	w.Helper()
	a := harness.RunDig(w, w.s.DNS, "_grpc._tcp."+host+"."+zone, "SRV", "+tcp")
	if !exists && a.Status != "NXDOMAIN" {
		return []string{a.Status}
	}
	addrs := make(map[string]string)
	for _, line := range a.Additional {
		f := strings.Fields(line)
		addrs[f[0]] = f[4]
	}
	for _, data := range a.Data("SRV") {
		f := strings.Fields(data)
		port, err := strconv.Atoi(f[2])
		w.ok(err)
		list = append(list, net.JoinHostPort(addrs[f[3]], strconv.Itoa(port)))
	}
	slices.Sort(list)
	return list
}
