package wire_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/identity"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
)

// kind is one pair of conversions under test.
type kind struct {
	name  string
	proto proto.Message
	core  any // a pointer to the core type's zero value
	from  func(proto.Message) (any, error)
	to    func(any) proto.Message
}

func pair[P proto.Message, R any](name string, from func(P) (*R, error), to func(*R) P) kind {
	var p P
	return kind{
		name:  name,
		proto: p,
		core:  new(R),
		from:  func(m proto.Message) (any, error) { return from(m.(P)) },
		to:    func(r any) proto.Message { return to(r.(*R)) },
	}
}

func kinds() []kind {
	return []kind{
		pair("Service", wire.ServiceFromProto, wire.ServiceToProto),
		pair("Instance", wire.InstanceFromProto, wire.InstanceToProto),
		pair("Contract", wire.ContractFromProto, wire.ContractToProto),
		pair("Profile", wire.ProfileFromProto, wire.ProfileToProto),
	}
}

// TestProtoRoundTrip draws messages with any subset of fields set, and expects
// to get the very message back from the core's value.
func TestProtoRoundTrip(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				want := k.proto.ProtoReflect().Type().New()
				drawMessage(t, want, false)
				if k.name == "Instance" && want.WhichOneof(want.Descriptor().Oneofs().ByName("endpoint")) == nil {
					want.Set(want.Descriptor().Fields().ByName("address"), protoreflect.ValueOfString("192.0.2.7"))
				}
				core, err := k.from(want.Interface())
				if err != nil {
					t.Fatalf("%v refused: %v", want.Interface(), err)
				}
				if got := k.to(core); !proto.Equal(got, want.Interface()) {
					t.Fatalf("got  %v\nwant %v", got, want.Interface())
				}
			})
		})
	}
}

// TestEveryFieldTravels sets every field of each type, and expects the other
// side to have no field unset: a field added on one side only is found here.
func TestEveryFieldTravels(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := k.proto.ProtoReflect().Type().New()
				drawMessage(t, m, true)
				core, err := k.from(m.Interface())
				if err != nil {
					t.Fatal(err)
				}
				unset(t, k.name, reflect.ValueOf(core).Elem())
			})
		})
	}
}

// unset fails for each exported field that is zero. NoRamp and Ramp exclude
// each other, and so do the endpoints.
func unset(t *rapid.T, path string, v reflect.Value) {
	switch v.Interface().(type) {
	case identity.ID, netip.Addr, registry.Endpoint:
		if v.IsZero() {
			t.Fatalf("%s is not converted", path)
		}
		return
	}
	for i := range v.NumField() {
		name, f := path+"."+v.Type().Field(i).Name, v.Field(i)
		switch {
		case v.Type().Field(i).Name == "NoRamp":
		case f.IsZero():
			t.Fatalf("%s is not converted", name)
		case f.Kind() == reflect.Struct:
			unset(t, name, f)
		case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct:
			for n := range f.Len() {
				unset(t, fmt.Sprintf("%s[%d]", name, n), f.Index(n))
			}
		}
	}
}

// drawMessage sets fields to values that are good in form: each one when all
// is set, otherwise some. It keeps to what is canonical: enumerations are not
// left unspecified where their message is there, and a message is not empty.
func drawMessage(t *rapid.T, m protoreflect.Message, all bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		name := string(fd.FullName())
		canonical := fd.Kind() == protoreflect.EnumKind && !fd.IsList() || fd.FullName() == "sightline.registry.v1.Exposure.dns_anonymous"
		if !all && !canonical && !rapid.Bool().Draw(t, "has "+name) {
			continue
		}
		switch {
		case fd.IsMap():
			entries := m.Mutable(fd).Map()
			for k, v := range rapid.MapOfN(rapid.String(), rapid.String(), 1, 3).Draw(t, name) {
				entries.Set(protoreflect.ValueOfString(k).MapKey(), protoreflect.ValueOfString(v))
			}
		case fd.IsList():
			drawList(t, m, fd, all)
		case fd.Kind() == protoreflect.MessageKind:
			sub := m.NewField(fd)
			drawNested(t, fd, sub.Message(), all)
			if sub.Message().IsValid() && (isDuration(fd) || proto.Size(sub.Message().Interface()) > 0) {
				m.Set(fd, sub)
			}
		default:
			m.Set(fd, drawScalar(t, fd, all))
		}
	}
}

func isDuration(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Duration"
}

func drawNested(t *rapid.T, fd protoreflect.FieldDescriptor, m protoreflect.Message, all bool) {
	if !isDuration(fd) {
		drawMessage(t, m, all)
		// A probe whose only word is the default kind is no probe.
		if p, ok := m.Interface().(*registryv1.Probe); ok && proto.Equal(p, &registryv1.Probe{Kind: registryv1.ProbeKind_PROBE_KIND_TCP}) {
			p.Kind = registryv1.ProbeKind_PROBE_KIND_GRPC
		}
		return
	}
	least := int64(1)
	if fd.Name() == "ramp" && !all {
		least = 0
	}
	d := durationpb.New(time.Duration(rapid.Int64Range(least, int64(time.Hour)*24*365).Draw(t, string(fd.FullName()))))
	proto.Merge(m.Interface(), d)
}

func drawList(t *rapid.T, m protoreflect.Message, fd protoreflect.FieldDescriptor, all bool) {
	list := m.Mutable(fd).List()
	if fd.Kind() == protoreflect.EnumKind { // a set, in order
		for n := range 3 {
			if all || rapid.Bool().Draw(t, string(fd.FullName())) {
				list.Append(protoreflect.ValueOfEnum(protoreflect.EnumNumber(n + 1)))
			}
		}
		return
	}
	for range rapid.IntRange(1, 3).Draw(t, "length of "+string(fd.FullName())) {
		if fd.Kind() == protoreflect.MessageKind {
			drawMessage(t, list.AppendMutable().Message(), all)
			continue
		}
		list.Append(drawScalar(t, fd, all))
	}
}

func drawScalar(t *rapid.T, fd protoreflect.FieldDescriptor, all bool) protoreflect.Value {
	name := string(fd.FullName())
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		least := 1
		if all {
			least = 2 // the first value is the core's zero
		}
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.IntRange(least, fd.Enum().Values().Len()-1).Draw(t, name)))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32Range(1, 65535).Draw(t, name))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(rapid.Uint64Min(1).Draw(t, name))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(rapid.Float64Range(1e-9, 1).Draw(t, name))
	}
	return protoreflect.ValueOfString(drawText(t, fd))
}

func drawText(t *rapid.T, fd protoreflect.FieldDescriptor) string {
	n := rapid.IntRange(1, 200).Draw(t, string(fd.FullName()))
	switch fd.Name() {
	case "uid":
		return fmt.Sprintf("i%d", n)
	case "identity", "identities":
		return fmt.Sprintf("spiffe://prod.test/ns/shop/sa/w%d", n)
	case "address":
		return rapid.SampledFrom([]string{fmt.Sprintf("192.0.2.%d", n), fmt.Sprintf("2001:db8::%x", n)}).Draw(t, "address")
	case "consumes":
		return fmt.Sprintf("shop/s%d", n)
	}
	return fmt.Sprintf("%s-%d", fd.Name(), n)
}
