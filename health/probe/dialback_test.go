package probe_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health/probe"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

const web = "spiffe://prod.example/ns/shop/sa/web"

// source is an SVID of an authority's.
func source(t *testing.T, ca *devca.Authority, id string) *svid.Source {
	t.Helper()
	d, err := ca.Issue(identity.MustParse(id), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s, err := svid.FromDocuments(d.SVID, d.Key, ca.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func authority(t *testing.T) *devca.Authority {
	t.Helper()
	ca, err := devca.New("prod.example", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// asWorkload serves mutual TLS with an identity.
func asWorkload(s *svid.Source) func(net.Conn) {
	return func(c net.Conn) {
		conn := tls.Server(c, s.ServerTLS())
		if conn.Handshake() == nil {
			_, _ = io.Copy(io.Discard, conn) // until the prober has left
		}
	}
}

func dialBack(m *healthv1.Target) { m.DialBack, m.Identity = true, web }

// TestDialBack: the registered identity proves an address, and nothing else
// does.
func TestDialBack(t *testing.T) {
	for name, row := range map[string]struct {
		serve  func(t *testing.T, ca *devca.Authority) func(net.Conn)
		want   probe.Outcome
		detail string
	}{
		"the registered identity": {func(t *testing.T, ca *devca.Authority) func(net.Conn) { return asWorkload(source(t, ca, web)) }, probe.OK, ""},
		"another identity": {func(t *testing.T, ca *devca.Authority) func(net.Conn) { return asWorkload(source(t, ca, web+"2")) }, probe.WrongIdentity,
			"spiffe://prod.example/ns/shop/sa/web2 answered, " + web + " is expected"},
		"the name, another root": {func(t *testing.T, _ *devca.Authority) func(net.Conn) { return asWorkload(source(t, authority(t), web)) }, probe.WrongIdentity, ""},
		"plain text": {func(*testing.T, *devca.Authority) func(net.Conn) {
			return func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") }
		}, probe.Failed, ""},
		"silent": {func(*testing.T, *devca.Authority) func(net.Conn) {
			return func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
		}, probe.TimedOut, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				ca := authority(t)
				w.listen(at, row.serve(t, ca))
				c := w.config()
				c.SVID = source(t, ca, "spiffe://prod.example/sightline/prober/p1")
				var results []probe.Result
				c.Events.Changed = func(r probe.Result, _ probe.Outcome) { results = append(results, r) }
				w.plane.assign(full(1, target("i1", at, dialBack)))
				_, stop := w.run(c)
				time.Sleep(9 * time.Second)
				stop()
				if len(results) == 0 || results[0].Kind != probe.DialBack || results[0].Outcome != row.want || !strings.Contains(results[0].Detail, row.detail) {
					t.Fatalf("%+v, want %v %q", results, row.want, row.detail)
				}
				heard, proved, bad := w.plane.heard()
				if len(bad) > 0 {
					t.Fatal(bad[0])
				}
				if good := row.want == probe.OK; good != slices.Contains(proved, "i1") {
					t.Errorf("dialled back: %v", proved)
				}
				for _, r := range heard { // of no probe, since none was made
					if r.result != healthv1.ProbeResult_PROBE_RESULT_WRONG_IDENTITY {
						t.Errorf("heard %v", r.result)
					}
				}
				if told := len(heard) > 0; told != (row.want == probe.WrongIdentity) {
					t.Errorf("heard %d words about who answers", len(heard))
				}
				if n := len(w.dials(at)); row.want == probe.OK && n != 1 || row.want != probe.OK && (n < 4 || n > 6) {
					t.Errorf("connected to %d times in 9 s", n)
				}
			})
		})
	}
}

// TestUnprovedAddress: it is not probed before its dial-back worked, and never
// by a prober that cannot make one.
func TestUnprovedAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.plane.assign(full(1, target("i1", at, dialBack)))
		_, stop := w.run(w.config())
		time.Sleep(20 * time.Second)
		stop()
		if len(w.dialled) > 0 {
			t.Errorf("a prober without an SVID connected to %v", w.dialled)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ca := authority(t)
		c := w.config()
		c.SVID = source(t, ca, "spiffe://prod.example/sightline/prober/p1")
		w.listen(at, asWorkload(source(t, ca, web)))
		w.plane.assign(full(1, target("i1", at, dialBack)))
		p, stop := w.run(c)
		time.Sleep(60 * time.Second)
		n := p.Counts().Results
		if got := n[probe.DialBack][probe.OK]; got < 4 || got > 7 {
			t.Errorf("%d dial-backs in a minute, one each 10 s is asked for while it is not confirmed", got)
		}
		if got := n[probe.TCP]; got != [len(got)]int64{} {
			t.Errorf("probed before the control plane said that it is proved: %v", got)
		}
		w.plane.assign(full(2, target("i1", at)))
		time.Sleep(2100 * time.Millisecond)
		if p.Counts().Results[probe.TCP][probe.OK] == 0 {
			t.Error("not probed within an interval of being proved")
		}
		time.Sleep(60 * time.Second)
		stop()
		if after := p.Counts().Results; after[probe.DialBack] != n[probe.DialBack] || after[probe.TCP][probe.OK] < n[probe.TCP][probe.OK]+25 {
			t.Errorf("after the confirmation: %v, before: %v", after, n)
		}
	})
}

// TestDialBackBudget: what one identity can make a prober connect to is
// bounded, and another's is not used up by it.
func TestDialBackBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ca := authority(t)
		c := w.config()
		c.SVID = source(t, ca, "spiffe://prod.example/sightline/prober/p1")
		c.Limits.DialBackRate, c.Limits.DialBackBurst = 5, 10
		var list []*healthv1.Target
		for i := range 200 {
			list = append(list, target(fmt.Sprintf("i%d", i), fmt.Sprintf("10.2.0.%d:80", i+1), dialBack))
		}
		other := target("i999", "10.3.0.1:80", dialBack)
		other.Identity = "spiffe://prod.example/ns/shop/sa/api"
		w.plane.assign(full(1, append(list, other)...))
		p, stop := w.run(c)
		time.Sleep(30 * time.Second)
		stop()
		n := len(w.dialled) - len(w.dials("10.3.0.1:80"))
		if n < 100 || n > 10+5*30 {
			t.Errorf("%d dial-backs for one identity in 30 s at 5 a second", n)
		}
		if n := len(w.dials("10.3.0.1:80")); n < 12 {
			t.Errorf("the other identity's address was dialled %d times in 30 s", n)
		}
		if p.Counts().DialBacksHeld == 0 {
			t.Error("nothing says that dial-backs were held")
		}
	})
}
