package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry/manifest"
)

func (a *app) contractCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "contract", Short: "What health means for a service"}
	list := &cobra.Command{
		Use: "list", Short: "List contracts", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				all, err := listAll(func(token string) ([]*registryv1.Contract, string, error) {
					r, err := registryv1.NewRegistryServiceClient(conn).ListContracts(ctx, &registryv1.ListContractsRequest{Namespace: a.namespace, PageToken: token})
					return r.GetContracts(), r.GetNextPageToken(), err
				})
				if err != nil {
					return err
				}
				l := contractListing(all)
				if a.namespace != "" {
					l.empty = "no contracts in namespace " + a.namespace + " (or none that you may see): its services have the defaults"
				}
				return a.printer().list(l)
			})
		},
	}
	get := &cobra.Command{
		Use: "get NS/NAME", Short: "One contract, with the defaults that fill it", Args: cobra.ExactArgs(1),
		Long: "Prints every field of a contract as it is in effect. Those that the contract itself\ngives are marked with *; the others are defaults.",
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, err := a.splitService(strings.TrimPrefix(args[0], "contract/"))
			if err != nil {
				return err
			}
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				r, err := registryv1.NewRegistryServiceClient(conn).GetContract(ctx, &registryv1.GetContractRequest{Namespace: namespace, Name: name})
				if err != nil {
					return err
				}
				return a.printContract(r)
			})
		},
	}
	cmd.AddCommand(list, get, a.contractTestCommand())
	return cmd
}

func contractListing(all []*registryv1.Contract) listing {
	l := listing{
		kind:    "ContractList",
		columns: []string{"NAME", "LEASE", "GUARD", "RAMP", "RETURN", "REQUIRES", "SOURCE"},
		wide:    []string{"SILENCE", "LOCALITY", "DEPENDENCIES", "REVISION"},
		empty:   "no contracts: every service has the defaults. See: sightline apply --help",
	}
	for _, c := range all {
		name := c.GetNamespace() + "/" + c.GetName()
		guard := "default"
		if c.GuardPercent != nil {
			guard = fmt.Sprintf("%d%%", c.GetGuardPercent())
		}
		var depends []string
		for _, d := range c.GetDependencies() {
			depends = append(depends, d.GetName())
		}
		l.rows = append(l.rows, row{name: "contract/" + name, item: c, cells: []string{
			name, orDefault(c.GetLease()), guard, orDefault(c.GetRamp()), orDefault(c.GetReturnHold()), strings.Join(classList(c.GetRequire()), ","), c.GetSource(),
			unspecified(lower(c.GetSilence().String(), "SILENCE_POLICY_")), unspecified(lower(c.GetLocality().String(), "LOCALITY_MODE_")),
			strings.Join(depends, ","), fmt.Sprint(c.GetRevision()),
		}})
	}
	return l
}

func orDefault(d *durationpb.Duration) string {
	if d == nil {
		return "default"
	}
	return d.AsDuration().String()
}

func unspecified(word string) string {
	if word == "unspecified" {
		return "default"
	}
	return word
}

// byDefault are the words that a row has also where its author gave none.
var byDefault = [...]string{"spread", "unknown", "per-endpoint", "tcp", "reduce-weight"}

// contractDescription is a contract as given, and as it is in effect.
type contractDescription struct {
	Contract  message `json:"contract"`
	Effective message `json:"effective"`
}

func (a *app) printContract(r *registryv1.GetContractResponse) error {
	c := r.GetContract()
	name := c.GetNamespace() + "/" + c.GetName()
	if !a.printer().human() {
		item := contractDescription{message{c}, message{r.GetEffective()}}
		return a.printer().list(listing{kind: "ContractDescriptionList", rows: []row{{name: "contract/" + name, item: item}}})
	}
	own, err := fieldsOf(c)
	if err != nil {
		return err
	}
	effective, err := fieldsOf(r.GetEffective())
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "contract/%s  source %s  revision %d\n", plain(name), plain(c.GetSource()), c.GetRevision())
	for _, path := range slices.Sorted(maps.Keys(effective)) {
		mark, value := " ", given(effective[path])
		if _, is := own[path]; is && !slices.Contains(byDefault[:], value) {
			mark = "*"
		}
		fmt.Fprintf(a.out, "%s %-28s %s\n", mark, path, plain(value))
	}
	return nil
}

const contractTestLong = `Replays the minutes that the server recorded of a service against a draft of its
contract, beside the contract in effect, and prints where the two differ: each
instance with the time, both verdicts, the rule and the numbers. It changes
nothing: neither the contract nor a verdict.

Minutes are aggregates and hide seconds: an answer is about what would have held
for minutes, not about single blips. They are kept for 7 days.

Exit code 0: nothing would have been otherwise; 1: something would; 6: a guard
would have tripped that does not trip now.`

func (a *app) contractTestCommand() *cobra.Command {
	var file string
	var since time.Duration
	cmd := &cobra.Command{
		Use: "test -f FILE NS/SVC", Short: "What a draft contract would have changed", Args: cobra.ExactArgs(1),
		Long:    contractTestLong,
		Example: "  sightline contract test -f draft.yaml shop/checkout --since 24h",
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, err := a.splitService(args[0])
			if err != nil {
				return err
			}
			draft, err := a.readDraft(file)
			if err != nil {
				return err
			}
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				r, err := adminv1.NewAdminServiceClient(conn).TestContract(ctx, &adminv1.TestContractRequest{
					Namespace: namespace, Name: name, Contract: draft.Put().GetPutContract(), Since: durationpb.New(since)})
				if err != nil {
					return draftProblem(err, draft)
				}
				return a.printTrial(r.GetTrial(), namespace+"/"+name)
			})
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the draft: a file with one Contract, or -")
	cmd.Flags().DurationVar(&since, "since", time.Hour, "how far back to replay, at most 168h")
	return cmd
}

// readDraft reads a file that declares exactly one contract; other objects in it
// are left alone.
func (a *app) readDraft(file string) (draft manifest.Object, err error) {
	if file == "" {
		return draft, usagef("name the draft: -f FILE, or -f - for standard input")
	}
	objects, err := a.readManifests([]string{file})
	if err != nil {
		return draft, err
	}
	objects = slices.DeleteFunc(objects, func(o manifest.Object) bool { return o.Kind != manifest.ContractKind })
	if len(objects) != 1 {
		return draft, usagef("%s declares %s; give a file with one", file, counted(len(objects), "contract"))
	}
	return objects[0], nil
}

// draftProblem gives what the server found wrong its place in the file.
func draftProblem(err error, draft manifest.Object) error {
	s, ok := statusOf(err)
	if !ok {
		return err
	}
	var problems []error
	for _, v := range violations(s) {
		if field, in := strings.CutPrefix(v.GetField(), "contract."); in {
			problems = append(problems, draft.Problem(field, strings.ReplaceAll(strings.ToLower(v.GetReason()), "_", "-"), v.GetDescription()))
		}
	}
	if len(problems) == 0 {
		return err
	}
	return &exitError{code: exitOf(s), err: errors.Join(problems...), hint: nothingChanged}
}

func (a *app) printTrial(t *adminv1.ContractTrial, service string) error {
	if !a.printer().human() {
		if err := a.printer().list(listing{kind: "ContractTrialList", rows: []row{{name: service, item: t}}, warnings: t.GetCaveats()}); err != nil {
			return err
		}
	} else {
		a.trial(t, service)
	}
	trips := slices.ContainsFunc(t.GetGuards(), func(g *adminv1.TrialGuard) bool { return !g.GetLiveToo() })
	switch {
	case trips:
		return &exitError{code: exitDegraded, err: errors.New("")} // the screen has said so
	case len(t.GetChanges()) > 0:
		return &exitError{code: exitFailure, err: errors.New("")}
	}
	return nil
}

// trial is a contract's trial for a person.
func (a *app) trial(t *adminv1.ContractTrial, service string) {
	if t.GetMinutes() == 0 {
		fmt.Fprintf(a.err, "no minute of %s is recorded in that span: minutes are written as evidence comes in, and kept for 7 days\n", service)
		return
	}
	clock := func(at time.Time) string { return at.Local().Format("01-02T15:04") }
	fmt.Fprintf(a.out, "%s  %s of %s replayed, %s to %s\n", service, counted(t.GetMinutes(), "minute"), counted(t.GetInstances(), "instance"),
		clock(t.GetFromTime().AsTime()), clock(t.GetToTime().AsTime()))
	if n := t.GetMissingMinutes(); n > 0 {
		fmt.Fprintf(a.out, "  %s of the span left no record\n", counted(n, "minute"))
	}
	for _, c := range t.GetChanges() {
		end := "on"
		if c.GetEndTime() != nil {
			end = "to " + clock(c.GetEndTime().AsTime())
		}
		fmt.Fprintln(a.out, plain(fmt.Sprintf("  ~ %s  %s %s  %s by %s -> %s by %s: %s", shown(c.GetLabel(), c.GetUid()), clock(c.GetStartTime().AsTime()), end,
			lower(c.GetLive().String(), "STATE_"), cell(c.GetLiveRule()), lower(c.GetDraft().String(), "STATE_"), cell(c.GetDraftRule()), c.GetDetail())))
	}
	if n := t.GetChangesOmitted(); n > 0 {
		fmt.Fprintf(a.out, "  and %d more\n", n)
	}
	if p := t.GetPeak(); p != nil {
		fmt.Fprintf(a.out, "most out at once: %d of %d at %s (%d by the contract in effect)\n", p.GetDraftOut(), p.GetMembers(), clock(p.GetTime().AsTime()), p.GetLiveOut())
	}
	for _, g := range t.GetGuards() {
		note := ""
		if g.GetLiveToo() {
			note = ", as by the contract in effect"
		}
		where := "region"
		if g.GetZone() != "" {
			where = "zone " + g.GetZone()
		}
		fmt.Fprintln(a.out, plain(fmt.Sprintf("guard: would have tripped at %s (%s): %d of %d serving, floor %d%%%s", clock(g.GetTime().AsTime()), where,
			g.GetServing(), g.GetMembers(), g.GetFloorPercent(), note)))
	}
	for _, c := range t.GetCaveats() {
		fmt.Fprintln(a.err, "note:", plain(c))
	}
	if len(t.GetChanges()) == 0 {
		fmt.Fprintln(a.out, "nothing would have been otherwise")
	}
}
