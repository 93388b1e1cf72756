package probe_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sightlinedev/sightline/health/probe"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

const at = "10.1.2.3:8080"

var (
	overHTTP = asking(registryv1.ProbeKind_PROBE_KIND_HTTP, "", "/healthz")
	overGRPC = asking(registryv1.ProbeKind_PROBE_KIND_GRPC, "shop.Web", "")
)

// TestWaysOfDialling: what a dial says about an instance, and what it says
// about the prober.
func TestWaysOfDialling(t *testing.T) {
	for name, row := range map[string]struct {
		arrange func(*world)
		want    probe.Outcome
		detail  string
	}{
		"listens":        {func(w *world) { w.listen(at, func(net.Conn) {}) }, probe.OK, ""},
		"nobody listens": {func(*world) {}, probe.Refused, "connection refused"},
		"hangs":          {func(w *world) { w.set(w.hang, at) }, probe.TimedOut, "within the timeout"},
		"no route":       {func(w *world) { w.set(w.unreachable, at) }, probe.Unreachable, "no route to host"},
		"no descriptors": {func(w *world) { w.breakUs(syscall.EMFILE) }, probe.NoWord, "too many open files"},
		"no ports":       {func(w *world) { w.breakUs(syscall.EADDRNOTAVAIL) }, probe.NoWord, ""},
		"our firewall":   {func(w *world) { w.breakUs(syscall.EPERM) }, probe.NoWord, ""},
		"reset":          {func(w *world) { w.breakUs(syscall.ECONNRESET) }, probe.Failed, "reset"},
		"network away":   {func(w *world) { w.breakUs(syscall.ENETUNREACH) }, probe.Unreachable, ""},
		"kernel's limit": {func(w *world) { w.breakUs(syscall.ETIMEDOUT) }, probe.TimedOut, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				row.arrange(w)
				r := w.askOnce(w.config(), target("i1", at))
				if r.Outcome != row.want || !strings.Contains(r.Detail, row.detail) || r.Address != at {
					t.Errorf("%v %q at %s, want %v %q", r.Outcome, r.Detail, r.Address, row.want, row.detail)
				}
				if row.want == probe.TimedOut && name == "hangs" && r.Latency != time.Second {
					t.Errorf("it took %v, the timeout is 1s", r.Latency)
				}
				if row.want == probe.NoWord {
					w.nothingHeard(t)
				}
			})
		})
	}
}

// nothingHeard: what is the prober's own trouble is silence.
func (w *world) nothingHeard(t *testing.T) {
	t.Helper()
	time.Sleep(5 * time.Second)
	if results, _, _ := w.plane.heard(); len(results) > 0 {
		t.Errorf("%d results were reported, the first %v", len(results), results[0].result)
	}
}

// answering writes the same bytes to every request.
func answering(response string) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		_, _ = io.WriteString(c, response) // a prober may have heard enough
	}
}

// dribbling writes a start, and then a byte each 100 ms for ever.
func dribbling(start, more string) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		_, err := io.WriteString(c, start)
		for i := 0; err == nil; i++ {
			time.Sleep(100 * time.Millisecond)
			_, err = c.Write([]byte{more[i%len(more)]})
		}
	}
}

func TestHTTP(t *testing.T) {
	for name, row := range map[string]struct {
		serve  func(net.Conn)
		want   probe.Outcome
		detail string
	}{
		"200":             {answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), probe.OK, ""},
		"204":             {answering("HTTP/1.1 204 No Content\r\n\r\n"), probe.OK, ""},
		"to the end":      {answering("HTTP/1.0 200 OK\r\n\r\nas long as the connection"), probe.OK, ""},
		"interim":         {answering("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), probe.OK, ""},
		"interim alone":   {answering(strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 50)), probe.Failed, "interim"},
		"404":             {answering("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), probe.Failed, "HTTP 404"},
		"503":             {answering("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), probe.Failed, "HTTP 503"},
		"redirect":        {answering("HTTP/1.1 302 Found\r\nLocation: http://10.9.9.9:80/\r\nContent-Length: 0\r\n\r\n"), probe.Failed, "redirects are not followed"},
		"not HTTP":        {answering("SSH-2.0-x\r\n"), probe.Failed, ""},
		"closes":          {func(net.Conn) {}, probe.Failed, "closed before an answer"},
		"cut in the body": {answering("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok"), probe.Failed, "closed before an answer"},
		"long body":       {answering("HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n" + strings.Repeat("x", 200000)), probe.OK, ""},
		"long headers":    {answering("HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 50000) + "\r\n"), probe.Failed, "headers of more than"},
		"silent":          {func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, probe.TimedOut, ""},
		"slow headers":    {dribbling("HTTP/1.1 200 OK\r\n", "A: b\r\n"), probe.TimedOut, ""},
		"slow body":       {dribbling("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"), probe.TimedOut, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.listen(at, row.serve)
				r := w.askOnce(w.config(), target("i1", at, overHTTP))
				if r.Outcome != row.want || !strings.Contains(r.Detail, row.detail) {
					t.Errorf("%v %q, want %v %q", r.Outcome, r.Detail, row.want, row.detail)
				}
				if r.Latency > time.Second || r.Received > 65<<10 {
					t.Errorf("it took %v and %d bytes", r.Latency, r.Received)
				}
				for _, d := range w.dialled {
					if d.to.String() != at {
						t.Errorf("it also connected to %v", d.to)
					}
				}
			})
		})
	}
}

// TestHTTPRequest: what an instance sees.
func TestHTTPRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		seen := make(chan *http.Request, 1)
		w.listen(at, func(c net.Conn) {
			if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				seen <- r
			}
		})
		w.askOnce(w.config(), target("i1", at, asking(registryv1.ProbeKind_PROBE_KIND_HTTP, "", "/ready?deep=1")))
		r := <-seen
		if r.Method != "GET" || r.RequestURI != "/ready?deep=1" || r.Host != at || r.UserAgent() != "sightline-prober" || !r.Close {
			t.Errorf("%s %s, host %s, agent %s, close %v", r.Method, r.RequestURI, r.Host, r.UserAgent(), r.Close)
		}
	})
}

// serveGRPC serves a gRPC server at the address.
func (w *world) serveGRPC(register func(*grpc.Server)) {
	l := w.listener(at)
	s := grpc.NewServer()
	register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	w.t.Cleanup(func() { s.Stop(); <-done })
}

// stuck is a health server that answers nothing.
type stuck struct {
	healthpb.UnimplementedHealthServer
}

// Check waits for the caller to give up.
func (stuck) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestGRPC(t *testing.T) {
	serving := func(status healthpb.HealthCheckResponse_ServingStatus) func(*world) {
		return func(w *world) {
			h := health.NewServer()
			h.SetServingStatus("shop.Web", status)
			w.serveGRPC(func(s *grpc.Server) { healthpb.RegisterHealthServer(s, h) })
		}
	}
	for name, row := range map[string]struct {
		arrange func(*world)
		want    probe.Outcome
		detail  string
	}{
		"serving":     {serving(healthpb.HealthCheckResponse_SERVING), probe.OK, ""},
		"not serving": {serving(healthpb.HealthCheckResponse_NOT_SERVING), probe.Failed, "gRPC health NOT_SERVING"},
		"not known": {func(w *world) {
			w.serveGRPC(func(s *grpc.Server) { healthpb.RegisterHealthServer(s, health.NewServer()) })
		}, probe.Failed, `gRPC NotFound: its health server does not know service "shop.Web"`},
		"no health server": {func(w *world) { w.serveGRPC(func(*grpc.Server) {}) }, probe.Failed, "gRPC Unimplemented"},
		"stuck": {func(w *world) {
			w.serveGRPC(func(s *grpc.Server) { healthpb.RegisterHealthServer(s, stuck{}) })
		}, probe.TimedOut, ""},
		"HTTP/1":        {func(w *world) { w.listen(at, answering("HTTP/1.1 400 Bad Request\r\n\r\n")) }, probe.Failed, ""},
		"closes":        {func(w *world) { w.listen(at, func(net.Conn) {}) }, probe.Failed, ""},
		"silent":        {func(w *world) { w.listen(at, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }) }, probe.TimedOut, ""},
		"never reading": {func(w *world) { w.listen(at, func(net.Conn) { time.Sleep(time.Hour) }) }, probe.TimedOut, ""},
		"no such frame": {func(w *world) {
			w.listen(at, func(c net.Conn) { _, _ = io.Copy(c, strings.NewReader(strings.Repeat("\xff", 1<<20))) })
		}, probe.Failed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				row.arrange(w)
				r := w.askOnce(w.config(), target("i1", at, overGRPC))
				if r.Outcome != row.want || !strings.Contains(r.Detail, row.detail) {
					t.Errorf("%v %q, want %v %q", r.Outcome, r.Detail, row.want, row.detail)
				}
				if r.Latency > time.Second || r.Received > 100<<10 {
					t.Errorf("it took %v and %d bytes", r.Latency, r.Received)
				}
			})
		})
	}
}

// TestGRPCAnswerWithoutEnd: a body without an end is read up to a bound.
func TestGRPCAnswerWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		l := w.listener(at)
		s := &http.Server{Protocols: &protocols, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "application/grpc")
			for r.Context().Err() == nil {
				if _, err := rw.Write(make([]byte, 16<<10)); err != nil {
					return
				}
			}
		})}
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		r := w.askOnce(w.config(), target("i1", at, overGRPC))
		if r.Outcome != probe.Failed || r.Received > 200<<10 {
			t.Errorf("%v %q after %d bytes", r.Outcome, r.Detail, r.Received)
		}
		_ = s.Close()
		<-done
	})
}

// TestNames: a name is looked up at each probe, every address it stands for is
// looked at, and only an address that was is connected to.
func TestNames(t *testing.T) {
	good := func(w *world) { w.listen("10.1.2.3:443", func(net.Conn) {}) }
	for name, row := range map[string]struct {
		addrs   []string
		err     error
		arrange func(*world)
		want    probe.Outcome
		detail  string
		dials   int
	}{
		"one":           {[]string{"10.1.2.3"}, nil, good, probe.OK, "", 1},
		"mapped":        {[]string{"::ffff:10.1.2.3"}, nil, good, probe.OK, "", 1},
		"second":        {[]string{"10.1.2.4", "10.1.2.3"}, nil, good, probe.OK, "", 2},
		"first hangs":   {[]string{"10.1.2.4", "10.1.2.3"}, nil, func(w *world) { good(w); w.set(w.hang, "10.1.2.4:443") }, probe.OK, "", 2},
		"rebound":       {[]string{"127.0.0.1"}, nil, good, probe.NoWord, "loopback", 0},
		"metadata":      {[]string{"169.254.169.254", "::ffff:169.254.169.254"}, nil, good, probe.NoWord, "link-local", 0},
		"one is good":   {[]string{"127.0.0.1", "10.1.2.3"}, nil, good, probe.OK, "", 1},
		"none":          {nil, nil, good, probe.NoWord, "no address", 0},
		"no such name":  {nil, &net.DNSError{Err: "no such host", IsNotFound: true}, good, probe.Failed, "does not exist", 0},
		"resolver away": {nil, &net.DNSError{Err: "server misbehaving", IsTemporary: true}, good, probe.NoWord, "could not be looked up", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				row.arrange(w)
				c := w.config()
				c.Lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
					if host != "api.partner.example" {
						t.Errorf("looked up %q", host)
					}
					var out []netip.Addr
					for _, a := range row.addrs {
						out = append(out, netip.MustParseAddr(a))
					}
					return out, row.err
				}
				r := w.askOnce(c, target("i1", "192.0.2.1:443", named("api.partner.example")))
				if r.Outcome != row.want || !strings.Contains(r.Detail, row.detail) || len(w.dialled) != row.dials {
					t.Errorf("%v %q after %d dials, want %v %q after %d", r.Outcome, r.Detail, len(w.dialled), row.want, row.detail, row.dials)
				}
			})
		})
	}
}

// TestTargetsThatAreNotAsked: each refusal names its reason, and nothing is
// connected to.
func TestTargetsThatAreNotAsked(t *testing.T) {
	address := func(a string) func(*healthv1.Target) {
		return func(m *healthv1.Target) { m.Endpoint = &healthv1.Target_Address{Address: a} }
	}
	for name, row := range map[string]struct {
		edit   func(*healthv1.Target)
		reason string
	}{
		"loopback":            {address("127.0.0.1"), "loopback"},
		"loopback's network":  {address("127.8.8.8"), "loopback"},
		"loopback v6":         {address("::1"), "loopback"},
		"mapped loopback":     {address("::ffff:127.0.0.1"), "loopback"},
		"compatible loopback": {address("::127.0.0.1"), "loopback"},
		"translated loopback": {address("64:ff9b::7f00:1"), "loopback"},
		"6to4 loopback":       {address("2002:7f00:1::"), "loopback"},
		"unspecified":         {address("0.0.0.0"), "unspecified"},
		"this network":        {address("0.1.2.3"), "unspecified"},
		"unspecified v6":      {address("::"), "unspecified"},
		"metadata":            {address("169.254.169.254"), "link-local"},
		"container metadata":  {address("169.254.170.2"), "link-local"},
		"mapped metadata":     {address("::ffff:169.254.169.254"), "link-local"},
		"translated metadata": {address("64:ff9b::a9fe:a9fe"), "link-local"},
		"metadata v6":         {address("fd00:ec2::254"), "metadata"},
		"another metadata":    {address("100.100.100.200"), "metadata"},
		"wire server":         {address("168.63.129.16"), "metadata"},
		"metadata v6 of gcp":  {address("fd20:ce::254"), "metadata"},
		"link-local v6":       {address("fe80::1"), "link-local"},
		"link-local and zone": {address("fe80::1%eth0"), "one interface"},
		"site-local":          {address("fec0::1"), "site-local"},
		"multicast":           {address("224.0.0.1"), "multicast"},
		"multicast v6":        {address("ff02::1"), "multicast"},
		"broadcast":           {address("255.255.255.255"), "broadcast"},
		"reserved":            {address("240.0.0.1"), "reserved"},
		"protocol's":          {address("192.0.0.192"), "metadata"},
		"teredo":              {address("2001::1"), "Teredo"},
		"no address":          {address("instance.example"), "address"},
		"empty":               {address(""), "address"},
		"no port":             {func(m *healthv1.Target) { m.Port = 0 }, "port"},
		"no such port":        {func(m *healthv1.Target) { m.Port = 65536 }, "port"},
		"no such kind":        {func(m *healthv1.Target) { m.Probe.Kind = 99 }, "kind"},
		"path without slash":  {asking(registryv1.ProbeKind_PROBE_KIND_HTTP, "", "healthz"), "path"},
		"path of elsewhere":   {asking(registryv1.ProbeKind_PROBE_KIND_HTTP, "", "http://10.9.9.9/"), "path"},
		"path with a host":    {asking(registryv1.ProbeKind_PROBE_KIND_HTTP, "", "//10.9.9.9/x"), "path"},
		"path with a line":    {asking(registryv1.ProbeKind_PROBE_KIND_HTTP, "", "/x HTTP/1.1\r\nHost: y"), "path"},
		"bad identity":        {func(m *healthv1.Target) { m.Identity = "https://x/y" }, "SPIFFE"},
		"nobody to expect":    {func(m *healthv1.Target) { m.DialBack = true }, "no identity"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				r := w.askOnce(w.config(), target("i1", at, row.edit))
				if r.Outcome != probe.NoWord || !strings.Contains(r.Detail, row.reason) {
					t.Errorf("%v %q, want a refusal with %q", r.Outcome, r.Detail, row.reason)
				}
				if len(w.dialled) > 0 {
					t.Errorf("%v was connected to", w.dialled)
				}
			})
		})
	}
}

// TestLoopbackInDevelopment: it is allowed by the flag, and nothing else is.
func TestLoopbackInDevelopment(t *testing.T) {
	for a, want := range map[string]probe.Outcome{
		"127.0.0.1:80": probe.OK, "[::1]:80": probe.OK, "169.254.169.254:80": probe.NoWord, "[fe80::1]:80": probe.NoWord,
		"224.0.0.1:80": probe.NoWord, "[64:ff9b::7f00:1]:80": probe.NoWord,
	} {
		t.Run(a, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.listen(a, func(net.Conn) {})
				c := w.config()
				c.AllowLoopback = true
				if r := w.askOnce(c, target("i1", a)); r.Outcome != want {
					t.Errorf("%v %q, want %v", r.Outcome, r.Detail, want)
				}
			})
		})
	}
}

// TestStateChanges: one event for each change of outcome or detail.
func TestStateChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var told []string
		c := w.config()
		c.Events.Changed = func(r probe.Result, before probe.Outcome) {
			told = append(told, fmt.Sprintf("%v>%v %s", before, r.Outcome, r.Detail))
		}
		w.listen(at, func(net.Conn) {})
		w.plane.assign(full(1, target("i1", at)))
		_, stop := w.run(c)
		time.Sleep(20 * time.Second)
		w.stopListening(at)
		time.Sleep(20 * time.Second)
		w.listen(at, func(net.Conn) {})
		time.Sleep(20 * time.Second)
		stop()
		want := []string{"no word>ok ", "ok>refused connection refused", "refused>ok "}
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}
