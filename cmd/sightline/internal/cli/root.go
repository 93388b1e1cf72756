package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Main runs one command line and returns the process's exit code. SIGINT,
// SIGTERM and a terminal that closes ask the command to end; a second signal
// ends the process.
func Main(version string, args []string, in io.Reader, out, errOut io.Writer) int {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup means it
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	context.AfterFunc(ctx, stop)
	return run(ctx, version, args, in, out, errOut)
}

// run is Main under a context of the caller's.
func run(ctx context.Context, version string, args []string, in io.Reader, out, errOut io.Writer) int {
	a := &app{version: version, self: os.Args[0], in: in, out: out, err: errOut}
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
	self     string // how the binary was called, for hints
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
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if a.timeout <= 0 {
				return usagef("--timeout %s has to be above 0", a.timeout)
			}
			return a.printer().check()
		},
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
		a.statusCommand(), a.whyCommand(), a.historyCommand(), a.tapCommand(), a.resolveCommand(), a.clientCommand(),
		a.quarantineCommand(), a.brakeCommand(),
		a.serviceCommand(), a.instanceCommand(),
		a.viewCommand(), a.contractCommand(),
		a.applyCommand(), a.deleteCommand(), a.diffCommand(),
		a.proberCommand(), a.bootstrapCommand(), a.versionCommand(),
	)
	argsAreUsage(cmd)
	return cmd
}

// argsAreUsage makes a wrong number of arguments a usage error everywhere.
func argsAreUsage(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if check(c, args) != nil {
				words := strings.Fields(c.Use)[1:]
				if len(words) == 0 {
					words = []string{"no arguments"}
				}
				return &exitError{code: exitUsage, err: fmt.Errorf("%s takes %s; given: %d", c.CommandPath(), strings.Join(words, " "), len(args)),
					hint: "usage: " + c.UseLine()}
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
			return notACommand(c, args[0])
		}
	}
	for _, sub := range cmd.Commands() {
		argsAreUsage(sub)
	}
}

func notACommand(parent *cobra.Command, word string) error {
	hint := "see: " + parent.CommandPath() + " --help"
	parent.SuggestionsMinimumDistance = 2
	if near := parent.SuggestionsFor(word); len(near) > 0 {
		hint = "did you mean: " + parent.CommandPath() + " " + near[0]
	}
	return &exitError{code: exitUsage, err: fmt.Errorf("%q is not a command of %s", word, parent.CommandPath()), hint: hint}
}

func (a *app) printer() printer {
	return printer{out: a.out, err: a.err, format: a.format, noHeaders: a.noHeaders}
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
		Long: "Prints the version of this binary. That of the control plane is in: sightline status",
		RunE: func(*cobra.Command, []string) error {
			p := a.printer()
			if p.human() {
				_, err := fmt.Fprintln(a.out, "sightline", a.version)
				return err
			}
			type build struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}
			item := build{a.version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return p.list(listing{kind: "VersionList", rows: []row{{name: a.version, item: item}}})
		},
	}
}
