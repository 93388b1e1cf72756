package manifest

import (
	"strings"

	"go.yaml.in/yaml/v3"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
)

// Kind is what an object is, as manifests write it.
type Kind string

// The kinds. Route and Policy are refused until they can be applied.
const (
	ServiceKind  Kind = "Service"
	InstanceKind Kind = "Instance"
	ContractKind Kind = "Contract"
	ProfileKind  Kind = "CapabilityProfile"
	routeKind    Kind = "Route"
	policyKind   Kind = "Policy"
)

// Object is one document of a file: exactly one of the rows is set, by Kind.
type Object struct {
	File     string
	Line     int // where the document's first key stands
	Kind     Kind
	Service  *registry.Service
	Instance *registry.Instance
	Contract *registry.Contract
	Profile  *registry.Profile

	doc *document
}

// Name is the object as people write it: shop/checkout; an instance's has three
// parts, the last empty where it has no name.
func (o *Object) Name() string {
	switch o.Kind {
	case ServiceKind:
		return o.Service.Name.String()
	case InstanceKind:
		return o.Instance.Service.String() + "/" + o.Instance.Label
	case ContractKind:
		return o.Contract.Name.String()
	}
	return o.Profile.Namespace + "/" + o.Profile.Name
}

// Put is the change that applies the object.
func (o *Object) Put() *registryv1.Change {
	switch o.Kind {
	case ServiceKind:
		return &registryv1.Change{Change: &registryv1.Change_PutService{PutService: wire.ServiceToProto(o.Service)}}
	case InstanceKind:
		return &registryv1.Change{Change: &registryv1.Change_PutInstance{PutInstance: wire.InstanceToProto(o.Instance)}}
	case ContractKind:
		return &registryv1.Change{Change: &registryv1.Change_PutContract{PutContract: wire.ContractToProto(o.Contract)}}
	}
	return &registryv1.Change{Change: &registryv1.Change_PutProfile{PutProfile: wire.ProfileToProto(o.Profile)}}
}

// Delete is the change that removes the object. An instance without a name
// cannot be told from its siblings: ok is then false.
func (o *Object) Delete() (change *registryv1.Change, ok bool) {
	switch o.Kind {
	case ServiceKind:
		n := &registryv1.ObjectName{Namespace: o.Service.Name.Namespace, Name: o.Service.Name.Service}
		return &registryv1.Change{Change: &registryv1.Change_DeleteService{DeleteService: n}}, true
	case InstanceKind:
		n := &registryv1.InstanceName{
			Namespace: o.Instance.Service.Namespace,
			Service:   o.Instance.Service.Service,
			Instance:  o.Instance.Label,
		}
		return &registryv1.Change{Change: &registryv1.Change_DeleteInstance{DeleteInstance: n}}, n.Instance != ""
	case ContractKind:
		n := &registryv1.ObjectName{Namespace: o.Contract.Name.Namespace, Name: o.Contract.Name.Service}
		return &registryv1.Change{Change: &registryv1.Change_DeleteContract{DeleteContract: n}}, true
	}
	n := &registryv1.ObjectName{Namespace: o.Profile.Namespace, Name: o.Profile.Name}
	return &registryv1.Change{Change: &registryv1.Change_DeleteProfile{DeleteProfile: n}}, true
}

// Problem gives a violation that was found elsewhere (by the server, when the
// object was applied) its place in the file. field is a path in the object's
// message, as the API or registry name it.
func (o *Object) Problem(field, rule, detail string) Problem {
	return o.doc.src.show(o.doc.violation(registry.Violation{Field: field, Rule: rule, Detail: detail}))
}

// violation places a violation at the field's value, or at the nearest
// enclosing thing that the file does have.
func (d *document) violation(v registry.Violation) Problem {
	path := wire.Path(v.Field)
	n := d.nearest(path)
	if v.Rule == "" {
		return d.src.problem(n.Line, n.Column, BadValue, "%s: %s", d.written(path), v.Detail)
	}
	return d.src.problem(n.Line, n.Column, BadValue, "%s: %s (%s)", d.written(path), v.Detail, v.Rule)
}

func (d *document) nearest(path string) *yaml.Node {
	for path != "" {
		if n, ok := d.at[path]; ok {
			return n
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return d.at[""]
}

// written is where the manifest has the field: spec, but for what metadata says.
func (d *document) written(path string) string {
	switch {
	case path == "":
		return "spec"
	case path == "namespace":
		return "metadata.namespace"
	case path == d.nameField():
		return "metadata.name"
	case path == "annotations" || strings.HasPrefix(path, "annotations."):
		return "metadata." + path
	}
	return "spec." + path
}
