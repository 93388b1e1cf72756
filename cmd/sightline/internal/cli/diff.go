package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry/manifest"
)

const diffLong = `Prints what applying the files would change, and changes nothing: objects that are
new, objects that are there with other fields, field by field, and with --delete
what delete would remove. The server checks the whole batch as it would apply it,
so that what it refuses is refused here too.

  + contract/shop/checkout        would be created
  ~ service/shop/checkout         would be changed
      ports[0].number  8443 -> 9443
  - instance/shop/checkout/c-1    would be deleted
A field that the file leaves out is shown as <default>.

Exit code 0: nothing would change; 1: something would, as diff does; other codes
as everywhere (2 a mistake in the command line, 3 not reachable, 5 refused). A
refused file ends with 1 too, and says so on standard error.`

func (a *app) diffCommand() *cobra.Command {
	var files []string
	var remove bool
	cmd := &cobra.Command{
		Use: "diff -f FILE", Short: "What applying manifests would change", Args: cobra.NoArgs,
		Long:    diffLong,
		Example: "  sightline diff -f manifests/\n  sightline diff -f old.yaml --delete\n  sightline diff -f checkout.yaml || echo differs",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.diff(cmd.Context(), files, remove)
		},
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file, folder, or - (repeatable)")
	cmd.Flags().BoolVar(&remove, "delete", false, "what deleting the objects of the files would change")
	return cmd
}

// objectDiff is what would become of one object.
type objectDiff struct {
	Object string      `json:"object"`
	Change string      `json:"change"` // create, update, delete, none
	Fields []fieldDiff `json:"fields,omitempty"`
}

// fieldDiff is one field that would differ, by its path in the spec.
type fieldDiff struct {
	Field string `json:"field"`
	Was   string `json:"was,omitempty"` // as JSON; empty: not given
	Is    string `json:"is,omitempty"`
}

func (a *app) diff(ctx context.Context, files []string, remove bool) error {
	objects, changes, err := a.batch(files, remove)
	if err != nil {
		return err
	}
	return a.call(ctx, func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
		registry := registryv1.NewRegistryServiceClient(conn)
		// The rows first: a put that lands in between shows as a difference of
		// its own, never as none.
		held := make([]proto.Message, len(objects))
		region, err := regionOf(ctx, conn, objects)
		if err != nil {
			return err
		}
		for i, o := range objects {
			if held[i], err = heldRow(ctx, registry, o); err != nil {
				return err
			}
		}
		resp, err := registry.Apply(ctx, &registryv1.ApplyRequest{Changes: changes, ValidateOnly: true})
		if err != nil {
			return locate(err, objects)
		}
		var diffs []objectDiff
		for i, r := range resp.GetResults() {
			d, err := diffObject(objects[i], held[i], r.GetOutcome(), region)
			if err != nil {
				return err
			}
			diffs = append(diffs, d)
		}
		return a.printObjectDiffs(diffs)
	})
}

// heldRow is the row that the server holds of an object; nil: none that the
// caller may see.
func heldRow(ctx context.Context, c registryv1.RegistryServiceClient, o manifest.Object) (proto.Message, error) {
	var row proto.Message
	var err error
	switch o.Kind {
	case manifest.ServiceKind:
		var r *registryv1.GetServiceResponse
		r, err = c.GetService(ctx, &registryv1.GetServiceRequest{Namespace: o.Service.Name.Namespace, Name: o.Service.Name.Service})
		row = r.GetService()
	case manifest.InstanceKind:
		if o.Instance.Label == "" {
			return nil, nil
		}
		n := o.Instance.Service
		var r *registryv1.GetInstanceResponse
		r, err = c.GetInstance(ctx, &registryv1.GetInstanceRequest{Namespace: n.Namespace, Service: n.Service, Instance: o.Instance.Label})
		row = r.GetInstance()
	case manifest.ContractKind:
		var r *registryv1.GetContractResponse
		r, err = c.GetContract(ctx, &registryv1.GetContractRequest{Namespace: o.Contract.Name.Namespace, Name: o.Contract.Name.Service})
		row = r.GetContract()
	default:
		var r *registryv1.GetProfileResponse
		r, err = c.GetProfile(ctx, &registryv1.GetProfileRequest{Namespace: o.Profile.Namespace, Name: o.Profile.Name})
		row = r.GetProfile()
	}
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	return row, err
}

func diffObject(o manifest.Object, held proto.Message, outcome registryv1.Outcome, region string) (objectDiff, error) {
	d := objectDiff{Object: objectName(o), Change: "none"}
	switch outcome {
	case registryv1.Outcome_OUTCOME_CREATED:
		d.Change = "create"
	case registryv1.Outcome_OUTCOME_CONFIGURED:
		d.Change = "update"
	case registryv1.Outcome_OUTCOME_DELETED:
		d.Change = "delete"
		return d, nil
	default:
		return d, nil
	}
	if held == nil {
		return d, nil
	}
	was, err := fieldsOf(held)
	if err != nil {
		return d, err
	}
	is, err := fieldsOf(wantedRow(o, region))
	if err != nil {
		return d, err
	}
	d.Fields = fieldDiffs(was, is)
	return d, nil
}

// wantedRow is the row that the object puts, as the registry keeps it: lists
// sorted that have no order, an instance's place and weight filled in.
func wantedRow(o manifest.Object, region string) proto.Message {
	c := o.Put()
	if i := c.GetPutInstance(); i != nil {
		slices.SortFunc(i.Ports, func(x, y *registryv1.PortNumber) int { return strings.Compare(x.GetName(), y.GetName()) })
		i.Region = cmp.Or(i.Region, region)
		if i.Weight == nil {
			i.Weight = proto.Uint32(defaultWeight)
		}
		return i
	}
	if k := c.GetPutContract(); k != nil {
		slices.SortFunc(k.Dependencies, func(x, y *registryv1.Dependency) int { return strings.Compare(x.GetName(), y.GetName()) })
		return k
	}
	if svc := c.GetPutService(); svc != nil {
		return svc
	}
	return c.GetPutProfile()
}

// defaultWeight is the weight of an instance that names none.
const defaultWeight = 100

// regionOf is the region that the server gives instances which name none.
func regionOf(ctx context.Context, conn *grpc.ClientConn, objects []manifest.Object) (string, error) {
	if !slices.ContainsFunc(objects, func(o manifest.Object) bool { return o.Kind == manifest.InstanceKind && o.Instance.Region == "" }) {
		return "", nil
	}
	st, err := adminv1.NewAdminServiceClient(conn).GetStatus(ctx, &adminv1.GetStatusRequest{})
	return st.GetStatus().GetRegion(), err
}

// setByTheServer are fields of rows that no manifest's spec has.
var setByTheServer = [...]string{"source", "revision", "uid", "proof", "namespace", "name", "service", "label"}

// fieldsOf flattens a row into its fields by path, each as JSON.
func fieldsOf(row proto.Message) (map[string]string, error) {
	raw, err := encode(row)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	for _, f := range setByTheServer {
		delete(tree, f)
	}
	fields := make(map[string]string)
	flatten(fields, "", tree)
	return fields, nil
}

func flatten(to map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, sub := range v {
			flatten(to, strings.TrimPrefix(path+"."+k, "."), sub)
		}
	case []any:
		for i, sub := range v {
			flatten(to, fmt.Sprintf("%s[%d]", path, i), sub)
		}
	default:
		raw, _ := json.Marshal(v) // a scalar from JSON always goes back into it
		to[path] = string(raw)
	}
}

func fieldDiffs(was, is map[string]string) (out []fieldDiff) {
	all := maps.Clone(was)
	maps.Copy(all, is)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if was[path] != is[path] {
			out = append(out, fieldDiff{Field: path, Was: was[path], Is: is[path]})
		}
	}
	return out
}

func (a *app) printObjectDiffs(diffs []objectDiff) error {
	l := listing{kind: "ObjectDiffList"}
	for _, d := range diffs {
		if d.Change != "none" {
			l.rows = append(l.rows, row{name: d.Object, item: d})
		}
	}
	if !a.printer().human() {
		if err := a.printer().list(l); err != nil {
			return err
		}
	} else {
		a.objectDiffs(diffs)
	}
	if len(l.rows) > 0 {
		return &exitError{code: exitFailure, err: errors.New("")} // the difference is the answer, as of diff
	}
	return nil
}

func (a *app) objectDiffs(diffs []objectDiff) {
	same := 0
	for _, d := range diffs {
		switch d.Change {
		case "create":
			fmt.Fprintln(a.out, plain("+ "+d.Object))
		case "delete":
			fmt.Fprintln(a.out, plain("- "+d.Object))
		case "update":
			fmt.Fprintln(a.out, plain("~ "+d.Object))
			for _, f := range d.Fields {
				fmt.Fprintln(a.out, plain(fmt.Sprintf("    %s  %s -> %s", f.Field, given(f.Was), given(f.Is))))
			}
			if len(d.Fields) == 0 {
				fmt.Fprintln(a.out, "    only what the server keeps beside the spec")
			}
		default:
			same++
		}
	}
	if same > 0 {
		fmt.Fprintf(a.err, "%s as declared already\n", counted(same, "object"))
	}
}

// given is a field's value as people write it in a manifest.
func given(raw string) string {
	if raw == "" {
		return "<default>"
	}
	raw = strings.Trim(raw, `"`)
	for _, prefix := range [...]string{"PROBE_KIND_", "GRPC_FORM_", "LOCALITY_MODE_", "SILENCE_POLICY_", "DEPENDENCY_AUTHORITY_", "EVIDENCE_CLASS_", "PROTOCOL_"} {
		if strings.HasPrefix(raw, prefix) {
			return lower(raw, prefix)
		}
	}
	return raw
}
