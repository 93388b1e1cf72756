package registry

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
)

const (
	rampLasts = time.Minute
	rampStep  = rampLasts / 6 // from each of its seven weights to the next
)

// weights are what a surface gives callers, by ip:port.
type weights map[string]uint32

func (w weights) String() string {
	var list []string
	for addr, weight := range w {
		list = append(list, fmt.Sprintf("%s=%d", addr, weight))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// A new instance beside one that has its whole weight has a tenth of it on every
// surface, and a quarter a step later. Addresses carry no weight: it is in as
// many answers as its weight is of the other's.
func TestRampOnEverySurface(t *testing.T) {
	t.Parallel()
	w := start(t, harness.ServerConfig{})
	older, newer := at(60, 0), at(60, 1)
	w.api.Apply(t, harness.PutService("orders.shop"), harness.PutInstance("orders.shop", "older", older))
	d, s := w.delta(), w.sotw()
	w.ok(d.Subscribe(rawxds.EDS, "orders.shop"))
	w.ok(s.Ask(rawxds.EDS, "orders.shop"))
	began := time.Now()
	w.weighs(d, s, starts, weights{older.String(): 10})
	w.weighs(d, s, rampLasts+starts, weights{older.String(): 100})
	if took := time.Since(began); took < rampLasts-rampStep {
		t.Errorf("its whole weight after %v, a ramp lasts %v", took, rampLasts)
	}

	w.api.Apply(t, harness.PutInstance("orders.shop", "newer", newer))
	w.weighs(d, s, starts, weights{older.String(): 100, newer.String(): 10})
	const asked = 120
	of := make(map[string]int)
	question := slices.Repeat([]string{"orders.shop." + zone, "A"}, asked)
	for _, addr := range harness.RunDig(t, w.s.DNS, question...).Data("A") {
		of[addr]++
	}
	if n := of[newer.Addr().String()]; of[older.Addr().String()] != asked || n < 1 || n > asked/2 {
		t.Errorf("of %d answers %v, want the older one in each and the newer one in a tenth, a quarter after its step", asked, of)
	}
	w.weighs(d, s, rampStep+starts, weights{older.String(): 100, newer.String(): 25})
}

// weighs waits until Resolve, delta, state of the world and SRV give the weights.
func (w *world) weighs(d, s *rawxds.Client, within time.Duration, want weights) {
	w.Helper()
	harness.Eventually(w, within, fmt.Sprintf("every surface gives %v", want), func() error {
		v, err := w.api.View("orders.shop")
		if err != nil {
			return err
		}
		resolved := weights{}
		for _, m := range v.GetMembers() {
			resolved[net.JoinHostPort(m.GetAddress(), strconv.Itoa(int(m.GetPorts()[0].GetNumber())))] = m.GetWeight()
		}
		for surface, got := range map[string]weights{
			"Resolve": resolved, "delta": assigned(d), "state of the world": assigned(s), "SRV": w.srvWeights("orders.shop"),
		} {
			if got.String() != want.String() {
				return fmt.Errorf("%s: %v", surface, got)
			}
		}
		return nil
	})
}

// assigned is what the client's assignment says: Envoy's of an endpoint, gRPC's of
// the locality that an endpoint has for itself.
func assigned(c *rawxds.Client) weights {
	got := weights{}
	cla, err := c.Held(rawxds.EDS)["orders.shop"].Assignment()
	if err != nil {
		return nil
	}
	for _, l := range cla.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			a, weight := e.GetEndpoint().GetAddress().GetSocketAddress(), l.GetLoadBalancingWeight()
			if own := e.GetLoadBalancingWeight(); own != nil {
				weight = own
			}
			got[net.JoinHostPort(a.GetAddress(), strconv.Itoa(int(a.GetPortValue())))] = weight.GetValue()
		}
	}
	return got
}

// srvWeights joins SRV with its additionals.
func (w *world) srvWeights(host string) weights {
	w.Helper()
	a := harness.RunDig(w, w.s.DNS, "_grpc._tcp."+host+"."+zone, "SRV", "+tcp")
	addrs, got := make(map[string]string), weights{}
	for _, line := range a.Additional {
		f := strings.Fields(line)
		addrs[f[0]] = f[4]
	}
	for _, data := range a.Data("SRV") {
		f := strings.Fields(data)
		weight, err := strconv.ParseUint(f[1], 10, 16)
		w.ok(err)
		got[net.JoinHostPort(addrs[f[3]], f[2])] = uint32(weight)
	}
	return got
}
