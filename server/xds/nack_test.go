package xds_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness/rawxds"
)

// refusing rejects every response that holds one of the names.
func refusing(names ...string) rawxds.Reaction {
	return func(r *rawxds.Response) rawxds.Answer {
		for _, n := range names {
			if slices.Contains(r.Names(), n) {
				return rawxds.Answer{Reject: "bad " + n}
			}
		}
		return rawxds.Answer{}
	}
}

// ENGINE.md §7: a rejected response is taken apart until the culprit is alone;
// the others arrive, and nothing is resent in a loop.
func TestIsolation(t *testing.T) {
	for _, n := range []int{2, 16, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inWorld(t, func(w *world) {
				hosts := w.many(n)
				bad := hosts[n/3]
				c := w.delta(refusing(bad))
				must(t, c.Subscribe(rawxds.EDS, hosts...))
				w.settle()
				if got := len(c.Held(rawxds.EDS)); got != n-1 {
					t.Errorf("holds %d of %d: %s", got, n-1, brief(c.Responses("")))
				}
				sent := len(c.Responses(rawxds.EDS))
				time.Sleep(time.Minute)
				w.responses(c, rawxds.EDS, sent)
				if sent > 30 {
					t.Errorf("%d responses to find one of %d", sent, n)
				}
				if got := w.srv.Clients()[0].Types[0].Rejected; !slices.Equal(got, []string{bad}) {
					t.Errorf("apart: %v", got)
				}
				w.end(c)
			})
		})
	}
}

// The culprit of a rejected response was deleted before the rejection came: what
// is left was never rejected alone, and arrives.
func TestLastSuspectIsNoCulprit(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := w.many(2)
		bad, good := hosts[0], hosts[1]
		c := w.delta(rawxds.Silence)
		must(t, c.Subscribe(rawxds.EDS, hosts...))
		w.settle()
		both := w.responses(c, rawxds.EDS, 1)[0]
		w.drop(bad)
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 2)[1], nil, bad)
		must(t, c.Nack(both, "bad "+bad))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 3)[2], []string{good})
		if rejected := w.srv.Clients()[0].Types[0].Rejected; len(rejected) != 0 {
			t.Errorf("apart: %v", rejected)
		}
		w.end(c)
	})
}

// A name that was rejected alone travels alone until it is accepted, also after
// it changed, while the rest goes on.
func TestRejectedNameTravelsAlone(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := w.many(3)
		bad := hosts[1]
		stubborn := true
		c := w.delta(func(r *rawxds.Response) rawxds.Answer {
			if stubborn {
				return refusing(bad)(r)
			}
			return rawxds.Answer{}
		})
		must(t, c.Subscribe(rawxds.EDS, hosts...))
		w.settle()
		at := len(c.Responses("")) - 1
		for i := range hosts {
			w.urge(svc(hosts[i], "10.0.5.5"))
		}
		w.settle()
		r := find(c, at, rawxds.EDS, has(bad))
		if r == nil || len(r.Resources) != 1 {
			t.Fatalf("the changed name did not go alone: %s", brief(c.Responses("")))
		}
		n := len(c.Responses(rawxds.EDS))
		must(t, c.Subscribe(rawxds.EDS, bad, hosts[0]))
		w.settle()
		again := c.Responses(rawxds.EDS)[n:]
		if len(again) != 2 || !same(append(again[0].Names(), again[1].Names()...), []string{bad, hosts[0]}) {
			t.Errorf("an explicit ask is answered with %s", brief(again))
		}
		w.settle()
		w.responses(c, rawxds.EDS, n+2)
		stubborn = false
		w.urge(svc(bad, "10.0.6.6"))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, n+3)[n+2], []string{bad})
		for i := range hosts {
			w.urge(svc(hosts[i], "10.0.7.7"))
		}
		w.settle()
		for _, h := range hosts {
			got, err := c.Held(rawxds.EDS)[h].Addresses()
			if err != nil || !slices.Equal(got, []string{"10.0.7.7:8080"}) {
				t.Errorf("%s holds %v %v", h, got, err)
			}
		}
		if rejected := w.srv.Clients()[0].Types[0].Rejected; len(rejected) != 0 {
			t.Errorf("still apart: %v", rejected)
		}
		w.end(c)
	})
}

// While members of a rejected response are tried one by one, one is outstanding;
// one that changes meanwhile goes with the others of its kind, not twice; and what
// changes while it is tried alone is sent when it is accepted.
func TestIsolationGoesStepByStep(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := w.many(3)
		c := w.delta(rawxds.Silence)
		must(t, c.Subscribe(rawxds.EDS, hosts...))
		w.settle()
		must(t, c.Nack(w.responses(c, rawxds.EDS, 1)[0], "some of these"))
		w.settle()
		tried := w.responses(c, rawxds.EDS, 2)[1] // the others wait for it
		if len(tried.Resources) != 1 {
			t.Fatalf("tried %v at once", tried.Names())
		}
		bad := tried.Names()[0]
		must(t, c.Nack(tried, "this one"))
		w.settle()
		all := w.responses(c, rawxds.EDS, 3)
		must(t, c.Ack(all[2]))
		w.settle()
		all = w.responses(c, rawxds.EDS, 4)
		must(t, c.Ack(all[3]))
		w.settle()

		w.urge(svc(bad, "10.0.0.2"))
		w.settle()
		again := w.responses(c, rawxds.EDS, 5)[4]
		w.gave(again, []string{bad})
		w.urge(svc(bad, "10.0.0.3")) // while it is tried
		w.settle()
		w.responses(c, rawxds.EDS, 5)
		must(t, c.Ack(again))
		w.settle()
		last := w.responses(c, rawxds.EDS, 6)[5]
		if got, err := last.Resources[0].Addresses(); err != nil || !slices.Equal(got, []string{"10.0.0.3:8080"}) {
			t.Errorf("after it was accepted: %v %v", got, err)
		}
		w.end(c)
	})
}

// A member of a rejected response that is about to be sent anyway is not tried
// on its own.
func TestDirtyMembersAreNotTried(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := w.many(3)
		c := w.delta(rawxds.Silence)
		must(t, c.Subscribe(rawxds.EDS, hosts...))
		w.settle()
		w.put(svc(hosts[0], "10.0.0.1", "10.0.0.2")) // waits for the first answer
		w.settle()
		must(t, c.Nack(w.responses(c, rawxds.EDS, 1)[0], "some of these"))
		sent := make(map[string]int)
		for n := range 6 {
			w.settle()
			if all := c.Responses(rawxds.EDS)[1:]; n < len(all) {
				must(t, c.Ack(all[n]))
				for _, name := range all[n].Names() {
					sent[name]++
				}
			}
		}
		if len(sent) != 3 || sent[hosts[0]] != 1 || sent[hosts[1]] != 1 || sent[hosts[2]] != 1 {
			t.Errorf("sent again: %v", sent)
		}
		w.end(c)
	})
}

// A late rejection never touches a version that a later response carries.
func TestLateRejection(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c := w.delta(rawxds.Silence)
		must(t, c.Subscribe(rawxds.EDS, "orders.shop"))
		w.settle()
		w.urge(svc("orders.shop", "10.0.0.2"))
		w.settle()
		two := w.responses(c, rawxds.EDS, 2)
		must(t, c.Ack(two[1]))
		w.settle()
		must(t, c.Nack(two[0], "late"))
		w.settle()
		w.responses(c, rawxds.EDS, 2)
		w.urge(svc("orders.shop", "10.0.0.3"))
		w.settle()
		w.responses(c, rawxds.EDS, 3)
		if got := w.srv.Clients()[0].Types[0].Rejected; len(got) != 0 {
			t.Errorf("apart: %v", got)
		}
		w.end(c)
	})
}

// Members of a partly applied CDS response are sent again, and a Cluster that
// the client refused is not routed to.
func TestRejectedCluster(t *testing.T) {
	inWorld(t, func(w *world) {
		w.put(svc("orders.shop", "10.0.0.1"))
		c := w.sidecar()
		c.behave(func(r *rawxds.Response) rawxds.Answer {
			if r.Type == rawxds.CDS {
				return refusing("bad.shop")(r)
			}
			return rawxds.Answer{}
		})
		w.put(svc("bad.shop", "10.0.0.2"))
		w.put(svc("good.shop", "10.0.0.3"))
		time.Sleep(5 * time.Second)
		if _, ok := c.Held(rawxds.CDS)["good.shop"]; !ok {
			t.Errorf("the good one did not arrive: %s", brief(c.Responses("")))
		}
		if got := w.routes(c.Client); !slices.Equal(got, []string{"good.shop", "orders.shop"}) {
			t.Errorf("routes %v", got)
		}
		w.end(c.Client)
	})
}

// Towards gRPC, which applies what is good, nothing is resent until something in
// the set changes.
func TestRejectionBySotwClient(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := w.many(5)
		c := w.sotw("gRPC Go", refusing(hosts[2]))
		must(t, c.Ask(rawxds.CDS, hosts...))
		must(t, c.Ask(rawxds.EDS, hosts...))
		time.Sleep(time.Minute)
		w.responses(c, rawxds.CDS, 1)
		w.responses(c, rawxds.EDS, 1)
		w.put(svc(hosts[3], "10.0.0.4"))
		w.settle()
		w.gave(w.responses(c, rawxds.EDS, 2)[1], hosts[3:4])
		if len(w.nacks) != 2 || !strings.Contains(w.nacks[0].Detail, "bad") {
			t.Errorf("reported %+v", w.nacks)
		}
		w.end(c)
	})
}

// Envoy's assignments on state of the world are taken apart as on delta.
func TestRejectionBySotwEnvoy(t *testing.T) {
	inWorld(t, func(w *world) {
		hosts := w.many(5)
		c := w.sotw("envoy", refusing(hosts[2]))
		must(t, c.Ask(rawxds.EDS, hosts...))
		w.settle()
		if got := len(c.Held(rawxds.EDS)); got != 4 {
			t.Errorf("holds %d: %s", got, brief(c.Responses("")))
		}
		n := len(c.Responses(""))
		time.Sleep(time.Minute)
		w.responses(c, "", n)
		w.end(c)
	})
}
