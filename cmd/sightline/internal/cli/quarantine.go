package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
)

func (a *app) quarantineCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "quarantine", Short: "Instances that changed too often"}
	list := &cobra.Command{
		Use: "list [NS/SVC]", Short: "List instances in quarantine, with their ends", Args: cobra.MaximumNArgs(1),
		Long: `Lists the instances that went out and came back so often that they are held out
for a while, however good their evidence is now: at the 5th change within 10
minutes for 1 minute, doubling up to 30. The guard lifts quarantines before it
lets a service run empty: LIFTED instances are given to callers all the same.`,
		Example: "  sightline quarantine list\n  sightline quarantine list shop/checkout -o wide",
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &adminv1.ListQuarantinesRequest{Namespace: a.namespace}
			if len(args) == 1 {
				var err error
				if req.Namespace, req.Name, err = a.splitService(args[0]); err != nil {
					return err
				}
			}
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				all, err := listAll(func(token string) ([]*adminv1.QuarantinedInstance, string, error) {
					req.PageToken = token
					r, err := adminv1.NewAdminServiceClient(conn).ListQuarantines(ctx, req)
					return r.GetQuarantines(), r.GetNextPageToken(), err
				})
				if err != nil {
					return err
				}
				return a.printer().list(quarantineListing(all, req, time.Now()))
			})
		},
	}
	cmd.AddCommand(list, a.releaseQuarantineCommand())
	return cmd
}

func quarantineListing(all []*adminv1.QuarantinedInstance, req *adminv1.ListQuarantinesRequest, now time.Time) listing {
	where := "in any service that you may see"
	switch {
	case req.GetName() != "":
		where = "of " + req.GetNamespace() + "/" + req.GetName()
	case req.GetNamespace() != "":
		where = "in namespace " + req.GetNamespace()
	}
	l := listing{
		kind:    "QuarantineList",
		columns: []string{"NAME", "STATE", "CHANGES", "LIFTED", "ENDS", "AGE"},
		wide:    []string{"UID", "NEXT", "HISTORY"},
		empty:   "no instance " + where + " is in quarantine: none went out and came back too often",
	}
	for _, q := range all {
		x := q.GetQuarantine()
		name := q.GetService() + "/" + shown(q.GetLabel(), q.GetUid())
		ends := "unknown"
		if x.GetEndTime() != nil {
			ends = "in-" + span(x.GetEndTime().AsTime().Sub(now))
		}
		l.rows = append(l.rows, row{name: name, item: q, cells: []string{
			name, lower(q.GetState().String(), "STATE_"), fmt.Sprint(x.GetChanges()), yesNo(x.GetLifted()), ends, age(x.GetSince().AsTime(), now),
			q.GetUid(), span(x.GetNextHold().AsDuration()), flapHistory(x.GetHistory(), now),
		}})
	}
	return l
}

// flapHistory is the changes that led to a quarantine, oldest first.
func flapHistory(all []*adminv1.FlapExplanation, now time.Time) string {
	var parts []string
	for _, f := range all {
		way := "out"
		if f.GetServing() {
			way = "in"
		}
		parts = append(parts, way+":"+f.GetRule()+"@-"+span(now.Sub(f.GetTime().AsTime())))
	}
	return strings.Join(parts, ",")
}

func (a *app) releaseQuarantineCommand() *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use: "release NS/SVC/INST", Short: "End an instance's quarantine before its time", Args: cobra.ExactArgs(1),
		Long: `Ends an instance's quarantine now. It returns with a ramp if its evidence is good.
The attempt is on the audit log before it has an effect, with the justification;
it does not count as a change, and the next quarantine is no shorter for it.

Exit code 5: there is no quarantine to end, or you may not.`,
		Example: `  sightline quarantine release shop/checkout/checkout-3 --justification "disk replaced, INC-4211"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, service, instance, err := a.splitInstance(args[0])
			if err != nil {
				return err
			}
			if err := justified(why); err != nil {
				return err
			}
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				r, err := adminv1.NewAdminServiceClient(conn).ReleaseQuarantine(ctx, &adminv1.ReleaseQuarantineRequest{
					Namespace: namespace, Name: service, Instance: instance, Justification: why})
				if err != nil {
					return err
				}
				return a.printRelease(r.GetQuarantine())
			})
		},
	}
	cmd.Flags().StringVar(&why, "justification", "", "why, for the audit log (required)")
	return cmd
}

func justified(why string) error {
	if strings.TrimSpace(why) == "" {
		return &exitError{code: exitUsage, err: fmt.Errorf("--justification is required: say why, for the audit log"),
			hint: `for example --justification "disk replaced, INC-4211"`}
	}
	return nil
}

func (a *app) printRelease(q *adminv1.QuarantinedInstance) error {
	name := q.GetService() + "/" + shown(q.GetLabel(), q.GetUid())
	if !a.printer().human() {
		return a.printer().list(listing{kind: "QuarantineList", rows: []row{{name: name, item: q}}})
	}
	rest := ""
	if end := q.GetQuarantine().GetEndTime(); end != nil {
		rest = fmt.Sprintf(", %s before its end", span(time.Until(end.AsTime())))
	}
	fmt.Fprintf(a.out, "instance/%s released from quarantine%s\n", plain(name), rest)
	fmt.Fprintf(a.err, "see: %s why %s\n", a.self, plain(name))
	return nil
}

func (a *app) brakeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "brake", Short: "What holds mass removals back"}
	var why, source string
	release := &cobra.Command{
		Use: "release", Short: "Let pass what a brake holds back", Args: cobra.NoArgs,
		Long: `Releases the region's brake, which holds back withdrawals by observation when too
many come at once; or, with --source, the removals that a source's list asks for
and that are too many to be believed: they go with its next complete list that
still lacks them. Brakes that hold something are listed by: sightline status

The attempt is on the audit log before it has an effect, with the justification.
Exit code 5: nothing is held, or you may not.`,
		Example: `  sightline brake release --justification "zone b is really down, INC-4212"
  sightline brake release --source file:prod --justification "the namespace was retired"`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := justified(why); err != nil {
				return err
			}
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				r, err := adminv1.NewAdminServiceClient(conn).ReleaseBrake(ctx, &adminv1.ReleaseBrakeRequest{Source: source, Justification: why})
				if err != nil {
					return err
				}
				type released struct {
					Detail string `json:"detail"`
				}
				if !a.printer().human() {
					return a.printer().list(listing{kind: "ReleaseList", rows: []row{{name: r.GetDetail(), item: released{r.GetDetail()}}}})
				}
				_, err = fmt.Fprintln(a.out, plain(r.GetDetail()))
				return err
			})
		},
	}
	release.Flags().StringVar(&why, "justification", "", "why, for the audit log (required)")
	release.Flags().StringVar(&source, "source", "", "source whose removals are held, as file:NAME (default: the region's brake)")
	cmd.AddCommand(release)
	return cmd
}
