package tools

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// at is the address of an instance, and its own port number.
func at(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i + 1)}), uint16(7000+i))
}

// dig reads a service in every record type that there is.
func TestDigReadsAService(t *testing.T) {
	t.Parallel()
	w := start(t)
	six := harness.PutInstance("six.shop", "v6", netip.MustParseAddrPort("[2001:db8::7]:7007"))
	w.api.Apply(t, harness.WithoutRamp("checkout.shop"), harness.PutService("checkout.shop"),
		harness.PutInstance("checkout.shop", "one", at(0)), harness.PutInstance("checkout.shop", "two", at(1)),
		harness.PutService("empty.shop"), harness.PutService("six.shop"), six, hidden("hidden.shop"))
	w.published("checkout.shop", 2)
	w.published("six.shop", 1)
	w.published("hidden.shop", 0)

	a := w.dig("checkout.shop."+zone, "A")
	addrs := a.Data("A")
	slices.Sort(addrs)
	if a.Status != "NOERROR" || !a.Has("aa") || a.Has("tc") || !slices.Equal(addrs, []string{"10.9.0.1", "10.9.0.2"}) {
		t.Errorf("A: %s", a.Text)
	}
	if got := w.dig("six.shop."+zone, "AAAA").Data("AAAA"); !slices.Equal(got, []string{"2001:db8::7"}) {
		t.Errorf("AAAA: %v", got)
	}
	if got := w.dig("one.checkout.shop."+zone, "A").Data("A"); !slices.Equal(got, []string{"10.9.0.1"}) {
		t.Errorf("A of an instance: %v", got)
	}

	srv := w.dig("_grpc._tcp.checkout.shop."+zone, "SRV")
	targets := srv.Data("SRV")
	slices.Sort(targets)
	want := []string{"0 100 7000 one.checkout.shop." + zone, "0 100 7001 two.checkout.shop." + zone}
	if !slices.Equal(targets, want) {
		t.Errorf("SRV: %v, want %v", targets, want)
	}
	for i, host := range []string{"one", "two"} {
		line := fmt.Sprintf("%s.checkout.shop.%s 5 IN A %s", host, zone, at(i).Addr())
		if !slices.Contains(srv.Additional, line) {
			t.Errorf("SRV's additionals lack %q: %v", line, srv.Additional)
		}
	}
	if txt := w.dig("checkout.shop."+zone, "TXT"); txt.Status != "NOERROR" || !txt.Has("aa") {
		t.Errorf("TXT: %s", txt.Text)
	}
	if txt := w.dig("dns-version.sightline.test.", "TXT").Data("TXT"); len(txt) != 1 {
		t.Errorf("TXT of dns-version: %v", txt)
	}
	if ns := w.dig("sightline.test.", "NS").Data("NS"); !slices.Equal(ns, []string{"ns1.sightline.test."}) {
		t.Errorf("NS: %v", ns)
	}
	w.negatives()
}

// hidden is a service that plain DNS may not answer.
func hidden(host string) *registryv1.Change {
	c := harness.PutService(host)
	c.GetPutService().Exposure = nil
	return c
}

// negatives are the answers that carry no data, each with the zone's one SOA.
func (w *world) negatives() {
	w.Helper()
	for question, status := range map[string]string{
		"checkout.shop." + zone + " AAAA":          "NOERROR",
		"checkout.shop." + zone + " MX":            "NOERROR",
		"checkout.shop." + zone + " HTTPS":         "NOERROR",
		"six.shop." + zone + " A":                  "NOERROR",
		"empty.shop." + zone + " A":                "NOERROR",
		"_grpc._tcp.empty.shop." + zone + " SRV":   "NOERROR",
		"ghost.shop." + zone + " A":                "NXDOMAIN",
		"hidden.shop." + zone + " A":               "NXDOMAIN",
		"three.checkout.shop." + zone + " A":       "NXDOMAIN",
		"_no._tcp.checkout.shop." + zone + " SRV":  "NXDOMAIN",
		"a.b.c.d.e.sightline.test. A":              "NXDOMAIN",
		`or\032ders.shop.` + zone + " A":           "NXDOMAIN",
		"_x.checkout.shop." + zone + " A":          "NXDOMAIN",
		"pkg.mirror.example.org.sightline.test. A": "NXDOMAIN",
	} {
		a := w.dig(strings.Fields(question)...)
		if a.Status != status || !a.Has("aa") || len(a.Answer) != 0 || len(a.Authority) != 1 {
			w.Errorf("%s: want %s with the SOA alone: %s", question, status, a.Text)
			continue
		}
		f := strings.Fields(a.Authority[0])
		if f[0] != "sightline.test." || f[1] != "5" || f[3] != "SOA" || f[4] != "ns1.sightline.test." || f[5] != "hostmaster.sightline.test." {
			w.Errorf("%s: SOA %v", question, f)
		}
	}
	out := w.dig("example.org.", "A")
	if out.Status != "REFUSED" || out.Has("aa") || len(out.Authority) != 0 {
		w.Errorf("outside the zone: %s", out.Text)
	}
}

// The SOA's serial moves with every change of the views, and never back.
func TestDigSeesTheSerialGrow(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.api.Apply(t, harness.PutService("checkout.shop"), harness.PutInstance("checkout.shop", "one", at(0)))
	w.published("checkout.shop", 1)
	serial := func() uint64 {
		t.Helper()
		soa := w.dig("sightline.test.", "SOA").Data("SOA")
		if len(soa) != 1 {
			t.Fatalf("SOA: %v", soa)
		}
		n, err := strconv.ParseUint(strings.Fields(soa[0])[2], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	last := serial()
	for i := 1; i <= 3; i++ {
		w.api.Apply(t, harness.PutInstance("checkout.shop", fmt.Sprintf("more-%d", i), at(i)))
		harness.Eventually(t, 5*time.Second, "the serial grows", func() error {
			if n := serial(); n <= last {
				return fmt.Errorf("%d after %d", n, last)
			}
			return nil
		})
		w.published("checkout.shop", 1+i)
		last = serial()
	}
	w.s.Kill()
	w.s.Restart(t)
	if n := serial(); n < last {
		t.Errorf("the serial went from %d to %d over a restart", last, n)
	}
}

// Answers that do not fit say so (C20), in the letters of the question (C25),
// and options that nobody knows do no harm (C26).
func TestDigTruncationCaseAndOptions(t *testing.T) {
	t.Parallel()
	w := start(t)
	const members = 40
	changes := []*registryv1.Change{harness.PutService("orders.shop")}
	for i := range members {
		changes = append(changes, harness.PutInstance("orders.shop", fmt.Sprintf("a-member-with-a-rather-long-name-%02d", i), at(i)))
	}
	w.api.Apply(t, changes...)
	w.published("orders.shop", members)
	srv := "_grpc._tcp.orders.shop." + zone
	for _, c := range []struct {
		options []string
		size    int
	}{{[]string{"+noedns", "+ignore"}, 512}, {[]string{"+bufsize=1232", "+ignore"}, 1232}, {[]string{"+bufsize=4096", "+ignore"}, 1232}, {[]string{"+bufsize=100", "+ignore"}, 512}} {
		a := w.dig(append([]string{srv, "SRV"}, c.options...)...)
		if got := len(a.Data("SRV")); a.Status != "NOERROR" || !a.Has("tc") || got == 0 || got >= members || sizeOf(t, a) > c.size {
			t.Errorf("%v: %d records of %d, %d bytes: %s", c.options, got, members, sizeOf(t, a), a.Status)
		}
	}
	full := w.dig(srv, "SRV", "+tcp")
	if got := len(full.Data("SRV")); got != members || full.Has("tc") || len(full.Additional) != members {
		t.Errorf("+tcp: %d SRV, %d additionals, flags %v", got, len(full.Additional), full.Flags)
	}
	if a := w.dig("orders.shop."+zone, "A"); len(a.Data("A")) != members || a.Has("tc") {
		t.Errorf("A: %d of %d fit into 1232 bytes, flags %v", len(a.Data("A")), members, a.Flags)
	}

	for _, question := range []string{"OrDeRs.ShOp.sVc.SiGhTlInE.tEsT. A", "_GRPC._tcp.oRdErs.shop.svc.sightline.test. SRV +tcp"} {
		a := w.dig(strings.Fields(question)...)
		name := strings.Fields(question)[0]
		if len(a.Answer) != members || !strings.Contains(a.Text, ";"+name) || !strings.HasPrefix(a.Answer[0], name) {
			t.Errorf("%s: %d records; the question or the owner lost its letters: %.600s", question, len(a.Answer), a.Text)
		}
	}
	if a := w.dig("orders.shop."+zone, "A", "+edns=1", "+noednsneg"); a.Status != "BADVERS" || len(a.Answer) != 0 {
		t.Errorf("EDNS version 1: %s", a.Text)
	}
	for _, option := range []string{"+ednsopt=100", "+dnssec", "+cookie", "+noedns"} {
		if a := w.dig("orders.shop."+zone, "A", option, "+tcp"); a.Status != "NOERROR" || len(a.Data("A")) != members {
			t.Errorf("%s: %s", option, a.Text)
		}
	}
	if a := w.dig("orders.shop."+zone, "A", "+opcode=status"); a.Status != "NOTIMP" {
		t.Errorf("opcode STATUS: %s", a.Status)
	}
}

// sizeOf is the size of the reply that dig saw.
func sizeOf(t *testing.T, a harness.DNSAnswer) int {
	t.Helper()
	_, rest, ok := strings.Cut(a.Text, ";; MSG SIZE  rcvd: ")
	n, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
	if !ok || err != nil {
		t.Fatalf("dig printed no size: %s", a.Text)
	}
	return n
}
