package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/identity/svid"
)

// Main runs one command line and returns the process's exit code.
func Main(version string, args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &app{version: version, in: in, out: out, err: errOut}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	return report(errOut, root.ExecuteContext(ctx))
}

// app is what all commands share: the global flags and the streams.
type app struct {
	version  string
	in       io.Reader
	out, err io.Writer

	format     string
	noHeaders  bool
	namespace  string
	contextArg string
	override   target // single flags, over the context's values
	timeout    time.Duration
}

const rootLong = `Sightline discovers services, judges which of their instances can serve, and
gives Envoy, proxyless gRPC, DNS clients and tools the same versioned view.

  sightline demo                     everything in one go, with real traffic
  sightline dev                      a control plane on this machine, for development
  sightline status                   how the control plane is
  sightline resolve shop/checkout    what callers of a service are given`

func (a *app) root() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sightline", Short: "Service discovery and health control plane", Long: rootLong,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.printer().check() },
	}
	f := cmd.PersistentFlags()
	f.StringVarP(&a.format, "output", "o", env("SIGHTLINE_OUTPUT", "table"), "output format: "+strings.Join(formats, ", "))
	f.BoolVar(&a.noHeaders, "no-headers", false, "leave the header line out of tables")
	f.StringVarP(&a.namespace, "namespace", "n", os.Getenv("SIGHTLINE_NAMESPACE"), "namespace (default: all, for lists)")
	f.StringVar(&a.contextArg, "context", os.Getenv("SIGHTLINE_CONTEXT"), "connection context (default: the current one)")
	f.StringVar(&a.override.API, "api", os.Getenv("SIGHTLINE_ADDR"), "address of the API, host:port")
	f.StringVar(&a.override.Cert, "cert", "", "SVID to present, PEM file")
	f.StringVar(&a.override.Key, "key", "", "its key, PEM file")
	f.StringVar(&a.override.Bundle, "bundle", "", "roots of the trust domain, PEM file")
	f.DurationVar(&a.timeout, "timeout", 10*time.Second, "how long to wait for the control plane")
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &exitError{code: exitUsage, err: err, hint: "see: " + c.CommandPath() + " --help"}
	})
	cmd.AddCommand(
		a.serverCommand(), a.devCommand(), a.demoCommand(),
		a.statusCommand(), a.resolveCommand(), a.clientCommand(),
		a.serviceCommand(), a.instanceCommand(),
		a.applyCommand(), a.deleteCommand(),
		a.bootstrapCommand(), a.versionCommand(),
	)
	argsAreUsage(cmd)
	return cmd
}

// argsAreUsage makes a wrong number of arguments a usage error everywhere.
func argsAreUsage(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return &exitError{code: exitUsage, err: err, hint: "usage: " + c.UseLine()}
			}
			return nil
		}
	}
	if cmd.HasSubCommands() && cmd.Run == nil && cmd.RunE == nil {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			hint := "see: " + c.CommandPath() + " --help"
			c.SuggestionsMinimumDistance = 2
			if near := c.SuggestionsFor(args[0]); len(near) > 0 {
				hint = "did you mean: " + c.CommandPath() + " " + near[0]
			}
			return &exitError{code: exitUsage, err: fmt.Errorf("%q is not a command of %s", args[0], c.CommandPath()), hint: hint}
		}
	}
	for _, sub := range cmd.Commands() {
		argsAreUsage(sub)
	}
}

func (a *app) printer() printer {
	return printer{out: a.out, err: a.err, format: a.format, noHeaders: a.noHeaders}
}

// target is the context in force with the flags laid over it.
func (a *app) target() (target, error) {
	t, err := loadTarget(a.contextArg)
	if err != nil {
		return target{}, err
	}
	for _, p := range []struct {
		to   *string
		from string
	}{{&t.API, a.override.API}, {&t.Cert, a.override.Cert}, {&t.Key, a.override.Key}, {&t.Bundle, a.override.Bundle}} {
		if p.from != "" {
			*p.to = p.from
		}
	}
	if t.API == "" || t.Cert == "" {
		return target{}, &exitError{code: exitUsage, err: errors.New("no control plane chosen: there is no context and no --api"),
			hint: "start one with: sightline dev    or give --api, --cert, --key and --bundle"}
	}
	return t, nil
}

// call dials the API, runs fn within the timeout, and says where it tried when
// nobody answered.
func (a *app) call(ctx context.Context, fn func(context.Context, *grpc.ClientConn, target) error) error {
	t, err := a.target()
	if err != nil {
		return err
	}
	conn, err := a.dial(t)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return a.explain(fn(ctx, conn, t), t)
}

func (a *app) dial(t target) (*grpc.ClientConn, error) {
	src, err := svid.FromFiles(svid.Files{SVID: t.Cert, Key: t.Key, Bundle: t.Bundle}, 0, svid.Events{})
	if err != nil {
		return nil, &exitError{code: exitFailure, err: err, hint: "these are the files of --cert, --key and --bundle, or of the context"}
	}
	return grpc.NewClient(t.API, grpc.WithTransportCredentials(src.ClientCredentials(svid.OurServer(src.TrustDomain()))))
}

// explain adds to a connection failure what a person needs next.
func (a *app) explain(err error, t target) error {
	s, ok := status.FromError(err)
	if !ok || err == nil || s.Code() != codes.Unavailable || len(s.Details()) > 0 {
		return err
	}
	where := t.API
	if t.Name != "" {
		where += " (context " + t.Name + ")"
	}
	return &exitError{code: exitUnreachable, err: fmt.Errorf("the control plane at %s cannot be reached: %s", where, s.Message()),
		hint: "clients keep routing on the views they hold; is the server running?"}
}

func env(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this binary", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.format == "json" {
				_, err := fmt.Fprintf(a.out, "{\"apiVersion\":%q,\"kind\":\"Version\",\"version\":%q}\n", apiVersion, a.version)
				return err
			}
			_, err := fmt.Fprintln(a.out, "sightline", a.version)
			return err
		},
	}
}
