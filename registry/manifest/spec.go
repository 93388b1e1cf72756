package manifest

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// message reads a mapping into a message. path is the message's own, "" at the
// root, which is spec.
func (d *document) message(n *yaml.Node, m protoreflect.Message, path string) {
	where := d.written(path)
	if n.Kind != yaml.MappingNode {
		d.wrongType(n, where, "a mapping")
		return
	}
	seen := make(map[protoreflect.FieldNumber]bool)
	for i := 0; i+1 < len(n.Content) && !d.full(); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !d.isKey(key, where) {
			continue
		}
		fd := fieldOf(m, key.Value)
		switch {
		case fd == nil:
			d.refuse(key, UnknownKey, "unknown key %q in %s%s", key.Value, where, hint(key.Value, d.keysOf(m, path)))
		case path == "" && d.reserved(fd) != "":
			d.refuse(key, RefusedKey, "%q is not allowed in spec: %s", key.Value, d.reserved(fd))
		case seen[fd.Number()]:
			d.refuse(key, RepeatedKey, "%q is there twice in %s; remove one", key.Value, where)
		case d.at[string(fd.Name())] != nil && path == "":
			d.refuse(key, RepeatedKey, "%q is already given by an annotation; remove one", key.Value)
		case inOneof(m, fd) != nil:
			d.refuse(key, RepeatedKey, "%q cannot stand beside %q; keep one", key.Value, inOneof(m, fd).JSONName())
		default:
			d.value(value, m, fd, join(path, string(fd.Name())))
		}
		if fd != nil {
			seen[fd.Number()] = true
		}
	}
}

// fieldOf finds a field by its JSON name or its name in the .proto file.
func fieldOf(m protoreflect.Message, key string) protoreflect.FieldDescriptor {
	fields := m.Descriptor().Fields()
	if fd := fields.ByJSONName(key); fd != nil {
		return fd
	}
	return fields.ByTextName(key)
}

// inOneof returns the field that is set already in fd's oneof, if any.
func inOneof(m protoreflect.Message, fd protoreflect.FieldDescriptor) protoreflect.FieldDescriptor {
	if o := fd.ContainingOneof(); o != nil && !o.IsSynthetic() {
		return m.WhichOneof(o)
	}
	return nil
}

// keysOf lists what may stand in a mapping.
func (d *document) keysOf(m protoreflect.Message, path string) []string {
	var out []string
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); path != "" || d.reserved(fd) == "" {
			out = append(out, fd.JSONName())
		}
	}
	return out
}

// reserved says why a field of the root is no key of spec, or "".
func (d *document) reserved(fd protoreflect.FieldDescriptor) string {
	switch name := string(fd.Name()); name {
	case "namespace", d.nameField():
		return "write it as " + d.written(name)
	case "annotations":
		return "write them as metadata.annotations"
	case "uid", "proof", "source", "revision":
		return "the registry sets it"
	}
	return ""
}

// value reads one field of a message.
func (d *document) value(n *yaml.Node, m protoreflect.Message, fd protoreflect.FieldDescriptor, path string) {
	d.at[path] = n
	switch {
	case isNull(n):
		d.refuse(n, WrongType, "%s has no value; give one, or leave the key out", d.written(path))
	case fd.IsMap():
		d.textMap(n, m.Mutable(fd).Map(), path)
	case fd.IsList():
		d.list(n, m, fd, path)
	case isDuration(fd):
		if v, ok := d.duration(n, path); ok {
			m.Set(fd, v)
		}
	case fd.Message() != nil:
		d.message(n, m.Mutable(fd).Message(), path)
	default:
		if v, ok := d.scalar(n, fd, path); ok {
			m.Set(fd, v)
		}
	}
}

func (d *document) list(n *yaml.Node, m protoreflect.Message, fd protoreflect.FieldDescriptor, path string) {
	if n.Kind != yaml.SequenceNode {
		d.wrongType(n, d.written(path), "a list")
		return
	}
	list := m.Mutable(fd).List()
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		d.at[at] = item
		switch {
		case isNull(item):
			d.refuse(item, WrongType, "%s has no value; give one, or remove the entry", d.written(at))
		case fd.Message() != nil:
			d.message(item, list.AppendMutable().Message(), at)
		default:
			if v, ok := d.scalar(item, fd, at); ok {
				list.Append(v)
			}
		}
	}
}

func (d *document) textMap(n *yaml.Node, entries protoreflect.Map, path string) {
	for key, value := range d.keys(n, d.written(path)) {
		at := path + "." + key
		d.at[at] = value
		if s, ok := d.text(value, d.written(at)); ok {
			entries.Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(s))
		}
	}
}

func (d *document) isKey(n *yaml.Node, where string) bool {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		return true
	}
	d.refuse(n, WrongType, "a key of %s is %s; keys are text, quote it", where, described(n))
	return false
}

func (d *document) wrongType(n *yaml.Node, where, want string) {
	d.refuse(n, WrongType, "%s is %s; it must be %s", where, described(n), want)
}

func join(path, name string) string {
	return strings.TrimPrefix(path+"."+name, ".")
}
