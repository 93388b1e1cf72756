package server

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/svid"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/status"
)

// Mode is what a server is for.
type Mode uint8

// The modes. Dev has a certificate authority of its own, lets the whole trust
// domain see every service, takes self-registration as proof of an address,
// opens reflection to everybody, and listens on loopback only.
const (
	Dev Mode = iota
	Production
)

// Config is everything that a server can be told. The zero value is a
// development server on ports from 18000, with its data in a temporary folder.
// Each field names its flag; a field that is empty has the default given.
type Config struct {
	Mode    Mode
	Version string // of the build; "dev"
	Build   string // its revision

	Name   string // --name: of this replica; the host's name
	Region string // --region; local
	Zone   string // --zone
	Data   string // --data: folder of the store and, in dev, of identities; dev: temporary

	XDSListen  string   // --xds-listen; 127.0.0.1:15010, dev: 18000
	APIListen  string   // --api-listen; 127.0.0.1:15011, dev: 18001
	DNSListen  string   // --dns-listen; 127.0.0.1:8053, dev: 18053
	HTTPListen string   // --http-listen; 127.0.0.1:15080, dev: 18080
	PortBase   int      // --port-base: of dev's ports; 18000
	DNSZones   []string // --dns-zone: apexes; required in production, sightline.test. in dev

	TrustDomain string // --trust-domain: dev's; sightline.test. In production it is the SVID's
	SVIDs       svid.Files
	WorkloadAPI string  // --workload-api: socket of a SPIFFE Workload API, instead of the files --svid, --svid-key, --bundle
	Policy      *Policy // policy.resolve in --config: who may resolve whom beyond the own namespace

	Manifests map[string]string // --manifests NAME=DIR: folders that a file source watches, by its name

	// WebhookURLs (--webhook-url) are told of incidents; WebhookKey (--webhook-key)
	// is the file with the key that signs what is sent there.
	WebhookURLs []string
	WebhookKey  string

	EnvoyOutbound netip.AddrPort // --envoy-outbound: where an Envoy's listener binds; 127.0.0.1:15001
	Shards        int            // goroutines that judge; the number of cores

	Limits *limits.Limits // nil: limits.Default
	Log    *slog.Logger   // nil: nothing is logged
}

// Policy is the resolution policy of a configuration.
type Policy struct {
	Resolve []Grant
}

// Grant lets a caller resolve a callee. Caller is a SPIFFE ID, one that ends in
// /*, or *; Callee is namespace/name, namespace/*, or *.
type Grant struct{ Caller, Callee string }

// DefaultPortBase is where dev's ports begin.
const DefaultPortBase = 18000

// DefaultTrustDomain is that of dev.
const DefaultTrustDomain = "sightline.test"

// devZone is the DNS apex of dev.
const devZone = "sightline.test."

// withDefaults fills in what is empty.
func (c Config) withDefaults() Config {
	base := cmp.Or(c.PortBase, DefaultPortBase)
	listen := func(at *string, production string, offset int) {
		if *at == "" && c.Mode == Production {
			*at = production
		} else if *at == "" {
			*at = net.JoinHostPort("127.0.0.1", strconv.Itoa(base+offset))
		}
	}
	listen(&c.XDSListen, "127.0.0.1:15010", 0)
	listen(&c.APIListen, "127.0.0.1:15011", 1)
	listen(&c.DNSListen, "127.0.0.1:8053", 53)
	listen(&c.HTTPListen, "127.0.0.1:15080", 80)
	c.Version = cmp.Or(c.Version, "dev")
	c.Region = cmp.Or(c.Region, "local")
	if host, err := os.Hostname(); err == nil {
		c.Name = cmp.Or(c.Name, host)
	}
	c.Shards = cmp.Or(c.Shards, runtime.GOMAXPROCS(0))
	if !c.EnvoyOutbound.IsValid() {
		c.EnvoyOutbound = netip.MustParseAddrPort("127.0.0.1:15001")
	}
	if c.Mode == Dev {
		c.TrustDomain = cmp.Or(c.TrustDomain, DefaultTrustDomain)
		if len(c.DNSZones) == 0 {
			c.DNSZones = []string{devZone}
		}
	}
	if c.Limits == nil {
		l := limits.Default()
		c.Limits = &l
	}
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return c
}

// listeners are the addresses with the flags that set them.
func (c *Config) listeners() []listenFlag {
	return []listenFlag{
		{"--xds-listen", c.XDSListen}, {"--api-listen", c.APIListen},
		{"--dns-listen", c.DNSListen}, {"--http-listen", c.HTTPListen},
	}
}

type listenFlag struct{ flag, addr string }

// check refuses what must not start; the error names the flag.
func (c *Config) check() error {
	files := c.SVIDs != (svid.Files{})
	switch {
	case c.Mode == Production && len(c.DNSZones) == 0:
		return startError(status.ZoneMissing, "--dns-zone is required: name the apex to answer for, for example --dns-zone sightline.example.")
	case c.Mode == Production && c.Data == "":
		return startError(status.InvalidConfig, "--data is required: name the folder that keeps desired state")
	case c.Mode == Production && !files && c.WorkloadAPI == "":
		return startError(status.UnsafeListener, "no identity: give --svid, --svid-key and --bundle, or --workload-api (sightline dev makes identities of its own)")
	case files && c.WorkloadAPI != "":
		return startError(status.InvalidConfig, "--svid and --workload-api are both given: keep one of them")
	case files && (c.SVIDs.SVID == "" || c.SVIDs.Key == "" || c.SVIDs.Bundle == ""):
		return startError(status.InvalidConfig, "--svid, --svid-key and --bundle go together: give all three")
	case c.Mode == Dev && (files || c.WorkloadAPI != ""):
		return startError(status.InvalidConfig, "dev makes its own identities: leave --svid and --workload-api out, or start sightline server")
	}
	for _, l := range c.listeners() {
		if err := c.checkListener(l); err != nil {
			return err
		}
	}
	// Instances that name no place of their own are given these.
	if why := registry.CheckLabel(c.Region); why != "" {
		return startError(status.InvalidConfig, "--region %s", why)
	}
	if why := registry.CheckLabel(c.Zone); why != "" && c.Zone != "" {
		return startError(status.InvalidConfig, "--zone %s", why)
	}
	return nil
}

// checkListener refuses addresses that others can reach in dev, and in
// production without a policy that somebody wrote.
func (c *Config) checkListener(l listenFlag) error {
	host, port, err := net.SplitHostPort(l.addr)
	if err != nil {
		return startError(status.InvalidConfig, "%s %q is not host:port", l.flag, l.addr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return startError(status.InvalidConfig, "%s %q: the port is not a number from 0 to 65535", l.flag, l.addr)
	}
	switch {
	case loopback(host):
		return nil
	case c.Mode == Dev:
		return startError(status.UnsafeListener, "%s %s: dev listens on loopback only (127.0.0.1, ::1, localhost); start sightline server for other addresses", l.flag, l.addr)
	case c.Policy == nil:
		return startError(status.UnsafeListener, "%s %s can be reached by others, and no policy is given: say who may resolve whom in policy.resolve of --config, or listen on 127.0.0.1", l.flag, l.addr)
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// policy builds the resolution policy for a trust domain.
func (c *Config) policy(trustDomain string) (*authz.Policy, error) {
	p := &authz.Policy{Generation: 1, TrustDomain: trustDomain}
	if c.Mode == Dev {
		p.Default = authz.WholeTrustDomain
	}
	if c.Policy == nil {
		return p, nil
	}
	for i, g := range c.Policy.Resolve {
		caller, err := identity.ParsePattern(g.Caller)
		if err != nil {
			return nil, startError(status.InvalidConfig, "policy.resolve[%d].caller: %v", i, err)
		}
		callee, err := parseCallee(g.Callee)
		if err != nil {
			return nil, startError(status.InvalidConfig, "policy.resolve[%d].callee: %v", i, err)
		}
		p.Grants = append(p.Grants, authz.Grant{Caller: caller, Callee: callee})
	}
	return p, nil
}

// Times that belong to no limit.
const (
	// identityWait is how long a start waits for the Workload API.
	identityWait = 30 * time.Second
)

// StartError says why a server does not start, and which flag to change.
type StartError struct {
	Code    status.Code
	Message string
}

// Error is the message with its code.
func (e *StartError) Error() string { return e.Message + " [" + e.Code.String() + "]" }

func startError(code status.Code, format string, args ...any) error {
	return &StartError{code, fmt.Sprintf(format, args...)}
}

// basePorts are dev's ports as they follow from --port-base.
func (c *Config) basePorts() []string {
	base := cmp.Or(c.PortBase, DefaultPortBase)
	ports := make([]string, 0, 4)
	for _, offset := range []int{0, 1, 53, 80} {
		ports = append(ports, strconv.Itoa(base+offset))
	}
	return ports
}
