package manifest

import (
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
)

// document is one document while it is read, and afterwards the places of its
// fields.
type document struct {
	src      *source
	kind     Kind
	at       map[string]*yaml.Node // by path in the message; "" is spec, or the document
	problems Problems
}

func (d *document) refuse(n *yaml.Node, code Code, format string, args ...any) {
	if d.full() {
		return
	}
	d.problems = append(d.problems, d.src.problem(n.Line, n.Column, code, format, args...))
}

// full reports whether reading on would find more than anybody needs.
func (d *document) full() bool { return len(d.problems) >= maxCollected }

// object reads the document; ok is false where it is empty or has problems.
func (d *document) object(root *yaml.Node, places map[string]int) (o Object, ok bool) {
	if len(root.Content) == 0 || isNull(root.Content[0]) && root.Content[0].Value == "" {
		return Object{}, false
	}
	top := root.Content[0]
	d.at[""] = top
	if d.plain(root); len(d.problems) > 0 {
		return Object{}, false
	}
	keys := d.keys(top, "a manifest", "apiVersion", "kind", "metadata", "spec")
	m, known := d.newMessage(top, keys)
	if !known {
		return Object{}, false
	}
	d.metadata(top, keys["metadata"], m)
	if spec := keys["spec"]; spec != nil {
		d.at[""] = spec
		d.message(spec, m, "")
	}
	if len(d.problems) == 0 {
		o = Object{File: d.src.file, Line: top.Line, Kind: d.kind, doc: d}
		d.fill(&o, m)
	}
	if len(d.problems) > 0 {
		return Object{}, false
	}
	d.once(&o, top, places)
	return o, len(d.problems) == 0
}

// newMessage makes the empty message of the document's kind.
func (d *document) newMessage(top *yaml.Node, keys map[string]*yaml.Node) (m protoreflect.Message, known bool) {
	if top.Kind != yaml.MappingNode {
		return nil, false
	}
	version, hasVersion := d.header(top, keys, "apiVersion")
	if hasVersion && version != APIVersion {
		d.refuse(keys["apiVersion"], UnknownKind, "apiVersion %q is not known; write %s", version, APIVersion)
	}
	kind, ok := d.header(top, keys, "kind")
	if !ok {
		return nil, false
	}
	d.kind = Kind(kind)
	switch d.kind {
	case ServiceKind:
		return new(registryv1.Service).ProtoReflect(), true
	case InstanceKind:
		return new(registryv1.Instance).ProtoReflect(), true
	case ContractKind:
		return new(registryv1.Contract).ProtoReflect(), true
	case ProfileKind:
		return new(registryv1.Profile).ProtoReflect(), true
	case routeKind, policyKind:
		d.refuse(keys["kind"], NotSupported, "kind %s is not supported by this version; remove the document", d.kind)
	default:
		d.refuse(keys["kind"], UnknownKind, "kind %q is not known%s", kind,
			hint(kind, []string{string(ServiceKind), string(InstanceKind), string(ContractKind), string(ProfileKind)}))
	}
	return nil, false
}

// header reads a required text of the document's top.
func (d *document) header(top *yaml.Node, keys map[string]*yaml.Node, key string) (string, bool) {
	n := keys[key]
	if n == nil {
		d.refuse(top, MissingKey, "%s is missing; every document needs apiVersion, kind and metadata", key)
		return "", false
	}
	return d.text(n, key)
}

// aKind is the kind with its article, for messages.
func (d *document) aKind() string {
	if d.kind == InstanceKind {
		return "an " + string(d.kind)
	}
	return "a " + string(d.kind)
}

// nameField is the message's field that metadata.name fills.
func (d *document) nameField() string {
	if d.kind == InstanceKind {
		return "label"
	}
	return "name"
}

func (d *document) metadata(top, n *yaml.Node, m protoreflect.Message) {
	if n == nil {
		d.refuse(top, MissingKey, "metadata is missing; it needs a namespace and a name")
		return
	}
	keys := d.keys(n, "metadata", "namespace", "name", "annotations")
	if n.Kind != yaml.MappingNode {
		return
	}
	d.label(n, keys["namespace"], m, "namespace", true)
	d.label(n, keys["name"], m, d.nameField(), d.kind != InstanceKind)
	if a := keys["annotations"]; a != nil {
		d.annotations(a, m)
	}
}

// label fills a field of the message from metadata.
func (d *document) label(metadata, n *yaml.Node, m protoreflect.Message, field string, required bool) {
	key := strings.TrimPrefix(d.written(field), "metadata.")
	switch {
	case n != nil:
		if s, ok := d.text(n, "metadata."+key); ok {
			d.at[field] = n
			m.Set(fieldOf(m, field), protoreflect.ValueOfString(s))
		}
	case required:
		d.refuse(metadata, MissingKey, "metadata has no %s; %s needs one", key, d.aKind())
	}
}

// keys returns a mapping's values by key, and reports keys that are not among
// the known ones or come twice. where names the mapping in messages.
func (d *document) keys(n *yaml.Node, where string, known ...string) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		d.wrongType(n, where, "a mapping")
		return nil
	}
	out := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(n.Content) && !d.full(); i += 2 {
		key := n.Content[i]
		switch {
		case !d.isKey(key, where):
		case out[key.Value] != nil:
			d.refuse(key, RepeatedKey, "%q is there twice in %s; remove one", key.Value, where)
		case len(known) > 0 && !contains(known, key.Value):
			d.refuse(key, UnknownKey, "unknown key %q in %s%s", key.Value, where, hint(key.Value, known))
		default:
			out[key.Value] = n.Content[i+1]
		}
	}
	return out
}

// plain refuses what lets a document say more than it shows.
func (d *document) plain(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		d.refuse(n, RefusedYAML, "aliases are not allowed; write the value again")
	case n.Anchor != "":
		d.refuse(n, RefusedYAML, "anchors are not allowed; remove &%s", n.Anchor)
	case n.Tag == "!!merge":
		d.refuse(n, RefusedYAML, "merge keys are not allowed; write the keys out")
	case n.Style&yaml.TaggedStyle != 0:
		d.refuse(n, RefusedYAML, "tags are not allowed; remove %s", n.Tag)
	}
	for _, c := range n.Content {
		d.plain(c)
	}
}

// once refuses an object that the file already has.
func (d *document) once(o *Object, top *yaml.Node, places map[string]int) {
	name := o.Name()
	if o.Kind == InstanceKind && o.Instance.Label == "" {
		return
	}
	key := string(o.Kind) + " " + name
	if line, had := places[key]; had {
		d.refuse(top, RepeatedThing, "%s is already declared in line %d; remove one", key, line)
		return
	}
	places[key] = top.Line
}

// fill turns the message into the object's row. Its rules are judged as though
// the source were known: who that is, only the caller knows.
func (d *document) fill(o *Object, m protoreflect.Message) {
	const anySource = "file:manifest"
	var err error
	switch p := m.Interface().(type) {
	case *registryv1.Service:
		if o.Service, err = wire.ServiceFromProto(p); err == nil {
			row := *o.Service
			row.Source = anySource
			err = registry.CheckService(&row).Err()
		}
	case *registryv1.Instance:
		if o.Instance, err = wire.InstanceFromProto(p); err == nil {
			row := *o.Instance
			row.Source = anySource
			if row.Weight == 0 {
				row.Weight = registry.DefaultWeight
			}
			err = registry.CheckInstance(&row).Err()
		}
	case *registryv1.Contract:
		if o.Contract, err = wire.ContractFromProto(p); err == nil {
			row := *o.Contract
			row.Source = anySource
			err = registry.CheckContract(&row).Err()
		}
	case *registryv1.Profile:
		if o.Profile, err = wire.ProfileFromProto(p); err == nil {
			row := *o.Profile
			row.Source = anySource
			err = registry.CheckProfile(&row).Err()
		}
	}
	violations, _ := err.(registry.Violations)
	for _, v := range violations[:min(len(violations), maxCollected)] {
		d.problems = append(d.problems, d.violation(v))
	}
}
