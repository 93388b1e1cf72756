package server

import (
	"strings"
	"testing"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/svid"
)

// TestZeroConfigWorksOnALaptop: dev's defaults, without a flag.
func TestZeroConfigWorksOnALaptop(t *testing.T) {
	c := Config{}
	if err := c.check(); err == nil {
		t.Error("addresses are checked after the defaults are filled in")
	}
	c = c.withDefaults()
	if err := c.check(); err != nil {
		t.Error(err)
	}
	if c.XDSListen != "127.0.0.1:18000" || c.APIListen != "127.0.0.1:18001" || c.DNSListen != "127.0.0.1:18053" || c.HTTPListen != "127.0.0.1:18080" ||
		c.DNSZones[0] != "sightline.test." || c.Region != "local" || c.TrustDomain != "sightline.test" {
		t.Errorf("%+v", c)
	}
	p := Config{Mode: Production}.withDefaults()
	if p.XDSListen != "127.0.0.1:15010" || p.APIListen != "127.0.0.1:15011" || p.DNSListen != "127.0.0.1:8053" || p.HTTPListen != "127.0.0.1:15080" ||
		len(p.DNSZones) != 0 || p.TrustDomain != "" {
		t.Errorf("%+v", p)
	}
}

// TestConfigurationsThatDoNotStart: each refusal names the flag to change.
func TestConfigurationsThatDoNotStart(t *testing.T) {
	production := func(change func(*Config)) Config {
		c := Config{Mode: Production, Data: "d", DNSZones: []string{"a.example."}, SVIDs: svid.Files{SVID: "s", Key: "k", Bundle: "b"}}
		change(&c)
		return c
	}
	for name, row := range map[string]struct {
		cfg  Config
		want string // part of the message; empty: it starts
	}{
		"production":                     {production(func(*Config) {}), ""},
		"no zone":                        {production(func(c *Config) { c.DNSZones = nil }), "--dns-zone"},
		"no data":                        {production(func(c *Config) { c.Data = "" }), "--data"},
		"no identity":                    {production(func(c *Config) { c.SVIDs = svid.Files{} }), "--svid"},
		"half an identity":               {production(func(c *Config) { c.SVIDs.Bundle = "" }), "--bundle"},
		"two identities":                 {production(func(c *Config) { c.WorkloadAPI = "unix:///x" }), "--workload-api"},
		"reachable without a policy":     {production(func(c *Config) { c.XDSListen = "0.0.0.0:15010" }), "--xds-listen"},
		"reachable by name":              {production(func(c *Config) { c.APIListen = "host.example:1" }), "--api-listen"},
		"every address":                  {production(func(c *Config) { c.DNSListen = ":53" }), "--dns-listen"},
		"plain port reachable":           {production(func(c *Config) { c.HTTPListen = "10.0.0.1:80" }), "--http-listen"},
		"reachable with a policy":        {production(func(c *Config) { c.XDSListen, c.Policy = "0.0.0.0:15010", &Policy{} }), ""},
		"loopback v6":                    {production(func(c *Config) { c.XDSListen = "[::1]:15010" }), ""},
		"not an address":                 {production(func(c *Config) { c.XDSListen = "15010" }), "--xds-listen"},
		"not a port":                     {production(func(c *Config) { c.XDSListen = "127.0.0.1:xds" }), "--xds-listen"},
		"a region that is no label":      {production(func(c *Config) { c.Region = "EU West" }), "--region"},
		"a zone that is no label":        {production(func(c *Config) { c.Zone = "eu_1" }), "--zone"},
		"a place":                        {production(func(c *Config) { c.Region, c.Zone = "eu-west-1", "a" }), ""},
		"dev, reachable":                 {Config{APIListen: "0.0.0.0:1"}, "dev listens on loopback only"},
		"dev, reachable, with a policy":  {Config{APIListen: "0.0.0.0:1", Policy: &Policy{}}, "dev listens on loopback only"},
		"dev with another's identity":    {Config{SVIDs: svid.Files{SVID: "s", Key: "k", Bundle: "b"}}, "dev makes its own identities"},
		"dev with another's identity II": {Config{WorkloadAPI: "unix:///x"}, "dev makes its own identities"},
	} {
		c := row.cfg.withDefaults()
		if row.cfg.Data == "" && c.Mode == Dev {
			c.Data = "d"
		}
		err := c.check()
		switch {
		case row.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
}

// TestPolicyOfAConfiguration: written grants become the one policy.
func TestPolicyOfAConfiguration(t *testing.T) {
	c := Config{Mode: Production, Policy: &Policy{Resolve: []Grant{
		{"spiffe://prod.example/ns/front/*", "shop/cart"}, {"spiffe://prod.example/ns/back/sa/a", "shop/*"}, {"spiffe://partner.example/*", "*"},
	}}}
	p, err := c.policy("prod.example")
	if err != nil {
		t.Fatal(err)
	}
	see := func(id, ns, name string) bool {
		return p.CanResolve(identity.Principal{ID: identity.MustParse(id)}, authz.Service{Namespace: ns, Name: name}).Allowed
	}
	if !see("spiffe://prod.example/ns/front/sa/x", "shop", "cart") || see("spiffe://prod.example/ns/front/sa/x", "shop", "pay") ||
		!see("spiffe://prod.example/ns/back/sa/a", "shop", "pay") || see("spiffe://prod.example/ns/back/sa/b", "shop", "pay") ||
		!see("spiffe://partner.example/ns/x/sa/y", "any", "thing") || !see("spiffe://prod.example/ns/own/sa/a", "own", "thing") {
		t.Error("the policy is not what was written")
	}
	for _, bad := range []Grant{{"", "a/b"}, {"spiffe://A/x", "a/b"}, {"*", ""}, {"*", "a"}, {"*", "*/b"}, {"*", "A/b"}, {"*", "a/b/c"}} {
		c.Policy = &Policy{Resolve: []Grant{bad}}
		if _, err := c.policy("prod.example"); err == nil || !strings.Contains(err.Error(), "policy.resolve[0]") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
