package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sightlinedev/sightline/cmd/sightline/internal/bootstrap"
)

func (a *app) bootstrapCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "bootstrap", Short: "Configuration for a client: gRPC or Envoy"}
	cmd.AddCommand(a.bootstrapGRPC(), a.bootstrapEnvoy())
	return cmd
}

// bootstrapFlags are shared by both kinds.
func (a *app) bootstrapFlags(cmd *cobra.Command, p *bootstrap.Params, file, xds *string) {
	f := cmd.Flags()
	f.StringVar(xds, "xds", "", "xDS address, host:port (default: the context's)")
	f.StringVar(&p.NodeID, "node-id", "", "node id (default: host name)")
	f.StringVar(&p.Cluster, "node-cluster", "", "node cluster: a label for people")
	f.StringVar(&p.Region, "region", "", "region of the client (default: the context's)")
	f.StringVar(&p.Zone, "zone", "", "zone of the client")
	f.StringVarP(file, "out", "O", "", "write to this file instead of standard output")
}

// params fills from the context what the flags left open.
func (a *app) params(p bootstrap.Params, xds string) (bootstrap.Params, error) {
	t, err := loadTarget(a.contextArg)
	if err != nil {
		return p, err
	}
	first := func(values ...string) string {
		for _, v := range values {
			if v != "" {
				return v
			}
		}
		return ""
	}
	host, _ := os.Hostname()
	p.Server = first(xds, t.XDS)
	p.Cert = first(a.override.Cert, t.WorkloadCert, t.Cert)
	p.Key = first(a.override.Key, t.WorkloadKey, t.Key)
	p.Bundle = first(a.override.Bundle, t.Bundle)
	p.NodeID = first(p.NodeID, host, "sightline-client")
	p.Cluster = first(p.Cluster, p.NodeID) // Envoy does not start without one
	p.Region = first(p.Region, t.Region, "local")
	p.TrustDomain = first(p.TrustDomain, t.TrustDomain)
	if p.Server == "" || p.Cert == "" || p.Key == "" || p.Bundle == "" {
		return p, usagef("a bootstrap needs the xDS address and an identity: start `sightline dev`, or give --xds, --cert, --key and --bundle")
	}
	return p, nil
}

func (a *app) bootstrapGRPC() *cobra.Command {
	var p bootstrap.Params
	var file, xds string
	var shell bool
	cmd := &cobra.Command{
		Use: "grpc", Short: "xDS bootstrap for stock gRPC clients (Go, Java, Python, Node)", Args: cobra.NoArgs,
		Long: "Prints the JSON that GRPC_XDS_BOOTSTRAP points to. Go and Python take it as it is.\nJava ignores the tls configuration and Node does not know it: they need a credentials provider or a node-local agent.",
		Example: "  eval \"$(sightline bootstrap grpc --shell)\"\n" +
			"  grpcurl -plaintext xds:///checkout.shop list",
		RunE: func(*cobra.Command, []string) error {
			full, err := a.params(p, xds)
			if err != nil {
				return err
			}
			out, err := bootstrap.GRPC(full)
			if err != nil {
				return err
			}
			if shell {
				out = []byte("export GRPC_XDS_BOOTSTRAP_CONFIG='" + strings.ReplaceAll(strings.TrimSpace(string(out)), "'", `'\''`) + "'\n")
			}
			return a.emit(file, out)
		},
	}
	a.bootstrapFlags(cmd, &p, &file, &xds)
	cmd.Flags().BoolVar(&shell, "shell", false, "print an export line for eval")
	return cmd
}

func (a *app) bootstrapEnvoy() *cobra.Command {
	var p bootstrap.Params
	var file, xds, listen, admin string
	cmd := &cobra.Command{
		Use: "envoy", Short: "Envoy bootstrap: delta ADS over mTLS, one outbound listener", Args: cobra.NoArgs,
		Long:    "Prints an Envoy configuration file. Requests to the outbound listener are routed by their host: checkout.shop, or checkout.shop:PORT.",
		Example: "  sightline bootstrap envoy -O envoy.yaml --admin 127.0.0.1:9901\n  envoy -c envoy.yaml",
		RunE: func(*cobra.Command, []string) error {
			full, err := a.params(p, xds)
			if err != nil {
				return err
			}
			if full.Listen, err = netip.ParseAddrPort(listen); err != nil {
				return usagef("--listen %q: write ip:port", listen)
			}
			if admin != "" {
				if full.Admin, err = netip.ParseAddrPort(admin); err != nil {
					return usagef("--admin %q: write ip:port", admin)
				}
			}
			if full.TrustDomain == "" {
				return usagef("--trust-domain is needed to check the server's identity")
			}
			out, err := bootstrap.Envoy(full)
			if err != nil {
				return err
			}
			return a.emit(file, out)
		},
	}
	a.bootstrapFlags(cmd, &p, &file, &xds)
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:15001", "where Envoy's outbound listener is bound")
	cmd.Flags().StringVar(&admin, "admin", "", "where Envoy's admin page is bound (default: none)")
	cmd.Flags().StringVar(&p.TrustDomain, "trust-domain", "", "trust domain of the server (default: the context's)")
	return cmd
}

// emit writes to a file, whole or not at all, or to standard output.
func (a *app) emit(file string, content []byte) error {
	if file == "" {
		_, err := a.out.Write(content)
		return err
	}
	if err := replaceFile(file, content); err != nil {
		return errors.Join(fmt.Errorf("write %s", file), err)
	}
	fmt.Fprintf(a.err, "%s written\n", file)
	return nil
}
