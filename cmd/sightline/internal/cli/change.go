package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry/manifest"
)

func (a *app) applyCommand() *cobra.Command {
	var files []string
	var dryRun string
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Create or change what manifests declare", Args: cobra.NoArgs,
		Long:    "Applies all objects of all files as one batch: everything or nothing.\nFiles are read strictly: unknown and repeated keys are errors with file, line and column.\n-f takes a file, a folder (*.yaml, *.yml, *.json), or - for standard input, and may be repeated.",
		Example: "  sightline apply -f manifests/\n  sightline apply -f checkout.yaml --dry-run=server",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.change(cmd.Context(), files, dryRun, false)
		},
	}
	changeFlags(cmd, &files, &dryRun)
	return cmd
}

func (a *app) deleteCommand() *cobra.Command {
	var files []string
	var dryRun string
	cmd := &cobra.Command{
		Use: "delete -f FILE", Short: "Delete what manifests declare", Args: cobra.NoArgs,
		Long:    "Deletes all objects of all files as one batch; what is not there any more is no error.\nCallers of a deleted service are given an empty set: deletion is deliberate.",
		Example: "  sightline delete -f checkout.yaml --dry-run=server\n  sightline delete -f checkout.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.change(cmd.Context(), files, dryRun, true)
		},
	}
	changeFlags(cmd, &files, &dryRun)
	return cmd
}

func changeFlags(cmd *cobra.Command, files *[]string, dryRun *string) {
	cmd.Flags().StringArrayVarP(files, "filename", "f", nil, "file, folder, or - (repeatable)")
	cmd.Flags().StringVar(dryRun, "dry-run", "none", "client: only read the files; server: let the server check, and change nothing")
}

// kindOrder is the order in which a batch names things before it uses them.
var kindOrder = []manifest.Kind{manifest.ProfileKind, manifest.ContractKind, manifest.ServiceKind, manifest.InstanceKind}

// change reads the files and sends one batch.
func (a *app) change(ctx context.Context, files []string, dryRun string, remove bool) error {
	if !slices.Contains([]string{"none", "client", "server"}, dryRun) {
		return usagef("--dry-run %q is not one of none, client, server", dryRun)
	}
	objects, changes, err := a.batch(files, remove)
	if err != nil {
		return err
	}
	if dryRun == "client" {
		results := make([]*registryv1.ChangeResult, len(objects))
		return a.printChanges(changeListing(objects, results, " (dry run)"))
	}
	return a.call(ctx, func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
		req := &registryv1.ApplyRequest{Changes: changes, ValidateOnly: dryRun == "server"}
		resp, err := registryv1.NewRegistryServiceClient(conn).Apply(ctx, req)
		if err != nil {
			return locate(err, objects)
		}
		suffix := ""
		if req.GetValidateOnly() {
			suffix = " (dry run)"
		}
		return a.printChanges(changeListing(objects, resp.GetResults(), suffix))
	})
}

// batch reads the files, and puts what they declare into the order of a batch.
func (a *app) batch(files []string, remove bool) (objects []manifest.Object, changes []*registryv1.Change, err error) {
	if len(files) == 0 {
		return nil, nil, usagef("name what to read: -f FILE, -f FOLDER, or -f - for standard input")
	}
	if objects, err = a.readManifests(files); err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(objects, func(x, y manifest.Object) int {
		order := slices.Index(kindOrder, x.Kind) - slices.Index(kindOrder, y.Kind)
		if remove {
			return -order
		}
		return order
	})
	changes, err = changesOf(objects, remove)
	return objects, changes, err
}

// changesOf turns objects into the batch that creates or deletes them.
func changesOf(objects []manifest.Object, remove bool) (changes []*registryv1.Change, err error) {
	for _, o := range objects {
		c := o.Put()
		if remove {
			var ok bool
			if c, ok = o.Delete(); !ok {
				return nil, fmt.Errorf("%s:%d: an instance without metadata.name cannot be told from its siblings: give its uid as the name", o.File, o.Line)
			}
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// changeResult is what became of one object.
type changeResult struct {
	Object  string `json:"object"`
	Outcome string `json:"outcome"`
	UID     string `json:"uid,omitempty"`
}

// changeListing has a line for each object, in the order of the batch.
func changeListing(objects []manifest.Object, results []*registryv1.ChangeResult, suffix string) listing {
	l := listing{kind: "ChangeList"}
	for i, r := range results {
		out := changeResult{Object: objectName(objects[i]), Outcome: "valid", UID: r.GetUid()}
		if strings.HasSuffix(out.Object, "/") {
			out.Object += r.GetUid() // an instance without a name of its own
		}
		if r != nil {
			out.Outcome = lower(r.GetOutcome().String(), "OUTCOME_")
		}
		l.rows = append(l.rows, row{name: out.Object, cells: []string{out.Object + " " + out.Outcome + suffix}, item: out})
	}
	return l
}

// printChanges says to people what happened, a sentence an object.
func (a *app) printChanges(l listing) error {
	if !a.printer().human() {
		return a.printer().list(l)
	}
	for _, r := range l.rows {
		fmt.Fprintln(a.out, r.cells[0])
	}
	return nil
}

func objectName(o manifest.Object) string {
	return strings.ToLower(string(o.Kind)) + "/" + o.Name()
}

// nothingChanged follows every refusal of a batch.
const nothingChanged = "nothing was changed"

// locate gives the refusal of a batch its place in the files: the server names
// fields as changes[3].put_service.ports, at the head of its message too.
func locate(err error, objects []manifest.Object) error {
	s, ok := status.FromError(err)
	if !ok || !answered(s) {
		return err
	}
	var problems []error
	for _, v := range violations(s) {
		if o, field, ok := placeOf(v.GetField(), objects); ok {
			rule := strings.ReplaceAll(strings.ToLower(v.GetReason()), "_", "-")
			problems = append(problems, o.Problem(field, rule, v.GetDescription()))
		}
	}
	if len(problems) == 0 {
		where, what, _ := strings.Cut(s.Message(), ": ")
		o, _, ok := placeOf(where, objects)
		if !ok {
			return err
		}
		problems = append(problems, fmt.Errorf("%s:%d: %s: %s", o.File, o.Line, objectName(*o), plain(what)))
	}
	return &exitError{code: exitOf(s), err: errors.Join(problems...), hint: nothingChanged}
}

// placeOf reads changes[3].put_service.ports: the object, and the field in it.
func placeOf(path string, objects []manifest.Object) (o *manifest.Object, field string, ok bool) {
	var i int
	if n, _ := fmt.Sscanf(path, "changes[%d]", &i); n != 1 || i < 0 || i >= len(objects) {
		return nil, "", false
	}
	_, field, _ = strings.Cut(path, ".")
	_, field, _ = strings.Cut(field, ".")
	return &objects[i], field, true
}
