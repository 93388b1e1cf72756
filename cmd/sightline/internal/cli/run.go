package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
	"github.com/sightlinedev/sightline/server"
)

// serverFlags are what the server and dev commands share.
type serverFlags struct {
	cfg       server.Config
	manifests []string
	outbound  string
	file      string
	logLevel  string
	logFormat string
}

func (s *serverFlags) add(f *pflag.FlagSet) {
	c := &s.cfg
	f.StringVar(&c.Name, "name", "", "name of this replica (default: the host's)")
	f.StringVar(&c.Region, "region", "local", "region label")
	f.StringVar(&c.Zone, "zone", "", "zone label")
	f.StringVar(&c.Data, "data", "", "folder of the store")
	f.StringVar(&c.XDSListen, "xds-listen", "", "xDS and load reports, mTLS")
	f.StringVar(&c.APIListen, "api-listen", "", "API, mTLS")
	f.StringVar(&c.DNSListen, "dns-listen", "", "DNS, UDP and TCP")
	f.StringVar(&c.HTTPListen, "http-listen", "", "/metrics, /livez, /readyz")
	f.StringSliceVar(&c.DNSZones, "dns-zone", nil, "apex that DNS answers for (repeatable)")
	f.StringSliceVar(&s.manifests, "manifests", nil, "NAME=FOLDER of manifests to follow (repeatable)")
	f.StringSliceVar(&c.WebhookURLs, "webhook-url", nil, "URL that is told of incidents, https (repeatable); see docs/WHY.md")
	f.StringVar(&c.WebhookKey, "webhook-key", "", "file with the key that signs what webhooks are sent")
	f.StringVar(&s.outbound, "envoy-outbound", "", "where Envoys bind their outbound listener (default 127.0.0.1:15001)")
	f.StringVar(&s.file, "config", os.Getenv("SIGHTLINE_CONFIG"), "configuration file: the flags' names with underscores, and policy.resolve")
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&s.logFormat, "log-format", "auto", "auto, text or json")
}

func (a *app) serverCommand() *cobra.Command {
	s := serverFlags{cfg: server.Config{Mode: server.Production, Version: a.version}}
	cmd := &cobra.Command{
		Use: "server", Short: "Run the control plane", Args: cobra.NoArgs,
		Long: `Runs the control plane until SIGINT or SIGTERM.

Every connection is mTLS with SPIFFE identities: give --svid, --svid-key and
--bundle, or --workload-api. Ports are on loopback unless you say otherwise, and
a wider address needs a policy (policy.resolve in --config): callers may resolve
their own namespace, and what the policy grants.

Each flag is also a key of --config (underscores for dashes) and an environment
variable (SIGHTLINE_XDS_LISTEN). A flag wins over the environment, and that over
the file.`,
		Example: "  sightline server --data /var/lib/sightline --dns-zone sightline.example. \\\n    --svid svid.pem --svid-key svid.key --bundle bundle.pem --config sightline.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.settle(cmd); err != nil {
				return err
			}
			s.cfg.SVIDs.Bundle = a.override.Bundle // --bundle means the same in every command
			if s.cfg.SVIDs == (svid.Files{}) && s.cfg.WorkloadAPI == "" {
				s.cfg.WorkloadAPI = os.Getenv("SPIFFE_ENDPOINT_SOCKET")
			}
			srv, err := server.New(cmd.Context(), s.cfg)
			if err != nil {
				return err
			}
			return srv.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	s.add(f)
	f.StringVar(&s.cfg.SVIDs.SVID, "svid", "", "the server's SVID, PEM file")
	f.StringVar(&s.cfg.SVIDs.Key, "svid-key", "", "its key, PEM file")
	f.StringVar(&s.cfg.WorkloadAPI, "workload-api", "", "SPIFFE Workload API socket, instead of files (default: $SPIFFE_ENDPOINT_SOCKET)")
	return cmd
}

func (a *app) devCommand() *cobra.Command {
	s := serverFlags{cfg: server.Config{Mode: server.Dev, Version: a.version}}
	var noContext bool
	cmd := &cobra.Command{
		Use: "dev", Short: "Run a control plane on this machine, for development", Args: cobra.NoArgs,
		Long: `Runs a control plane on loopback with a throw-away certificate authority: mTLS as
in production, identities written under <data>/identity, every service visible
to the whole trust domain. It becomes the current command-line context, so that
other commands need no flags. Without --data its state ends with it.`,
		Example: "  sightline dev\n  sightline dev --data ./state --manifests local=./manifests",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.settle(cmd); err != nil {
				return err
			}
			srv, err := server.New(cmd.Context(), s.cfg)
			if err != nil {
				return err
			}
			if !noContext {
				undo, err := saveTarget(devTarget(srv, s.cfg))
				if err != nil {
					return errors.Join(err, srv.Close())
				}
				defer undo()
			}
			a.devBanner(srv, !noContext)
			return srv.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	s.add(f)
	f.IntVar(&s.cfg.PortBase, "port-base", server.DefaultPortBase, "first of the four ports (xDS +0, API +1, DNS +53, HTTP +80)")
	f.StringVar(&s.cfg.TrustDomain, "trust-domain", server.DefaultTrustDomain, "of the throw-away authority")
	f.BoolVar(&noContext, "no-context", false, "leave the command-line context alone")
	return cmd
}

// devTarget is the context that reaches a development server.
func devTarget(srv *server.Server, cfg server.Config) target {
	at := srv.Addrs()
	dir, err := filepath.Abs(srv.IdentityDir())
	if err != nil {
		dir = srv.IdentityDir()
	}
	op, sample := devca.FilesOf(dir, devca.OperatorName), devca.FilesOf(dir, devca.WorkloadName)
	t := target{
		Name: "dev", API: at.API.String(), XDS: at.XDS.String(), DNS: at.DNS.String(), HTTP: at.HTTP.String(), Zone: "sightline.test.",
		TrustDomain: srv.TrustDomain(), Region: cfg.Region, Cert: op.SVID, Key: op.Key, Bundle: op.Bundle,
		WorkloadCert: sample.SVID, WorkloadKey: sample.Key,
	}
	if len(cfg.DNSZones) > 0 {
		t.Zone = cfg.DNSZones[0]
	}
	return t
}

// devBanner says where everything is: to a person as a page, to a script as one
// fact a line. chosen: the command-line context points here.
func (a *app) devBanner(srv *server.Server, chosen bool) {
	at := srv.Addrs()
	if !terminal(a.out) {
		fmt.Fprintf(a.out, "xds=%s\napi=%s\ndns=%s\nhttp=%s\nidentity=%s\ntrust_domain=%s\n",
			at.XDS, at.API, at.DNS, at.HTTP, srv.IdentityDir(), srv.TrustDomain())
		return
	}
	fmt.Fprintf(a.out, `
  sightline %s  dev                   insecure, loopback only, not for production

    xDS       %s    API %s (mTLS, reflection on)
    DNS       %s    HTTP http://%s/metrics
    identity  %s   spiffe://%s, throw-away CA, 24h

`, a.version, at.XDS, at.API, at.DNS, at.HTTP, srv.IdentityDir(), srv.TrustDomain())
	if chosen {
		fmt.Fprintf(a.out, "    in a second terminal:\n      %[1]s status\n      %[1]s apply -f examples/shop.yaml\n      %[1]s resolve shop/checkout\n\n", a.self)
	}
}
