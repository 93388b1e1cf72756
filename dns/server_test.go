package dns

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/views"
)

// start runs a server on loopback until the test ends.
func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.Listen, cfg.Zones = "127.0.0.1:0", []string{"z.test"}
	cfg.Policy = func() *authz.Policy { return &authz.Policy{} }
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

func ask(t *testing.T, s *Server, network, name string, typ uint16) *mdns.Msg {
	t.Helper()
	req := new(mdns.Msg)
	req.SetQuestion(name, typ)
	c := &mdns.Client{Net: network, Timeout: 5 * time.Second}
	m, _, err := c.Exchange(req, s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestSockets: both transports answer, the truncated UDP answer is whole over
// TCP, and a change is seen by the next question.
func TestSockets(t *testing.T) {
	var snap atomic.Pointer[views.Snapshot]
	snap.Store(views.NewSnapshot(false))
	s := start(t, Config{Snapshot: snap.Load})
	if m := ask(t, s, "udp", "b.a.svc.z.test.", mdns.TypeA); m.Rcode != mdns.RcodeServerFailure {
		t.Fatalf("while loading: %s, want SERVFAIL", mdns.RcodeToString[m.Rcode])
	}
	snap.Store(views.NewSnapshot(true, service("a", "b", true, manyMembers(40)...)))
	if m := ask(t, s, "udp", "_grpc._tcp.b.a.svc.z.test.", mdns.TypeSRV); !m.Truncated || len(m.Answer) == 0 {
		t.Fatalf("UDP: truncated=%t with %d answers", m.Truncated, len(m.Answer))
	}
	if m := ask(t, s, "tcp", "_grpc._tcp.b.a.svc.z.test.", mdns.TypeSRV); m.Truncated || len(m.Answer) != 40 {
		t.Fatalf("TCP: truncated=%t with %d answers, want 40", m.Truncated, len(m.Answer))
	}
}

// TestConnectionLimits: a host's connections above the limit are closed, and a
// closed one gives its place back.
func TestConnectionLimits(t *testing.T) {
	refused := make(chan string, 8)
	snap := views.NewSnapshot(true, service("a", "b", true, "x 10.0.0.1"))
	s := start(t, Config{
		TCPConnectionsPerHost: 2, Snapshot: func() *views.Snapshot { return snap },
		Events: Events{Refused: func(l string) { refused <- l }},
	})
	dial := func() net.Conn {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b, c := dial(), dial(), dial()
	defer b.Close()
	defer c.Close()
	if l := <-refused; l != "connections_per_address" {
		t.Fatalf("refused by %q", l)
	}
	_ = a.Close()
	deadline := time.Now().Add(5 * time.Second)
	for {
		req := new(mdns.Msg)
		req.SetQuestion("b.a.svc.z.test.", mdns.TypeA)
		m, _, err := (&mdns.Client{Net: "tcp", Timeout: time.Second}).Exchange(req, s.Addr().String())
		if err == nil && len(m.Answer) == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the freed place was never given: %v", err)
		}
	}
}

// TestConnectionsEnd: a connection is closed after its queries, and when it is
// idle; the DO bit comes back as it was sent.
func TestConnectionsEnd(t *testing.T) {
	snap := views.NewSnapshot(true, service("a", "b", true, "x 10.0.0.1"))
	for what, cfg := range map[string]Config{
		"its queries": {TCPQueries: 2}, "idleness": {TCPIdle: 50 * time.Millisecond},
	} {
		cfg.Snapshot = func() *views.Snapshot { return snap }
		c, err := mdns.DialTimeout("tcp", start(t, cfg).Addr().String(), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		for n := range 2 {
			req := new(mdns.Msg)
			req.SetQuestion("b.a.svc.z.test.", mdns.TypeA)
			req.SetEdns0(1232, n == 0)
			if err := c.WriteMsg(req); err != nil {
				t.Fatalf("%s: query %d: %v", what, n, err)
			}
			if m, err := c.ReadMsg(); err != nil || len(m.Answer) != 1 || m.IsEdns0().Do() != (n == 0) {
				t.Fatalf("%s: answer %d: %v, %v", what, n, m, err)
			}
		}
		began := time.Now()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("after %s: %v, want the end of the connection", what, err)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("after %s: closed only after %s", what, took)
		}
		_ = c.Close()
	}
}

// TestGarbage: bytes that are no message do not stop the next answer.
func TestGarbage(t *testing.T) {
	snap := views.NewSnapshot(true, service("a", "b", true, "x 10.0.0.1"))
	s := start(t, Config{Snapshot: func() *views.Snapshot { return snap }})
	c, err := net.Dial("udp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, garbage := range []string{"", "x", strings.Repeat("\xff", 600), "\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c"} {
		if _, err := c.Write([]byte(garbage)); err != nil {
			t.Fatal(err)
		}
	}
	if m := ask(t, s, "udp", "b.a.svc.z.test.", mdns.TypeA); len(m.Answer) != 1 {
		t.Fatalf("no answer after garbage: %v", m)
	}
}

// TestNew: what is wrong with a configuration is said.
func TestNew(t *testing.T) {
	for want, cfg := range map[string]Config{
		"no DNS zone configured":    {Listen: "127.0.0.1:0"},
		"is not a DNS label":        {Listen: "127.0.0.1:0", Zones: []string{"under_score.test"}},
		"an apex has 1 to 48":       {Listen: "127.0.0.1:0", Zones: []string{"aaa." + strings.Repeat("a.", 23)}},
		"bind UDP 127.0.0.1:999999": {Listen: "127.0.0.1:999999", Zones: []string{"z.test"}},
	} {
		if s, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, %v; want an error with %q", cfg, s, err, want)
		}
	}
	if _, err := parseZone("aa." + strings.Repeat("a.", 23)); err != nil {
		t.Errorf("an apex of 48 bytes and its final dot: %v", err)
	}
}
