package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sightlinedev/sightline/cmd/sightline/internal/demo"
)

func (a *app) demoCommand() *cobra.Command {
	cfg := demo.Config{Out: a.out}
	cmd := &cobra.Command{
		Use: "demo", Short: "Everything in one go, with real traffic and real failures", Args: cobra.NoArgs,
		Long: `Starts a control plane, three services of four instances and five callers (three
stock grpc-go clients, a real Envoy, a DNS client), each a process of its own.
Then something fails, and what callers hold is compared with what is promised.
Scenarios beside the tour have a cast of their own:

` + demo.Describe() + `

It is insecure in one way only: its certificate authority is thrown away.
It listens on loopback, and removes its state when it ends.`,
		Example: "  sightline demo\n  sightline demo --scenario tour --assert --exit",
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			cfg.Self, cfg.Envoy = self, findEnvoy()
			cfg.Announce = announce
			switch {
			case cfg.Speed <= 0:
				return usagef("--speed has to be above 0")
			case !slices.Contains(demo.Scenarios(), cfg.Scenario):
				return usagef("--scenario %q is not one of %s", cfg.Scenario, strings.Join(demo.Scenarios(), ", "))
			}
			return demo.Run(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Scenario, "scenario", "tour", "what happens, one of those above")
	f.BoolVar(&cfg.Assert, "assert", false, "fail when a claim does not hold (needs Envoy)")
	f.BoolVar(&cfg.Exit, "exit", false, "end after the scenario")
	f.Float64Var(&cfg.Speed, "speed", 1, "speed of the pauses between steps")
	f.Uint64Var(&cfg.Seed, "seed", 1, "chooses the victims")
	f.IntVar(&cfg.PortBase, "port-base", 18000, "first of the ports used")
	f.BoolVar(&cfg.Keep, "keep", false, "keep the state folder")
	cmd.AddCommand(&cobra.Command{
		Use: "part SPEC", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return demo.RunPart(cmd.Context(), args[0], a.in, a.out)
		},
	})
	return cmd
}

// announce makes the demo the current command-line context.
func announce(x demo.Access) (undo func(), err error) {
	return saveTarget(target{
		Name: "demo", API: x.API, XDS: x.XDS, DNS: x.DNS, HTTP: x.HTTP, Zone: x.Zone, TrustDomain: x.TrustDomain, Region: "local",
		Cert: x.Cert, Key: x.Key, Bundle: x.Bundle, WorkloadCert: x.WorkloadCert, WorkloadKey: x.WorkloadKey,
	})
}

// findEnvoy looks where NAMES.md says: the environment, the cache that the
// make targets fill (beside the binary's folder), and PATH.
func findEnvoy() string {
	candidates := []string{os.Getenv("SIGHTLINE_ENVOY"), filepath.Join(".cache", "envoy", "envoy")}
	if self, err := os.Executable(); err == nil {
		candidates = append(candidates, filepath.Join(filepath.Dir(self), "..", ".cache", "envoy", "envoy"))
	}
	for _, c := range candidates {
		if st, err := os.Stat(c); c != "" && err == nil && !st.IsDir() {
			abs, err := filepath.Abs(c)
			if err == nil {
				return abs
			}
		}
	}
	path, err := exec.LookPath("envoy")
	if err != nil {
		return ""
	}
	return path
}
