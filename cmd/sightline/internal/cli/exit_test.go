package cli

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
	"github.com/sightlinedev/sightline/server"
	slstatus "github.com/sightlinedev/sightline/server/status"
)

// deaf accepts connections and says nothing, as a server that hangs does.
func deaf(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// nobody is an address that nobody listens on.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestExitCodes reaches each exit code of UX.md §5.8 with a command line, and
// each says why.
func TestExitCodes(t *testing.T) {
	w := newWorld(t).serve(server.Config{})
	w.file("shop.yaml", shop)
	w.ok("apply", "-f", "{dir}/shop.yaml")
	w.file("profile.yaml", "apiVersion: sightline.dev/v1\nkind: CapabilityProfile\nmetadata: {namespace: shop, name: p}\nspec: {supplies: [self]}\n")
	w.file("user.yaml", "apiVersion: sightline.dev/v1\nkind: Service\nmetadata: {namespace: shop, name: user}\n"+
		"spec: {profile: p, ports: [{name: grpc, number: 1}]}\n")
	w.file("draft.yaml", "apiVersion: sightline.dev/v1\nkind: Contract\nmetadata: {namespace: shop, name: checkout}\nspec: {require: [probe]}\n")
	w.file("good.yaml", "apiVersion: sightline.dev/v1\nkind: Contract\nmetadata: {namespace: shop, name: draft}\nspec: {guardPercent: 60}\n")
	w.ok("apply", "-f", "{dir}/profile.yaml", "-f", "{dir}/user.yaml")
	down, hung := nobody(t), deaf(t)
	for _, c := range []struct {
		line string
		code int
		says string
	}{
		{"service list", 0, ""},
		{"resolve shop/none", 1, "not found"},
		{"service list --bogus", 2, "see: sightline service list --help"},
		{"status --api " + down, 3, down},
		{"service list --api " + down, 3, "connection refused"},
		{"service list --timeout 300ms --api " + hung, 3, "no connection within 300ms"},
		{"delete -f {dir}/profile.yaml", 5, "nothing was changed"},
		{"why shop/none", 1, "not found"},
		{"why checkout", 2, "write NAMESPACE/SERVICE"},
		{"history shop/checkout --since 0s", 2, "above 0"},
		{"history shop/checkout/none", 1, "not found"},
		{"history shop/checkout/i99", 1, "not found"},
		{"history shop/none", 1, "not found"},
		{"quarantine release shop/checkout/checkout-1 --justification repaired", 5, "not in quarantine"},
		{"quarantine release shop/checkout/checkout-1", 2, "say why"},
		{"quarantine list shop/none", 1, "not found"},
		{"brake release --justification checked", 5, "not engaged"},
		{"brake release --source file:none --justification checked", 5, "holds no removal"},
		{"view diff shop/checkout 5", 2, "write A..B"},
		{"view diff shop/checkout five..", 2, "write its number"},
		{"view diff shop/checkout 999999999..", 1, "newer than"},
		{"view get shop/none", 1, "not found"},
		{"contract get shop/none", 1, "not found"},
		{"contract test shop/checkout", 2, "name the draft"},
		{"contract test -f {dir}/none.yaml shop/checkout", 2, "no such file"},
		{"diff -f {dir}/none.yaml", 2, "no such file"},
		{"apply -f {dir}/none.yaml", 2, "no such file"},
		{"contract test -f {dir}/user.yaml shop/checkout", 2, "0 contracts"},
		{"contract test -f {dir}/draft.yaml shop/checkout", 1, "draft.yaml:4:"},
		{"contract test -f {dir}/good.yaml shop/checkout", 0, "no minute of shop/checkout is recorded"},
		{"contract test -f {dir}/good.yaml shop/checkout --since 200h", 1, "since"},
	} {
		r := w.run("", strings.Fields(c.line)...)
		if r.code != c.code || !strings.Contains(r.errOut, c.says) {
			t.Errorf("sightline %s ended with %d, want %d; it said:\n%s", c.line, r.code, c.code, r.errOut)
		}
	}
}

// TestDegradedStatus ends with 6 when a client refuses what it was sent, and
// names the command that says more.
func TestDegradedStatus(t *testing.T) {
	w := newWorld(t).serve(server.Config{})
	w.file("shop.yaml", shop)
	w.ok("apply", "-f", "{dir}/shop.yaml")
	w.until("resolve shop/checkout", "eligible")
	s := w.subscribe("refuses", "checkout.shop")
	if r := w.run("", "status"); r.code != exitOK {
		t.Fatalf("before: %d\n%s", r.code, r.out)
	}
	if err := s.refuse("no such \x1b[31m transport socket"); err != nil {
		t.Fatal(err)
	}
	w.until("client list --nacked -o wide", "no-such-")
	r := w.run("", "status")
	if r.code != exitDegraded || !strings.Contains(r.out, "clients: 1 reject what they were sent. See: sightline client list --nacked") || r.errOut != "" {
		t.Errorf("status ended with %d:\n%s%s", r.code, r.out, r.errOut)
	}
	if r := w.run("", "status", "-o", "json"); r.code != exitDegraded || !strings.Contains(r.out, `"clients: 1 reject`) {
		t.Errorf("status -o json ended with %d:\n%s", r.code, r.out)
	}
	if out := w.ok("client", "list"); !strings.Contains(out, "NACK(") {
		t.Errorf("client list:\n%s", out)
	}
}

// slow is a server of the test's trust domain that takes every call and answers none.
func (w *world) slow() (addr string) {
	w.t.Helper()
	now := time.Now()
	ca, err := devca.Open(w.srv.IdentityDir(), server.DefaultTrustDomain, now)
	if err != nil {
		w.t.Fatal(err)
	}
	doc, err := ca.Issue(identity.MustParse("spiffe://"+server.DefaultTrustDomain+"/sightline/server/slow"), now)
	if err != nil {
		w.t.Fatal(err)
	}
	src, err := svid.FromDocuments(doc.SVID, doc.Key, ca.Bundle())
	if err != nil {
		w.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.Creds(src.ServerCredentials(svid.Gate{})), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	}))
	go func() { _ = srv.Serve(l) }() // ends with Stop
	w.t.Cleanup(srv.Stop)
	return l.Addr().String()
}

// TestTimeouts ends with 4 when a connection is there and no answer comes.
func TestTimeouts(t *testing.T) {
	w := newWorld(t).serve(server.Config{})
	slow := w.slow()
	for _, line := range []string{"service list", "status", "resolve shop/checkout"} {
		r := w.run("", append(strings.Fields(line), "--timeout", "500ms", "--api", slow)...)
		if r.code != exitTimeout || !strings.Contains(r.errOut, slow) || !strings.Contains(r.errOut, "did not answer within 500ms") {
			t.Errorf("%s ended with %d:\n%s", line, r.code, r.errOut)
		}
	}
	r := w.run("", strings.Fields("instance register shop/checkout --address 127.0.0.1 --timeout 500ms --api "+slow)...)
	if r.code != exitTimeout {
		t.Errorf("register ended with %d:\n%s", r.code, r.errOut)
	}
}

// TestErrorsSayEverythingOnce prints a server's refusal with its code once,
// its bad fields once, and ends with the code of its kind.
func TestErrorsSayEverythingOnce(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		want string
	}{
		{slstatus.Errorf(slstatus.NotFound, "service %q: not found", "shop/a"), 1, "not found"},
		{slstatus.Errorf(slstatus.WrongSource, "the row belongs to file:local"), 5, "file:local"},
		{slstatus.Errorf(slstatus.ClassDenied, "workloads may not call Apply"), 5, "may not call"},
		{slstatus.Errorf(slstatus.StoreUnavailable, "the store takes no writes"), 1, "takes no writes"},
		{slstatus.New(slstatus.InvalidField, "bad").Field("ports[0].number", "range", "0 is not a port").Err(), 1, "ports[0].number: 0 is not a port"},
		{status.Error(codes.Unavailable, "gone"), 3, "gone"},
		{errors.New("plain"), 1, "plain"},
	} {
		var b strings.Builder
		if got := report(&b, c.err); got != c.code {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.code)
		}
		if strings.Count(b.String(), "[SL") > 1 || strings.Count(b.String(), "SL") > 1 || strings.Count(b.String(), c.want) != 1 || !strings.HasPrefix(b.String(), "error: ") {
			t.Errorf("printed:\n%s", b.String())
		}
	}
}

// TestUntrustedServer says that the two sides do not trust each other rather
// than asking whether the server runs.
func TestUntrustedServer(t *testing.T) {
	ours := newWorld(t).serve(server.Config{})
	other := newWorld(t).serve(server.Config{})
	r := other.run("", "service", "list", "--api", ours.srv.Addrs().API.String())
	if r.code != exitUnreachable || !strings.Contains(r.errOut, "do not trust each other") {
		t.Errorf("ended with %d:\n%s", r.code, r.errOut)
	}
}

// TestNothingHangs gives up on a server that accepts and says nothing, in every
// command that calls one.
func TestNothingHangs(t *testing.T) {
	w := newWorld(t).serve(server.Config{})
	w.file("shop.yaml", shop)
	w.file("draft.yaml", "apiVersion: sightline.dev/v1\nkind: Contract\nmetadata: {namespace: shop, name: checkout}\nspec: {}\n")
	hung := deaf(t)
	for _, line := range []string{
		"status", "service list", "instance list", "client list", "resolve shop/checkout", "apply -f {dir}/shop.yaml",
		"delete -f {dir}/shop.yaml", "instance register shop/checkout --address 127.0.0.1:1",
		"instance register shop/checkout --address 127.0.0.1",
		"why shop/checkout", "history shop/checkout", "tap shop/checkout", "view list", "view get shop/checkout", "view diff 1..",
		"quarantine list", "quarantine release shop/checkout/a --justification x", "brake release --justification x",
		"contract list", "contract get shop/a", "contract test -f {dir}/draft.yaml shop/checkout", "diff -f {dir}/shop.yaml",
	} {
		began := time.Now()
		r := w.run("", append(strings.Fields(line), "--timeout", "100ms", "--api", hung)...)
		if took := time.Since(began); took > 5*time.Second || r.code != exitUnreachable {
			t.Errorf("%s: ended with %d after %s:\n%s", line, r.code, took, r.errOut)
		}
	}
}
