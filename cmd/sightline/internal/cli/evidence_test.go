package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	"github.com/sightlinedev/sightline/server"
)

const cartID = "spiffe://sightline.test/ns/shop/sa/cart"

// cart declares a service whose two instances report about themselves.
const cart = `
apiVersion: sightline.dev/v1
kind: CapabilityProfile
metadata: {namespace: shop, name: go}
spec: {supplies: [self]}
---
apiVersion: sightline.dev/v1
kind: Contract
metadata: {namespace: shop, name: cart}
spec: {ramp: 0s}
---
apiVersion: sightline.dev/v1
kind: Service
metadata: {namespace: shop, name: cart}
spec:
  profile: go
  contract: cart
  ports: [{name: grpc, number: 9443, protocol: grpc}]
---
apiVersion: sightline.dev/v1
kind: Instance
metadata: {namespace: shop, name: cart-1}
spec: {service: cart, identity: spiffe://sightline.test/ns/shop/sa/cart, address: 127.0.0.1, zone: a}
---
apiVersion: sightline.dev/v1
kind: Instance
metadata: {namespace: shop, name: cart-2}
spec: {service: cart, identity: spiffe://sightline.test/ns/shop/sa/cart, address: 127.0.0.2, zone: b}
`

// speaker is a stream of self-reports of the cart's instances.
type speaker struct {
	w      *world
	stream grpc.ClientStreamingClient[healthv1.ReportSelfRequest, healthv1.ReportSelfResponse]
}

// speak opens a stream of reports by the identity, about the uids.
func (w *world) speak(id string, uids ...string) *speaker {
	w.t.Helper()
	now := time.Now()
	ca, err := devca.Open(w.srv.IdentityDir(), server.DefaultTrustDomain, now)
	if err != nil {
		w.t.Fatal(err)
	}
	doc, err := ca.Issue(identity.MustParse(id), now)
	if err != nil {
		w.t.Fatal(err)
	}
	src, err := svid.FromDocuments(doc.SVID, doc.Key, ca.Bundle())
	if err != nil {
		w.t.Fatal(err)
	}
	conn, err := grpc.NewClient(w.srv.Addrs().API.String(), grpc.WithTransportCredentials(src.ClientCredentials(svid.OurServer(src.TrustDomain()))))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(func() { cancel(); _ = conn.Close() })
	stream, err := healthv1.NewReportServiceClient(conn).ReportSelf(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	s := &speaker{w, stream}
	s.send(&healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Bind{Bind: &healthv1.SelfBind{Instances: uids}}})
	return s
}

func (s *speaker) send(r *healthv1.ReportSelfRequest) {
	s.w.t.Helper()
	if err := s.stream.Send(r); err != nil {
		s.w.t.Fatal(err)
	}
}

// says sends one report of each instance, by position.
func (s *speaker) says(words ...healthv1.SelfStatus) {
	s.w.t.Helper()
	batch := &healthv1.SelfBatch{}
	for i, word := range words {
		batch.Instance = append(batch.Instance, uint32(i))
		batch.Status = append(batch.Status, word)
	}
	s.send(&healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Batch{Batch: batch}})
}

const (
	serving    = healthv1.SelfStatus_SELF_STATUS_SERVING
	notServing = healthv1.SelfStatus_SELF_STATUS_NOT_SERVING
)

// cartWorld is a server with the cart, whose instances both serve.
func cartWorld(t *testing.T) (w *world, s *speaker) {
	w = newWorld(t).serve(server.Config{})
	w.file("cart.yaml", cart)
	w.ok("apply", "-f", "{dir}/cart.yaml")
	s = w.speak(cartID, w.uid("shop/cart/cart-1"), w.uid("shop/cart/cart-2"))
	s.says(serving, serving)
	w.until("resolve shop/cart", "cart-2")
	return w, s
}

// uid is an instance's uid by its name.
func (w *world) uid(name string) string {
	w.t.Helper()
	for line := range strings.Lines(w.ok("instance", "list", "--no-headers")) {
		if f := strings.Fields(line); f[0] == name {
			return f[1]
		}
	}
	w.t.Fatalf("no instance %s", name)
	return ""
}

// TestWhyFollowsAnInstance out of rotation, by every command that speaks of it.
func TestWhyFollowsAnInstance(t *testing.T) {
	w, s := cartWorld(t)
	before := headOf(t, w)
	s.says(notServing, serving)
	w.until("why shop/cart/cart-1", "INELIGIBLE")

	has := func(line string, texts ...string) {
		t.Helper()
		out := w.ok(strings.Fields(line)...)
		for _, text := range texts {
			if !strings.Contains(out, text) {
				t.Errorf("%s does not say %q:\n%s", line, text, out)
			}
		}
	}
	has("why shop/cart/cart-1", "shop/cart/cart-1  INELIGIBLE for ", "callers are not given it", "because  R2 (its own word", "self reports NOT_SERVING",
		"self        BAD", "<- decides", "not the cause", "guard       not tripped: 1 of 2 serve", "lease       none: source api lists it",
		"when it returns", "from R2     not on this evidence: 15s of SERVING, then full weight at once", "history shop/cart/cart-1")
	has("why shop/cart", "shop/cart  1 eligible, 0 degraded, 0 unknown, 1 ineligible", "single-class", "cart-1  INELIGIBLE for ", "1 instance eligible at full weight", "why shop/cart/cart-1")
	has("why cart -n shop -o name", "shop/cart")
	has("why instance/shop/cart/cart-1 -o json", `"rule": "R2"`, `"standing": "STANDING_BAD"`, `"notTheCause"`)
	has("history shop/cart", "cart-1  ", "#_", "1 change", "TIME", "eligible  ineligible  R2", "self reports NOT_SERVING; returns after 15s of SERVING")
	has("history shop/cart/cart-1 --limit 1 -o name", "shop/cart/cart-1")
	w.until(fmt.Sprintf("view diff shop/cart %s..", before), "~ cart-1")
	has(fmt.Sprintf("view diff shop/cart %s..", before), "  shop/cart  view ", "~ guard not tripped: 2 of 2 serving", "~ cart-1  state eligible -> ineligible, listed yes -> no", "R2: self reports NOT_SERVING")
	has(fmt.Sprintf("view diff %s.. -n shop -o name", before), "shop/cart")
	if r := w.run("", "view", "diff", "shop/cart", before+".."+before); r.code != exitOK || !strings.Contains(r.errOut, "nothing that callers are given differs") {
		t.Errorf("the same version twice: %d %s%s", r.code, r.out, r.errOut)
	}
	s.says(serving, serving)
	w.until("why shop/cart/cart-1", "from R2     in ")
}

func headOf(t *testing.T, w *world) string {
	t.Helper()
	for line := range strings.Lines(w.ok("view", "list", "--no-headers")) {
		if f := strings.Fields(line); f[0] == "shop/cart" {
			return f[1]
		}
	}
	t.Fatal("no view of shop/cart")
	return ""
}

// TestTap shows what is taken in and what is refused, in every form.
func TestTap(t *testing.T) {
	w, s := cartWorld(t)
	stranger := w.speak("spiffe://sightline.test/ns/shop/sa/other", w.uid("shop/cart/cart-1"))
	taps := func(line string) result {
		ended := make(chan result, 1)
		go func() { ended <- w.run("", strings.Fields(line)...) }()
		for {
			select {
			case r := <-ended:
				return r
			case <-time.After(50 * time.Millisecond): // the tap may not be open yet
				s.says(serving, serving)
				stranger.says(notServing)
			}
		}
	}
	r := taps("tap shop/cart --count 20")
	for _, text := range []string{"cart-1 ", "cart-2 ", "self     taken      SERVING", "from " + cartID, "REFUSED(unattributed)", "spiffe://sightline.test/ns/shop/sa/other"} {
		if r.code != exitOK || !strings.Contains(r.out, text) {
			t.Errorf("%d, no %q in\n%s%s", r.code, text, r.out, r.errOut)
		}
	}
	if r := taps("tap shop/cart/cart-2 --count 2 -o name"); r.out != "shop/cart/cart-2\nshop/cart/cart-2\n" {
		t.Errorf("names: %q", r.out)
	}
	if r := taps("tap shop/cart --count 2 -o json"); len(checkEnvelope(t, "json", []byte(r.out), "SampleList")) != 2 {
		t.Errorf("json: %s", r.out)
	}
	if r := taps("tap shop/cart --count 3 -o jsonl"); strings.Count(r.out, "\n") != 3 || !strings.Contains(r.out, `"evidenceClass":"EVIDENCE_CLASS_SELF"`) {
		t.Errorf("jsonl: %s", r.out)
	}
}

// TestTapsOfNothing say why nothing comes, and a wrong use how to do it.
func TestTapsOfNothing(t *testing.T) {
	w, _ := cartWorld(t)
	w.file("shop.yaml", shop)
	w.ok("apply", "-f", "{dir}/shop.yaml")
	w.until("resolve shop/checkout", "eligible")
	for _, c := range []struct {
		line string
		code int
		says string
	}{
		{"tap shop/checkout --for 100ms", 0, "no sample of shop/checkout within 100ms: its capability profile supplies no evidence class"},
		{"tap shop/cart --for 100ms --class callers,probe", 0, "does not supply callers, probe"},
		{"tap shop/cart/cart-1 --for 100ms", 0, "it supplies self; last heard when the tap began: self of cart-1"},
		{"tap shop/none --for 100ms", 1, "not found"},
		{"tap shop/cart/none --for 100ms", 1, "not found"},
		{"tap shop/cart --class gossip", 2, "probe, self, callers"},
		{"tap shop/cart -o yaml", 2, "--count or --for"},
		{"tap cart", 2, "does not name a service"},
	} {
		r := w.run("", strings.Fields(c.line)...)
		if r.code != c.code || !strings.Contains(r.errOut, c.says) || r.out != "" {
			t.Errorf("%s ended with %d:\n%s%s", c.line, r.code, r.out, r.errOut)
		}
	}
}

// TestDiff shows what applying would change, ends as diff does, and changes
// nothing.
func TestDiff(t *testing.T) {
	w := newWorld(t).serve(server.Config{})
	w.file("cart.yaml", cart)
	differs := func(want int, args ...string) string {
		t.Helper()
		r := w.run("", append([]string{"diff"}, args...)...)
		if r.code != want {
			t.Errorf("diff %v ended with %d:\n%s%s", args, r.code, r.out, r.errOut)
		}
		return r.out
	}
	out := differs(exitFailure, "-f", "{dir}/cart.yaml")
	if want := "+ capabilityprofile/shop/go\n+ contract/shop/cart\n+ service/shop/cart\n+ instance/shop/cart/cart-1\n+ instance/shop/cart/cart-2\n"; out != want {
		t.Errorf("new:\n%s", out)
	}
	w.ok("apply", "-f", "{dir}/cart.yaml")
	if out := differs(exitOK, "-f", "{dir}/cart.yaml"); out != "" {
		t.Errorf("as declared:\n%s", out)
	}
	edited := strings.NewReplacer("ramp: 0s", "guardPercent: 60", "number: 9443", "number: 9444", "address: 127.0.0.2, zone: b", "address: 127.0.0.2, zone: c, weight: 200").Replace(cart)
	w.file("cart.yaml", edited)
	out = differs(exitFailure, "-f", "{dir}/cart.yaml")
	want := `~ contract/shop/cart
    guardPercent  <default> -> 60
    ramp  0s -> <default>
~ service/shop/cart
    ports[0].number  9443 -> 9444
~ instance/shop/cart/cart-2
    weight  100 -> 200
    zone  b -> c
`
	if out != want {
		t.Errorf("changed:\n%s", out)
	}
	if out := differs(exitFailure, "-f", "{dir}/cart.yaml", "-o", "jsonl"); !strings.Contains(out, `{"object":"instance/shop/cart/cart-2","change":"update","fields":[{"field":"weight","was":"100","is":"200"},`) {
		t.Errorf("jsonl:\n%s", out)
	}
	if out := differs(exitFailure, "-f", "{dir}/cart.yaml", "--delete"); !strings.HasPrefix(out, "- instance/shop/cart/cart-1\n") || strings.Count(out, "- ") != 5 {
		t.Errorf("deleted:\n%s", out)
	}
	if out := w.ok("contract", "get", "shop/cart"); !strings.Contains(out, "* ramp                         0s\n") || !strings.Contains(out, "  lease                        25s\n") {
		t.Errorf("something was changed:\n%s", out)
	}
	w.file("bad.yaml", strings.Replace(cart, "profile: go", "profile: none", 1))
	if r := w.run("", "diff", "-f", "{dir}/bad.yaml"); r.code != exitFailure || !strings.Contains(r.errOut, "nothing was changed") || !strings.Contains(r.errOut, "bad.yaml:") {
		t.Errorf("refused with %d: %s", r.code, r.errOut)
	}
	if r := w.run("", "diff"); r.code != exitUsage {
		t.Errorf("without files: %d", r.code)
	}
}

// TestDiffExamples finds no difference in any example after it was applied.
func TestDiffExamples(t *testing.T) {
	const folder = "../../../../examples"
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	w := newWorld(t).serve(server.Config{})
	for _, file := range files {
		w.ok("apply", "-f", file)
		if r := w.run("", "diff", "-f", file); r.code != exitOK || r.out != "" {
			t.Errorf("%s: %d\n%s%s", filepath.Base(file), r.code, r.out, r.errOut)
		}
		// Another contract or label shows one field, and no default of the server's.
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if edited := strings.Replace(string(raw), "zone: a", "zone: z", 1); edited != string(raw) {
			w.file("edited.yaml", edited)
			if r := w.run("", "diff", "-f", "{dir}/edited.yaml"); strings.Count(r.out, " -> ") != 1 {
				t.Errorf("%s with another zone:\n%s", filepath.Base(file), r.out)
			}
		}
	}
}
