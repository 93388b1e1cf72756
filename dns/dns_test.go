package dns

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	mdns "github.com/miekg/dns"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/views"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service builds a view whose members are given as "label addr [weight]";
// a leading "!" marks a member that is not listed.
func service(ns, name string, anonymous bool, members ...string) *views.View {
	v := &views.View{
		Name: views.Name{Namespace: ns, Service: name}, DNSAnonymous: anonymous,
		Endpoint: views.Version{Epoch: 1, Seq: 117}, Config: views.Version{Epoch: 1, Seq: 3},
		Ports: []views.Port{{Name: "grpc", Number: 8443, Protocol: views.GRPC}, {Name: "stats", Number: 8125, Protocol: views.UDP}},
	}
	for i, s := range members {
		s, out := strings.CutPrefix(s, "!")
		f := strings.Fields(s)
		m := &views.Member{
			UID: views.UID(i + 1), Label: f[0], Endpoint: views.Endpoint{Addr: netip.MustParseAddr(f[1])},
			Ports:  []views.PortNumber{{Name: "grpc", Number: 8443 + uint16(i)}, {Name: "stats", Number: 8125}},
			Weight: 100, State: views.Eligible, Listed: !out,
		}
		if len(f) > 2 {
			w, _ := strconv.Atoi(f[2])
			m.Weight = uint32(w)
		}
		if m.Listed {
			v.ListedCount++
		}
		v.Members = append(v.Members, m)
	}
	return v
}

func testComposer(t testing.TB, zones ...string) *composer {
	t.Helper()
	c := &composer{ttl: 5, negativeTTL: 5, limit: 64, glue: netip.MustParseAddr("192.0.2.53")}
	for _, s := range zones {
		z, err := parseZone(s)
		if err != nil {
			t.Fatal(err)
		}
		c.zones = append(c.zones, z)
	}
	return c
}

func manyMembers(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("instance-with-a-long-name-%03d 10.1.%d.%d", i, i/250, i%250+1))
	}
	return out
}

// TestAnswers runs the text scenarios: each file opens with its question.
func TestAnswers(t *testing.T) {
	guarded := service("shop", "cart", true, "cart-1 10.0.1.1", "cart-2 10.0.1.2")
	guarded.Guard = views.Guard{Tripped: true, Serving: 1, Members: 4}
	guarded.Confidence = views.ConfidenceDegraded
	for i, m := range guarded.Members {
		m.State, m.Capability = views.State(i*3), []string{"probed", "grpc"}[i]
	}
	mixed := service("shop", "mixed", true, "m-1 10.0.4.1 100", "m-2 10.0.4.2 50", "m-3 10.0.4.3 1", "!m-4 10.0.4.4 1000")
	mixed.Confidence = views.ConfidenceSingleClass
	for i, m := range mixed.Members {
		m.State = []views.State{views.Eligible, views.Degraded, views.Eligible, views.Ineligible}[i]
		m.Capability = []string{"e", "b", "d", "a"}[i]
	}
	snap := views.NewSnapshot(true,
		service("shop", "checkout", true, "checkout-1 10.0.0.1", "checkout-2 10.0.0.2", "!checkout-3 10.0.0.3"),
		service("shop", "six", true, "six-1 2001:db8::1"),
		service("shop", "empty", true),
		service("shop", "secret", false, "secret-1 10.0.2.1"),
		service("vault", "keys", false, "keys-1 10.0.3.1"),
		service("shop", "wide", true, manyMembers(40)...),
		guarded, mixed,
	)
	c := testComposer(t, "sightline.test.", "eu.sightline.test.")
	policy := &authz.Policy{TrustDomain: "demo.test"}
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s := snap
			if d.HasArg("loading") {
				s = views.NewSnapshot(false)
			}
			req := requestOf(t, d)
			from := asker{tcp: d.HasArg("tcp")}
			if d.HasArg("as") {
				var id string
				d.ScanArgs(t, "as", &id)
				from.who.ID = identity.MustParse(id)
			}
			m := c.reply(req, from, "replica-1", s, policy)
			if m == nil {
				return "(no reply)\n"
			}
			wire, err := m.Pack()
			if err != nil {
				t.Fatalf("reply does not pack: %v", err)
			}
			back := new(mdns.Msg)
			if err := back.Unpack(wire); err != nil {
				t.Fatalf("reply does not unpack: %v", err)
			}
			return format(back, len(wire), d.HasArg("count"))
		})
	})
}

func requestOf(t *testing.T, d *datadriven.TestData) *mdns.Msg {
	t.Helper()
	f := strings.Fields(d.Input)
	req := new(mdns.Msg)
	req.SetQuestion(f[0], mdns.StringToType[f[1]])
	if d.HasArg("edns") {
		var size, version int
		d.ScanArgs(t, "edns", &version, &size)
		req.SetEdns0(uint16(size), false)
		req.IsEdns0().SetVersion(uint8(version))
		req.IsEdns0().Option = append(req.IsEdns0().Option, &mdns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")})
		if d.HasArg("nsid") {
			req.IsEdns0().Option = append(req.IsEdns0().Option, &mdns.EDNS0_NSID{Code: mdns.EDNS0NSID})
		}
	}
	if d.HasArg("twice") { // the OPT record
		req.Extra = append(req.Extra, req.Extra[0])
	}
	if d.HasArg("opcode") {
		d.ScanArgs(t, "opcode", &req.Opcode)
	}
	if d.HasArg("qr") {
		req.Response = true
	}
	if d.HasArg("chaos") {
		req.Question[0].Qclass = mdns.ClassCHAOS
	}
	if d.HasArg("questions") {
		var n int
		d.ScanArgs(t, "questions", &n)
		req.Question = append(req.Question, req.Question[0])[:n]
	}
	return req
}

func format(m *mdns.Msg, size int, count bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s aa=%t tc=%t ra=%t", mdns.RcodeToString[m.Rcode], m.Authoritative, m.Truncated, m.RecursionAvailable)
	if count {
		fmt.Fprintf(&b, " bytes<=%d answers=%d additional=%d\n", (size+99)/100*100, len(m.Answer), len(m.Extra))
		return b.String()
	}
	b.WriteString("\n")
	for _, part := range []struct {
		name string
		rrs  []mdns.RR
	}{{"answer", m.Answer}, {"authority", m.Ns}, {"additional", m.Extra}} {
		for _, rr := range part.rrs {
			if opt, ok := rr.(*mdns.OPT); ok {
				fmt.Fprintf(&b, "edns version=%d size=%d\n", opt.Version(), opt.UDPSize())
				for _, o := range opt.Option {
					fmt.Fprintf(&b, "  option %d %s\n", o.Option(), o)
				}
				continue
			}
			fmt.Fprintf(&b, "%s %s\n", part.name, strings.Join(strings.Fields(rr.String()), " "))
		}
	}
	return b.String()
}

// TestSameMembers: the names that DNS lists over many questions are exactly
// the listed members with an address, for any weights, and no answer of a
// service that has members is empty.
func TestSameMembers(t *testing.T) {
	c := testComposer(t, "z.test")
	c.limit = 5
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(rt, "members")
		var specs []string
		want := map[string]bool{}
		for i := range n {
			listed := rapid.Bool().Draw(rt, "listed")
			addr := fmt.Sprintf("10.0.0.%d", rapid.IntRange(1, 8).Draw(rt, "addr"))
			spec := fmt.Sprintf("m%d %s %d", i, addr, rapid.IntRange(1, 1000).Draw(rt, "weight"))
			if listed {
				want[addr] = true
			} else {
				spec = "!" + spec
			}
			specs = append(specs, spec)
		}
		snap := views.NewSnapshot(true, service("a", "b", true, specs...))
		got := map[string]bool{}
		for r := range uint64(32 * 64) {
			res := c.compose(question{name: "b.a.svc.z.test.", qtype: mdns.TypeA, random: r}, snap, &authz.Policy{})
			if len(want) > 0 && len(res.answer) == 0 {
				rt.Fatalf("empty answer for random %d", r)
			}
			for _, rr := range res.answer {
				got[rr.(*mdns.A).A.String()] = true
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			rt.Fatalf("listed %v, answered %v", want, got)
		}
	})
}

// TestWeights: a member appears in weight ÷ highest weight of the answers, and
// no answer is empty for it. The variants are counted off one by one, so that
// the shares are exact.
func TestWeights(t *testing.T) {
	c := testComposer(t, "z.test")
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(1, 1000), 1, 12).Draw(t, "weights")
		var specs []string
		for i, w := range weights {
			specs = append(specs, fmt.Sprintf("m%d 10.0.0.%d %d", i, i+1, w))
		}
		snap := views.NewSnapshot(true, service("a", "b", true, specs...))
		seen := map[string]int{}
		for r := range uint64(variants) {
			answer := c.compose(question{name: "b.a.svc.z.test.", qtype: mdns.TypeA, random: r}, snap, nil0()).answer
			if len(answer) == 0 {
				t.Fatalf("variant %d of weights %v is empty", r, weights)
			}
			for _, rr := range answer {
				seen[rr.(*mdns.A).A.String()]++
			}
		}
		for i, w := range weights {
			want := max(1, int(math.Round(float64(variants*w)/float64(slices.Max(weights)))))
			if got := seen[fmt.Sprintf("10.0.0.%d", i+1)]; got != want {
				t.Errorf("weights %v: m%d in %d of %d answers, want %d", weights, i, got, variants, want)
			}
		}
	})
}

// TestCallsFollowTheWeights: who takes the first address of each answer, as most
// callers do, sends calls by weight: those of equal weight get the same, and a
// member at a tenth gets about a tenth of what a full one gets.
func TestCallsFollowTheWeights(t *testing.T) {
	c := testComposer(t, "z.test")
	snap := views.NewSnapshot(true, service("a", "b", true,
		"full-1 10.0.0.1 100", "full-2 10.0.0.2 100", "full-3 10.0.0.3 100", "ramp 10.0.0.4 10"))
	first := map[string]int{}
	// Every variant with every start: a period of the random numbers.
	const period = variants * 3 * 4
	for r := range uint64(period) {
		first[c.compose(question{name: "b.a.svc.z.test.", qtype: mdns.TypeA, random: r}, snap, nil0()).answer[0].(*mdns.A).A.String()]++
	}
	if first["10.0.0.1"] != first["10.0.0.2"] || first["10.0.0.2"] != first["10.0.0.3"] {
		t.Errorf("equal weights, unequal calls: %v", first)
	}
	// 3 of 32 variants hold the ramping one, and it is first in a quarter of those.
	if want := period * 3 / variants / 4; first["10.0.0.4"] != want {
		t.Errorf("%d calls to the ramping member, want %d: %v", first["10.0.0.4"], want, first)
	}
}

// TestQuestionsAreSpread: pairs of A and AAAA questions, as resolvers ask them,
// see every variant of both families; a counter in place of random numbers would
// show each family half of them.
func TestQuestionsAreSpread(t *testing.T) {
	c := testComposer(t, "z.test")
	snap := views.NewSnapshot(true, service("a", "b", true,
		"full 10.0.0.1 100", "ramp 10.0.0.2 10", "six 2001:db8::1 100", "six-ramp 2001:db8::2 10"))
	r := rand.New(rand.NewPCG(1, 2)) // as many as a server draws, the same in every run
	seen := map[string]int{}
	const rounds = 4096
	for range rounds {
		for _, qtype := range [...]uint16{mdns.TypeA, mdns.TypeAAAA} {
			for _, rr := range c.compose(question{name: "b.a.svc.z.test.", qtype: qtype, random: r.Uint64()}, snap, nil0()).answer {
				seen[strings.Fields(rr.String())[4]]++
			}
		}
	}
	for addr, share := range map[string]int{"10.0.0.1": variants, "2001:db8::1": variants, "10.0.0.2": 3, "2001:db8::2": 3} {
		if want := rounds * share / variants; seen[addr] < want*3/4 || seen[addr] > want*5/4 {
			t.Errorf("%s in %d of %d answers, want about %d", addr, seen[addr], rounds, want)
		}
	}
}

func nil0() *authz.Policy { return &authz.Policy{} }

// TestRefusedLooksAbsent: a service that the anonymous principal may not see
// gives the same bytes as one that does not exist.
func TestRefusedLooksAbsent(t *testing.T) {
	c := testComposer(t, "z.test")
	with := views.NewSnapshot(true, service("a", "bb", false, "x 10.0.0.1"), service("a", "pub", true))
	without := views.NewSnapshot(true, service("a", "zz", false), service("a", "pub", true))
	for _, name := range []string{"bb.a.svc.z.test.", "x.bb.a.svc.z.test.", "_grpc._tcp.bb.a.svc.z.test.", "_tcp.bb.a.svc.z.test.", "_sightline.bb.a.svc.z.test."} {
		for _, typ := range []uint16{mdns.TypeA, mdns.TypeSRV, mdns.TypeTXT, mdns.TypeANY} {
			req := new(mdns.Msg)
			req.SetQuestion(name, typ)
			a, _ := c.reply(req, asker{}, "", with, &authz.Policy{}).Pack()
			b, _ := c.reply(req, asker{}, "", without, &authz.Policy{}).Pack()
			if string(a) != string(b) {
				t.Errorf("%s %s: a hidden service is told from an absent one", name, mdns.TypeToString[typ])
			}
		}
	}
}

// FuzzReply: any bytes that parse as a message get a reply that packs, fits
// and echoes the question, or silence.
func FuzzReply(f *testing.F) {
	c := testComposer(f, "z.test")
	snap := views.NewSnapshot(true, service("a", "b", true, manyMembers(30)...))
	for _, name := range []string{"b.a.svc.z.test.", "_grpc._tcp.B.a.svc.z.TEST.", "z.test.", "a\\.b.svc.z.test.", "."} {
		for _, typ := range []uint16{mdns.TypeA, mdns.TypeSRV, mdns.TypeANY, mdns.TypeSOA} {
			m := new(mdns.Msg)
			m.SetQuestion(name, typ)
			m.SetEdns0(1232, true)
			wire, _ := m.Pack()
			f.Add(wire, uint64(7))
		}
	}
	f.Fuzz(func(t *testing.T, wire []byte, random uint64) {
		req := new(mdns.Msg)
		if req.Unpack(wire) != nil {
			return
		}
		m := c.reply(req, asker{random: random}, "n", snap, &authz.Policy{})
		if m == nil {
			return
		}
		out, err := m.Pack()
		if err != nil {
			t.Fatalf("reply to %v does not pack: %v", req, err)
		}
		if len(out) > maxPayload && len(req.Question) <= 1 {
			t.Fatalf("reply of %d bytes", len(out))
		}
		back := new(mdns.Msg)
		if err := back.Unpack(out); err != nil {
			t.Fatalf("reply does not unpack: %v", err)
		}
		if back.Id != req.Id || len(req.Question) == 1 && back.Question[0] != req.Question[0] {
			t.Fatalf("id or question differs: %v / %v", req, back)
		}
	})
}

// TestZonesAndVisibilityFollow: the longest zone answers in whatever order zones
// are given, an address that nobody can dial is no glue, and a namespace is
// there exactly while the snapshot and the policy of the moment say so.
func TestZonesAndVisibilityFollow(t *testing.T) {
	ask := func(c *composer, name string, qtype uint16, snap *views.Snapshot, p *authz.Policy) result {
		return c.compose(question{name: name, qtype: qtype}, snap, p)
	}
	one := views.NewSnapshot(true, service("a", "b", true, "x 10.0.0.1"))
	for _, zones := range [][]string{{"test.", "eu.test."}, {"eu.test.", "test."}} {
		r := ask(testComposer(t, zones...), "b.a.svc.eu.test.", mdns.TypeA, one, nil0())
		if r.rcode != mdns.RcodeSuccess || len(r.answer) != 1 {
			t.Errorf("zones %v: %+v", zones, r)
		}
	}
	c := testComposer(t, "z.test")
	if r := ask(c, "z.test.", mdns.TypeNS, one, nil0()); len(r.additional) != 1 {
		t.Errorf("glue: %+v", r)
	}
	for _, nobody := range []string{"0.0.0.0", "::"} {
		c.glue = netip.MustParseAddr(nobody)
		if r := ask(c, "z.test.", mdns.TypeNS, one, nil0()); len(r.answer) != 1 || len(r.additional) != 0 {
			t.Errorf("glue of %s: %+v", nobody, r)
		}
		if r := ask(c, "ns1.z.test.", mdns.TypeA, one, nil0()); r.rcode != mdns.RcodeSuccess || len(r.answer) != 0 {
			t.Errorf("the address of a name server at %s: %+v", nobody, r)
		}
	}
	hidden, policy := views.NewSnapshot(true, service("a", "b", false, "x 10.0.0.1")), nil0()
	for what, want := range map[string]struct {
		snap   *views.Snapshot
		policy *authz.Policy
		rcode  int
	}{
		"visible":   {one, policy, mdns.RcodeSuccess},
		"hidden":    {hidden, policy, mdns.RcodeNameError},
		"no policy": {one, nil, mdns.RcodeNameError},
	} {
		for range 2 { // the second answer is from the cache
			ask(c, "a.svc.z.test.", mdns.TypeA, one, policy)
			if r := ask(c, "a.svc.z.test.", mdns.TypeA, want.snap, want.policy); r.rcode != want.rcode {
				t.Errorf("%s: %s", what, mdns.RcodeToString[r.rcode])
			}
		}
	}
}
