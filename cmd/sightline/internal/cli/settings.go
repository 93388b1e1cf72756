package cli

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sightlinedev/sightline/registry/manifest"
	"github.com/sightlinedev/sightline/server"
)

// settle completes the configuration from the environment and the file.
func (s *serverFlags) settle(cmd *cobra.Command) error {
	if err := s.readConfig(cmd); err != nil {
		return err
	}
	s.cfg.Manifests = map[string]string{}
	for _, m := range s.manifests {
		name, dir, ok := strings.Cut(m, "=")
		if !ok || name == "" || dir == "" {
			return usagef("--manifests %q: write NAME=FOLDER", m)
		}
		s.cfg.Manifests[name] = dir
	}
	if s.outbound != "" {
		addr, err := netip.ParseAddrPort(s.outbound)
		if err != nil {
			return usagef("--envoy-outbound %q: write ip:port", s.outbound)
		}
		s.cfg.EnvoyOutbound = addr
	}
	log, err := s.logger(cmd.ErrOrStderr())
	s.cfg.Log = log
	return err
}

// readConfig lays the environment and the configuration file under the flags.
func (s *serverFlags) readConfig(cmd *cobra.Command) error {
	var settings []manifest.Setting
	if s.file != "" {
		raw, err := os.ReadFile(s.file)
		if err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		var grants []manifest.Grant
		if settings, grants, err = manifest.Settings(s.file, raw); err != nil {
			return &exitError{code: exitUsage, err: err}
		}
		if len(grants) > 0 {
			s.cfg.Policy = &server.Policy{}
		}
		for _, g := range grants {
			s.cfg.Policy.Resolve = append(s.cfg.Policy.Resolve, server.Grant{Caller: g.Caller, Callee: g.Callee})
		}
	}
	for _, name := range unknownVariables(cmd.Flags(), os.Environ()) {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s is set and is no setting of %s\n", name, cmd.CommandPath())
	}
	return fill(cmd.Flags(), s.file, settings, os.LookupEnv)
}

// variable is the environment variable of a flag.
func variable(flag string) string {
	return "SIGHTLINE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fill sets the flags that the command line left alone: from the environment,
// else from the file. A key that is no flag is an error.
func fill(f *pflag.FlagSet, file string, settings []manifest.Setting, lookup func(string) (string, bool)) (err error) {
	inFile := map[string]manifest.Setting{}
	for _, s := range settings {
		name := strings.ReplaceAll(s.Key, "_", "-")
		if f.Lookup(name) == nil || name == "config" || name == "help" {
			return &exitError{code: exitUsage, err: fmt.Errorf("%s:%d: %q is not a setting", file, s.Line, s.Key),
				hint: "settings are the flags of --help, with underscores, and policy.resolve"}
		}
		inFile[name] = s
	}
	f.VisitAll(func(flag *pflag.Flag) {
		value, origin, ok := "", "", false
		if value, ok = lookup(variable(flag.Name)); ok {
			origin = variable(flag.Name)
		} else if s, found := inFile[flag.Name]; found {
			value, origin, ok = s.Value, fmt.Sprintf("%s:%d: %s", file, s.Line, s.Key), true
		}
		if ok && !flag.Changed && err == nil {
			if e := flag.Value.Set(value); e != nil {
				err = &exitError{code: exitUsage, err: fmt.Errorf("%s: %q: %w", origin, value, e)}
			}
		}
	})
	return err
}

// clientVariables are those that are no flag of the same name.
var clientVariables = []string{"SIGHTLINE_ADDR", "SIGHTLINE_ENVOY"}

// unknownVariables lists what is set for us and means nothing: a misspelt
// setting would otherwise be silence.
func unknownVariables(f *pflag.FlagSet, environ []string) (out []string) {
	known := slices.Clone(clientVariables)
	f.VisitAll(func(flag *pflag.Flag) { known = append(known, variable(flag.Name)) })
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "SIGHTLINE_") && !slices.Contains(known, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// logger writes for people on a terminal, and JSON elsewhere.
func (s *serverFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, usagef("--log-level %q is not one of debug, info, warn, error", s.logLevel)
	}
	switch {
	case s.logFormat == "text", s.logFormat == "auto" && terminal(w):
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: "15:04:05.000", NoColor: !colour(w)})), nil
	case s.logFormat == "json", s.logFormat == "auto":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})), nil
	}
	return nil, usagef("--log-format %q is not one of auto, text, json", s.logFormat)
}
