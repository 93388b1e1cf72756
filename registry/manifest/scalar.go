package manifest

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func isDuration(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Duration"
}

// described is what a node is, for messages.
func described(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!null":
		return "empty"
	case "!!bool":
		return "true or false"
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!timestamp":
		return "a date"
	}
	return "text"
}

// text reads a string. Numbers and dates are not turned into text behind the
// writer's back: 010 or 1.20 would change on the way.
func (d *document) text(n *yaml.Node, where string) (string, bool) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!str" && utf8.ValidString(n.Value):
		return n.Value, true
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		d.refuse(n, WrongType, "%s has no value; give one, or leave the key out", where)
	case n.Kind == yaml.ScalarNode && n.Tag != "!!str":
		d.refuse(n, WrongType, "%s is %s; it must be text, quote it", where, described(n))
	default:
		d.wrongType(n, where, "text")
	}
	return "", false
}

// scalar reads one value of the field's kind. The messages of manifests have
// none but these kinds; TestEveryKindIsRead holds that.
func (d *document) scalar(n *yaml.Node, fd protoreflect.FieldDescriptor, path string) (protoreflect.Value, bool) {
	where := d.written(path)
	switch fd.Kind() {
	case protoreflect.BoolKind:
		if n.Kind == yaml.ScalarNode && n.Tag == "!!bool" {
			return protoreflect.ValueOfBool(strings.EqualFold(n.Value, "true")), true
		}
		d.wrongType(n, where, "true or false")
	case protoreflect.EnumKind:
		return d.enum(n, fd.Enum(), where)
	case protoreflect.Uint32Kind:
		if v, err := strconv.ParseUint(n.Value, 10, 32); err == nil && n.Tag == "!!int" {
			return protoreflect.ValueOfUint32(uint32(v)), true
		}
		d.wrongType(n, where, "a whole number from 0 to 4294967295, in decimal and without quotes")
	case protoreflect.DoubleKind:
		if v, err := strconv.ParseFloat(n.Value, 64); err == nil && (n.Tag == "!!int" || n.Tag == "!!float") {
			return protoreflect.ValueOfFloat64(v), true
		}
		d.wrongType(n, where, "a finite number, in decimal and without quotes")
	case protoreflect.StringKind:
		s, ok := d.text(n, where)
		return protoreflect.ValueOfString(s), ok
	}
	return protoreflect.Value{}, false
}

// enum reads a value by its full name or in short: GRPC_FORM_PER_ENDPOINT,
// per-endpoint.
func (d *document) enum(n *yaml.Node, ed protoreflect.EnumDescriptor, where string) (protoreflect.Value, bool) {
	values := ed.Values()
	prefix := strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
	var short []string
	for i := range values.Len() {
		v := values.Get(i)
		name := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(string(v.Name()), prefix), "_", "-"))
		switch {
		case v.Number() == 0: // leaving the key out says so
			continue
		case n.Kind == yaml.ScalarNode && (n.Value == name || n.Value == string(v.Name())):
			return protoreflect.ValueOfEnum(v.Number()), true
		}
		short = append(short, name)
	}
	if n.Kind != yaml.ScalarNode {
		d.wrongType(n, where, "one of "+strings.Join(short, ", "))
	} else {
		d.refuse(n, BadValue, "%s: %q is not one of %s", where, n.Value, strings.Join(short, ", "))
	}
	return protoreflect.Value{}, false
}

// duration reads 25s, 1.5s or 10m. A number without a unit says nothing.
func (d *document) duration(n *yaml.Node, path string) (protoreflect.Value, bool) {
	where := d.written(path)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		d.refuse(n, WrongType, "%s is %s; it must be a duration with its unit, as in 25s", where, described(n))
		return protoreflect.Value{}, false
	}
	v, err := time.ParseDuration(n.Value)
	if err != nil || !strings.ContainsAny(n.Value, "smh") {
		d.refuse(n, BadValue, "%s: %q is not a duration; write a number and its unit, as in 25s or 10m", where, n.Value)
		return protoreflect.Value{}, false
	}
	return protoreflect.ValueOfMessage(durationpb.New(v).ProtoReflect()), true
}
