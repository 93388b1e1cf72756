package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
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
		Long: "Deletes all objects of all files as one batch. Callers of a deleted service are given an empty set: deletion is deliberate.",
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
	_ = cmd.MarkFlagRequired("filename")
}

// kindOrder is the order in which a batch names things before it uses them.
var kindOrder = []manifest.Kind{manifest.ProfileKind, manifest.ContractKind, manifest.ServiceKind, manifest.InstanceKind}

// change reads the files and sends one batch.
func (a *app) change(ctx context.Context, files []string, dryRun string, remove bool) error {
	if !slices.Contains([]string{"none", "client", "server"}, dryRun) {
		return usagef("--dry-run %q is not one of none, client, server", dryRun)
	}
	objects, err := a.readManifests(files)
	if err != nil {
		return err
	}
	slices.SortStableFunc(objects, func(x, y manifest.Object) int {
		order := slices.Index(kindOrder, x.Kind) - slices.Index(kindOrder, y.Kind)
		if remove {
			return -order
		}
		return order
	})
	req := &registryv1.ApplyRequest{ValidateOnly: dryRun == "server"}
	for _, o := range objects {
		c := o.Put()
		if remove {
			var ok bool
			if c, ok = o.Delete(); !ok {
				return fmt.Errorf("%s:%d: an instance without metadata.name cannot be told from its siblings: delete it by its uid", o.File, o.Line)
			}
		}
		req.Changes = append(req.Changes, c)
	}
	if dryRun == "client" {
		for _, o := range objects {
			fmt.Fprintf(a.out, "%s valid (dry run)\n", objectName(o))
		}
		return nil
	}
	return a.call(ctx, func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
		resp, err := registryv1.NewRegistryServiceClient(conn).Apply(ctx, req)
		if err != nil {
			return locate(err, objects)
		}
		suffix := ""
		if req.GetValidateOnly() {
			suffix = " (dry run)"
		}
		for i, r := range resp.GetResults() {
			fmt.Fprintf(a.out, "%s %s%s\n", objectName(objects[i]), lower(r.GetOutcome().String(), "OUTCOME_"), suffix)
		}
		return nil
	})
}

func objectName(o manifest.Object) string {
	return strings.ToLower(string(o.Kind)) + "/" + strings.TrimSuffix(o.Name(), "/")
}

// readManifests reads every file, and reports the problems of all of them.
func (a *app) readManifests(paths []string) (objects []manifest.Object, err error) {
	files, err := expand(paths)
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, file := range files {
		var data []byte
		if file == "-" {
			data, err = io.ReadAll(io.LimitReader(a.in, manifest.MaxFileSize+1))
		} else {
			data, err = os.ReadFile(file)
		}
		if err != nil {
			return nil, err
		}
		got, err := manifest.Parse(file, data)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		objects = append(objects, got...)
	}
	if len(problems) > 0 {
		return nil, &exitError{code: exitFailure, err: errors.Join(problems...), hint: "nothing was applied"}
	}
	if len(objects) == 0 {
		return nil, usagef("%s declares no object", strings.Join(paths, ", "))
	}
	return objects, nil
}

// expand turns folders into their manifest files, sorted.
func expand(paths []string) (files []string, err error) {
	for _, p := range paths {
		if p == "-" {
			files = append(files, p)
			continue
		}
		err := filepath.WalkDir(p, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			if ext := filepath.Ext(path); path == p || ext == ".yaml" || ext == ".yml" || ext == ".json" {
				files = append(files, path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// locate gives the violations of a refused batch their place in the files: the
// server names fields as changes[3].put_service.ports.
func locate(err error, objects []manifest.Object) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	var problems []error
	for _, d := range s.Details() {
		bad, ok := d.(*errdetails.BadRequest)
		if !ok {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			var i int
			if n, _ := fmt.Sscanf(v.GetField(), "changes[%d]", &i); n != 1 || i < 0 || i >= len(objects) {
				continue
			}
			_, field, _ := strings.Cut(v.GetField(), ".")
			_, field, _ = strings.Cut(field, ".")
			problems = append(problems, objects[i].Problem(field, v.GetReason(), v.GetDescription()))
		}
	}
	if len(problems) == 0 {
		return err
	}
	return &exitError{code: exitFailure, err: errors.Join(problems...), hint: "nothing was applied"}
}
