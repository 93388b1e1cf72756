package registry_test

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

func label(n int) string { return strings.Repeat("a", n) }

// wantRules compares the fields and rules of violations with "field rule" words.
func wantRules(t *testing.T, what string, v registry.Violations, want ...string) {
	t.Helper()
	var got []string
	for _, x := range v {
		got = append(got, x.Field+" "+x.Rule)
		if x.Detail == "" {
			t.Errorf("%s: %s has no detail", what, x.Field)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// TestNamesOfEverySurface is C31: what is accepted resolves everywhere, and what
// does not is refused with its field and rule.
func TestNamesOfEverySurface(t *testing.T) {
	for name, ok := range map[string]bool{
		"orders": true, "a": true, "0": true, "a-b": true, "xn--rders-jua": true, label(63): true,
		label(64): false, "orders_v2": false, "Orders": false, "orders.": false, "-orders": false, "orders-": false,
		"a..b": false, "a.b": false, "ördérs": false, "": false, "a b": false, "a\x00": false, "a\xff\xfe": false, "*": false,
	} {
		s := service()
		s.Name.Service = name
		if v := registry.CheckService(&s); (len(v) == 0) != ok {
			t.Errorf("service %q: %v", name, v)
		}
		i := instance()
		i.Label = name
		if v := registry.CheckInstance(&i); (len(v) == 0) != (ok || name == "") {
			t.Errorf("label %q: %v", name, v)
		}
	}
	for name, ok := range map[string]bool{"i": true, "i1": false, "i17x": true, "i0123": false, "x1": true} {
		i := instance()
		i.Label = name
		if v := registry.CheckInstance(&i); (len(v) == 0) != ok {
			t.Errorf("label %q: %v", name, v)
		}
	}
}

// TestLongestNamesFit builds the longest names that the limits allow.
func TestLongestNamesFit(t *testing.T) {
	apex := label(15) + "." + label(15) + "." + label(16)
	if v := registry.CheckApex("dns-zone", apex+"."); len(v) > 0 {
		t.Fatal(v)
	}
	for _, name := range []string{
		"_" + label(15) + "._tcp." + label(63) + "." + label(63) + ".svc." + apex,
		label(63) + "." + label(63) + "." + label(63) + ".svc." + apex,
	} {
		if len(name) > 253 {
			t.Errorf("%d characters: %s", len(name), name)
		}
	}
	for _, apex := range []string{"", ".", "a..b", "Test.", "a_b", label(49), label(24) + "." + label(24)} {
		if v := registry.CheckApex("dns-zone", apex); len(v) == 0 || v[0].Field != "dns-zone" {
			t.Errorf("apex %q: %v", apex, v)
		}
	}
}

func service() registry.Service {
	return registry.Service{Name: registry.Name{Namespace: "shop", Service: "checkout"}, Source: "api",
		Ports: []registry.Port{{Name: "grpc", Number: 8080}}}
}

func instance() registry.Instance {
	return registry.Instance{Service: registry.Name{Namespace: "shop", Service: "checkout"}, Source: "api", Weight: 100,
		Identity: identity.MustParse("spiffe://t.test/ns/shop/sa/checkout"), Endpoint: registry.Endpoint{Addr: netip.MustParseAddr("10.0.0.1")}}
}

func TestServiceRules(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(*registry.Service)
		want   []string
	}{
		{"good", func(*registry.Service) {}, nil},
		{"no ports", func(s *registry.Service) { s.Ports = nil }, []string{"ports count"}},
		{"port zero", func(s *registry.Service) { s.Ports[0].Number = 0 }, []string{"ports[0].number range"}},
		{"port names", func(s *registry.Service) {
			s.Ports = []registry.Port{{Name: label(16), Number: 1}, {Name: "123", Number: 2}, {Name: "a--b", Number: 3}, {Name: "A", Number: 4}, {Name: "-a", Number: 5}, {Name: label(15), Number: 6}}
		}, []string{"ports[0].name port-name", "ports[1].name port-name", "ports[2].name port-name", "ports[3].name port-name", "ports[4].name port-name"}},
		{"same twice", func(s *registry.Service) { s.Ports = append(s.Ports, s.Ports[0]) }, []string{"ports[1].name unique", "ports[1].number unique"}},
		{"protocol", func(s *registry.Service) { s.Ports[0].Protocol = 9 }, []string{"ports[0].protocol enum"}},
		{"consumes", func(s *registry.Service) {
			s.Consumes = []registry.Name{{Namespace: "a", Service: "b"}, {Namespace: "a", Service: "b"}, {Namespace: "", Service: "B"}}
		}, []string{"consumes[1] unique", "consumes[2].namespace dns-label", "consumes[2].name dns-label"}},
		{"source", func(s *registry.Service) { s.Source = "file:" }, []string{"source source"}},
		{"api with a name", func(s *registry.Service) { s.Source = "api:x" }, []string{"source source"}},
		{"references", func(s *registry.Service) { s.Contract, s.Profile = "A", "b_" }, []string{"contract dns-label", "profile dns-label"}},
		{"annotations", func(s *registry.Service) { s.Annotations = map[string]string{"": "x", "k": "\xff\xfe"} }, []string{"annotations key", "annotations.k utf-8"}},
	} {
		s := service()
		c.change(&s)
		wantRules(t, c.what, registry.CheckService(&s), c.want...)
	}
}

func TestInstanceRules(t *testing.T) {
	addr := func(s string) func(*registry.Instance) {
		return func(i *registry.Instance) { i.Endpoint.Addr = netip.MustParseAddr(s) }
	}
	place := func(e registry.Endpoint) func(*registry.Instance) {
		return func(i *registry.Instance) { i.Endpoint = e }
	}
	for _, c := range []struct {
		what   string
		change func(*registry.Instance)
		want   []string
	}{
		{"good", func(*registry.Instance) {}, nil},
		{"loopback", addr("127.0.0.1"), nil},
		{"v6", addr("2001:db8::1"), nil},
		{"unspecified", addr("0.0.0.0"), []string{"endpoint.address address"}},
		{"unspecified v6", addr("::"), []string{"endpoint.address address"}},
		{"multicast", addr("224.0.0.1"), []string{"endpoint.address address"}},
		{"multicast v6", addr("ff02::1"), []string{"endpoint.address address"}},
		{"broadcast", addr("255.255.255.255"), []string{"endpoint.address address"}},
		{"link-local", addr("169.254.169.254"), []string{"endpoint.address address"}},
		{"zone", addr("fe80::1%eth0"), []string{"endpoint.address address"}},
		{"nothing", place(registry.Endpoint{}), []string{"endpoint one-of"}},
		{"two", place(registry.Endpoint{Host: "a.example.com", URL: "https://a.example.com"}), []string{"endpoint one-of"}},
		{"host", place(registry.Endpoint{Host: "a.example.com"}), nil},
		{"host is an address", place(registry.Endpoint{Host: "10.0.0.1"}), []string{"endpoint.host host-name"}},
		{"host label", place(registry.Endpoint{Host: "a_b.example.com"}), []string{"endpoint.host host-name"}},
		{"host with dot", place(registry.Endpoint{Host: "a.example.com."}), []string{"endpoint.host host-name"}},
		{"host too long", place(registry.Endpoint{Host: strings.Repeat("a.", 127) + "a"}), []string{"endpoint.host host-name"}},
		{"url", place(registry.Endpoint{URL: "https://fn.example.com/x?y=1"}), nil},
		{"url scheme", place(registry.Endpoint{URL: "ftp://fn.example.com"}), []string{"endpoint.url url"}},
		{"url with user", place(registry.Endpoint{URL: "https://u:p@fn.example.com"}), []string{"endpoint.url url"}},
		{"url without host", place(registry.Endpoint{URL: "https:///x"}), []string{"endpoint.url url"}},
		{"url with control", place(registry.Endpoint{URL: "https://a/\n"}), []string{"endpoint.url url"}},
		{"weight 0", func(i *registry.Instance) { i.Weight = 0 }, []string{"weight range"}},
		{"weight 1000", func(i *registry.Instance) { i.Weight = 1000 }, nil},
		{"weight 1001", func(i *registry.Instance) { i.Weight = 1001 }, []string{"weight range"}},
		{"lease", func(i *registry.Instance) { i.Lease = 4 * time.Second }, []string{"lease range"}},
		{"long lease", func(i *registry.Instance) { i.Lease = 11 * time.Minute }, []string{"lease range"}},
		{"locality", func(i *registry.Instance) { i.Region, i.Zone = "EU", "a b" }, []string{"region dns-label", "zone dns-label"}},
		{"own ports", func(i *registry.Instance) { i.Ports = []registry.PortNumber{{Name: "a", Number: 1}, {Name: "a"}} },
			[]string{"ports[1].number range", "ports[1].name unique"}},
		{"metadata size", func(i *registry.Instance) { i.Metadata = map[string]string{"k": strings.Repeat("x", 4096)} }, []string{"metadata size"}},
		{"metadata fits", func(i *registry.Instance) { i.Metadata = map[string]string{"k": strings.Repeat("x", 4095)} }, nil},
		{"metadata bytes", func(i *registry.Instance) { i.Metadata = map[string]string{"\xff\xfe": "x"} }, []string{"metadata key"}},
		{"metadata keys", func(i *registry.Instance) {
			i.Metadata = make(map[string]string)
			for n := range 33 {
				i.Metadata[label(n+1)] = ""
			}
		}, []string{"metadata count"}},
	} {
		i := instance()
		c.change(&i)
		wantRules(t, c.what, registry.CheckInstance(&i), c.want...)
	}
}

func contract() registry.Contract {
	return registry.Contract{Name: registry.Name{Namespace: "shop", Service: "checkout"}, Source: "api"}
}

// TestContractRanges goes to both ends of every range of HEALTH.md §9.
func TestContractRanges(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(*registry.Contract)
		want   []string
	}{
		{"missing fields are defaults", func(*registry.Contract) {}, nil},
		{"lease 5s", func(c *registry.Contract) { c.Lease = 5 * time.Second }, nil},
		{"lease 10m", func(c *registry.Contract) { c.Lease = 10 * time.Minute }, nil},
		{"lease 4s", func(c *registry.Contract) { c.Lease = 4 * time.Second }, []string{"lease range"}},
		{"negative", func(c *registry.Contract) { c.Lease, c.ReturnHold = -1, -1 }, []string{"lease range", "return_hold range"}},
		{"half-lives", func(c *registry.Contract) { c.CallersHalfLife, c.ProbeHalfLife = 61*time.Second, 999*time.Millisecond },
			[]string{"callers_half_life range", "probe_half_life range"}},
		{"NaN", func(c *registry.Contract) { c.CallersOut, c.ProbeIn = math.NaN(), math.NaN() }, []string{"callers_out range", "probe_in range"}},
		{"Inf", func(c *registry.Contract) { c.CallersOut, c.ProbeIn = math.Inf(1), math.Inf(-1) }, []string{"callers_out range", "probe_in range"}},
		{"in over half of out", func(c *registry.Contract) { c.ProbeOut, c.ProbeIn = 0.4, 0.21 }, []string{"probe_in range"}},
		{"in half of out", func(c *registry.Contract) { c.ProbeOut, c.ProbeIn = 0.4, 0.2 }, nil},
		{"out below", func(c *registry.Contract) { c.CallersOut, c.CallersIn = 0.04, 0.01 }, []string{"callers_out range"}},
		{"default in over half of out", func(c *registry.Contract) { c.CallersOut = 0.06 }, []string{"callers_in range"}},
		{"probe interval", func(c *registry.Contract) { c.Probe.Interval = 61 * time.Second }, []string{"probe.interval range"}},
		{"probe timeout", func(c *registry.Contract) { c.Probe.Timeout = 2 * time.Second }, []string{"probe.timeout range"}},
		{"short interval, default timeout", func(c *registry.Contract) { c.Probe.Interval = time.Second }, nil},
		{"probe parts", func(c *registry.Contract) { c.Probe.Path, c.Probe.Service = "/x", "s" }, []string{"probe.service probe", "probe.path probe"}},
		{"http path", func(c *registry.Contract) { c.Probe.Kind, c.Probe.Path = registry.ProbeHTTP, "/healthz" }, nil},
		{"http path without slash", func(c *registry.Contract) { c.Probe.Kind, c.Probe.Path = registry.ProbeHTTP, "healthz" }, []string{"probe.path probe"}},
		{"hold 10s is above 7s", func(c *registry.Contract) { c.ReturnHold = 10 * time.Second }, nil},
		{"hold as slow as removal", func(c *registry.Contract) { c.Probe.Interval, c.ReturnHold = 5*time.Second, 16*time.Second }, []string{"return_hold re-entry"}},
		{"hold slower than removal", func(c *registry.Contract) {
			c.Probe.Interval, c.ReturnHold = 5*time.Second, 16*time.Second+time.Millisecond
		}, nil},
		{"slow scores", func(c *registry.Contract) { c.CallersHalfLife, c.CallersOut, c.CallersIn = time.Minute, 0.5, 0.1 }, []string{"return_hold re-entry"}},
		{"guard", func(c *registry.Contract) { c.GuardPercent = 101 }, []string{"guard_percent range"}},
		{"ramp 59s", func(c *registry.Contract) { c.Ramp = 59 * time.Second }, []string{"ramp range"}},
		{"ramp 1h", func(c *registry.Contract) { c.Ramp = time.Hour }, nil},
		{"no ramp", func(c *registry.Contract) { c.NoRamp = true }, nil},
		{"both", func(c *registry.Contract) { c.NoRamp, c.Ramp = true, time.Minute }, []string{"ramp range"}},
		{"shared unreadiness", func(c *registry.Contract) {
			c.Dependencies = []registry.Dependency{{Name: "db", Shared: true, Authority: registry.Unreadiness}, {Name: "disk", Authority: registry.Unreadiness}}
		}, []string{"dependencies[0].authority shared"}},
		{"dependency weight", func(c *registry.Contract) {
			c.Dependencies = []registry.Dependency{{Name: "db", Weight: 101}, {Name: "db"}, {}}
		},
			[]string{"dependencies[0].weight range", "dependencies[1].name unique", "dependencies[2].name dependency-name"}},
		{"quarantine", func(c *registry.Contract) {
			c.Quarantine = registry.Quarantine{Changes: 1, Window: time.Second, Hold: time.Hour, MaxHold: time.Minute}
		}, []string{"quarantine.changes range", "quarantine.window range", "quarantine.hold range", "quarantine.max_hold range"}},
		{"enums", func(c *registry.Contract) { c.Silence, c.Locality, c.GRPC, c.Probe.Kind, c.Require = 9, 9, 9, 9, 128 },
			[]string{"probe.kind enum", "require enum", "silence enum", "locality enum", "grpc enum"}},
		{"identities", func(c *registry.Contract) {
			id := identity.MustParse("spiffe://t.test/ns/a/sa/b")
			c.Identities = []identity.ID{id, id, {}}
		}, []string{"identities[1] unique", "identities[2] required"}},
	} {
		row := contract()
		c.change(&row)
		wantRules(t, c.what, registry.CheckContract(&row), c.want...)
	}
}

// TestDefaultsAreThoseOfTheRules pins the numbers of HEALTH.md.
func TestDefaultsAreThoseOfTheRules(t *testing.T) {
	c := registry.Contract{Dependencies: []registry.Dependency{{Name: "db"}}}
	got := c.WithDefaults()
	want := registry.Contract{Lease: 25 * time.Second, CallersHalfLife: 4 * time.Second, ProbeHalfLife: 8 * time.Second,
		CallersOut: 0.2, CallersIn: 0.05, ProbeOut: 0.4, ProbeIn: 0.1,
		Probe:      registry.Probe{Interval: 2 * time.Second, Timeout: time.Second},
		ReturnHold: 15 * time.Second, GuardPercent: 50, Ramp: time.Minute,
		Dependencies: []registry.Dependency{{Name: "db", Weight: 50}},
		Quarantine:   registry.Quarantine{Changes: 5, Window: 10 * time.Minute, Hold: time.Minute, MaxHold: 30 * time.Minute}}
	if !got.Equal(&want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if again := got.WithDefaults(); !again.Equal(&got) {
		t.Errorf("defaults of defaults differ: %+v", again)
	}
	if c.Dependencies[0].Weight != 0 {
		t.Error("WithDefaults wrote to the row that it was called on")
	}
	if s := got.SlowestRemoval(); s != 7*time.Second {
		t.Errorf("slowest removal by default is %s; three probes and a timeout are 7s", s)
	}
}

// FuzzCheckLabel: what is accepted is a DNS label in lower case, whoever reads it.
func FuzzCheckLabel(f *testing.F) {
	for _, s := range []string{"", "orders", "Orders", "-a", label(64), "a\xff", "ördérs"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if registry.CheckLabel(s) != "" {
			return
		}
		if len(s) < 1 || len(s) > 63 || strings.ToLower(s) != s || strings.Trim(s, "-") != s {
			t.Errorf("accepted %q", s)
		}
		for i := range len(s) {
			if c := s[i]; c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
				t.Errorf("accepted %q with byte %#x", s, c)
			}
		}
	})
}
