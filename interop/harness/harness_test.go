package harness

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(LeftByGRPC)) }

// serveMTLS serves grpc.health.v1 to callers of the authority.
func serveMTLS(t *testing.T, ca *CA) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(ca.Mint(t, "/sightline/server/test").ServerTLS())))
	healthpb.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // ends with Stop
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return l.Addr().String()
}

func TestSVIDsAreGoodForMutualTLSAndOnlyWithinTheirAuthority(t *testing.T) {
	ca, other := NewCA(t, "test"), NewCA(t, "test")
	addr := serveMTLS(t, ca)
	stranger := other.Mint(t, "/ns/shop/sa/checkout")
	stranger.Roots = ca.Roots()
	for name, c := range map[string]struct {
		who  *SVID
		want codes.Code
	}{
		"workload":        {ca.Mint(t, "/ns/shop/sa/checkout"), codes.OK},
		"other authority": {stranger, codes.Unavailable},
		"expired":         {ca.MintFor(t, "spiffe://test/ns/shop/sa/checkout", -time.Minute), codes.Unavailable},
	} {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(c.who.ClientTLS())))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
		if got := status.Code(err); got != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		cancel()
		conn.Close()
	}
}

func TestGrpcurlCallsOverMutualTLS(t *testing.T) {
	ca := NewCA(t, "test")
	out, code := RunGrpcurl(t, ca.Mint(t, "/sightline/operator/test"), serveMTLS(t, ca), "{}", "grpc.health.v1.Health/Check")
	if code != 0 || !strings.Contains(out, "SERVING") {
		t.Errorf("exit code %d, answer %q", code, out)
	}
	if _, code := RunGrpcurl(t, NewCA(t, "test").Mint(t, "/x"), serveMTLS(t, ca), "{}", "grpc.health.v1.Health/Check"); code == 0 {
		t.Error("a stranger was answered")
	}
}

func TestBackendSaysWhoItIsFailsWhenToldAndComesBack(t *testing.T) {
	b := StartBackend(t, "one")
	c := DialPlain(t, b.Addr.String(), "")
	if got := c.Calls(3, time.Second); got["one"] != 3 || b.Calls() != 3 {
		t.Errorf("answers %v, calls %d", got, b.Calls())
	}
	b.Fail(codes.Internal)
	if got := c.Calls(2, time.Second); got["ERR Internal"] != 2 {
		t.Errorf("told to fail: %v", got)
	}
	b.Stop()
	if got := c.Calls(1, time.Second); got["ERR Unavailable"] != 1 {
		t.Errorf("stopped: %v", got)
	}
	StartBackendAt(t, "two", b.Addr.String())
	c.WaitOnly(t, 10*time.Second, "two")
}

func TestProcessEndsAsItIsTold(t *testing.T) {
	p := Start(t, "sleeper", "/bin/sh", []string{"WORD=hello"}, "-c", "echo $WORD; sleep 600 & wait")
	Eventually(t, 5*time.Second, "output", func() error {
		if p.Output() != "hello\n" {
			return fmt.Errorf("%q", p.Output())
		}
		return nil
	})
	if _, ended := p.Wait(time.Millisecond); ended || !p.Running() {
		t.Error("ended by itself")
	}
	p.Kill()
	if p.Running() {
		t.Error("runs after SIGKILL")
	}
	p.Signal(syscall.SIGTERM) // no effect, no panic
	if out, code := Run(t, 10*time.Second, nil, "/bin/sh", "-c", "echo out; echo err >&2; exit 3"); out != "out\n" || code != 3 {
		t.Errorf("output %q, code %d", out, code)
	}
}

func TestFreeBlockIsFreeAtEveryOffset(t *testing.T) {
	base := FreeBlock(t, 0, 1, 53, 80)
	for _, o := range []int{0, 1, 53, 80} {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+o))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

// A block of more than a hundred ports keeps others out of all of it.
func TestFreeBlockHoldsEveryHundredItIsGiven(t *testing.T) {
	base := FreeBlock(t, 0, 147)
	for _, hundred := range []int{0, 100} {
		if _, ok := reserve(base, []int{hundred}); ok {
			t.Errorf("another test is given the ports from %d", base+hundred)
		}
	}
}

func TestDigOutputIsRead(t *testing.T) {
	a := parseDig(`
; <<>> DiG 9.18 <<>> x
;; ->>HEADER<<- opcode: QUERY, status: NOERROR, id: 7
;; flags: qr aa; QUERY: 1, ANSWER: 2, AUTHORITY: 0, ADDITIONAL: 2

;; OPT PSEUDOSECTION:
; EDNS: version: 0, flags:; udp: 1232
;; QUESTION SECTION:
;_grpc._tcp.checkout.shop.	IN	SRV

;; ANSWER SECTION:
_grpc._tcp.checkout.shop. 5	IN	SRV	0 100 9090 i17.checkout.shop.
checkout.shop.	5	IN	A	10.0.0.1

;; ADDITIONAL SECTION:
i17.checkout.shop. 5 IN A 10.0.0.1

;; Query time: 0 msec
`)
	if a.Status != "NOERROR" || !a.Has("aa") || a.Has("tc") {
		t.Errorf("status %q, flags %v", a.Status, a.Flags)
	}
	if got := a.Data("SRV"); !slices.Equal(got, []string{"0 100 9090 i17.checkout.shop."}) {
		t.Errorf("SRV %v", got)
	}
	if len(a.Answer) != 2 || len(a.Authority) != 0 || len(a.Additional) != 1 {
		t.Errorf("sections %v %v %v", a.Answer, a.Authority, a.Additional)
	}
}
