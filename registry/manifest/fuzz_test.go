package manifest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry/manifest"
)

// FuzzParse feeds any bytes. A file either has objects or problems; problems
// are bounded, have places, and do not write to a terminal; objects written as
// a manifest again are the same objects.
func FuzzParse(f *testing.F) {
	f.Add([]byte(service))
	for _, input := range scenarioInputs(f) {
		f.Add([]byte(input))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := manifest.Parse("f.yaml", data)
		if err != nil {
			checkProblems(t, objects, err)
			return
		}
		var again strings.Builder
		for _, o := range objects {
			again.WriteString("---\n" + rewritten(t, &o) + "\n")
		}
		if again.Len() > manifest.MaxFileSize {
			return
		}
		back, err := manifest.Parse("f.yaml", []byte(again.String()))
		if err != nil || len(back) != len(objects) {
			t.Fatalf("%d objects became %d, %v:\n%s", len(objects), len(back), err, again.String())
		}
		for i := range objects {
			if !proto.Equal(objects[i].Put(), back[i].Put()) {
				t.Errorf("%v\nbecame\n%v", objects[i].Put(), back[i].Put())
			}
		}
	})
}

// scenarioInputs are the files of the scenarios.
func scenarioInputs(f *testing.F) []string {
	paths, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(paths) == 0 {
		f.Fatalf("no scenarios: %v", err)
	}
	var out []string
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range strings.Split(string(text), "\nparse\n")[1:] {
			input, _, _ := strings.Cut(part, "\n----\n")
			out = append(out, input)
		}
	}
	return out
}

func checkProblems(t *testing.T, objects []manifest.Object, err error) {
	var problems manifest.Problems
	if !errors.As(err, &problems) || len(problems) == 0 || len(problems) > manifest.MaxProblems+1 || objects != nil {
		t.Fatalf("got %d objects, %d problems: %v", len(objects), len(problems), err)
	}
	for _, p := range problems {
		if p.Line < 1 || p.Column < 1 || p.Code < manifest.TooLarge || p.Message == "" {
			t.Errorf("got %+v", p)
		}
	}
	for _, r := range err.Error() {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			t.Errorf("%q holds %U", err.Error(), r)
		}
	}
}

// rewritten writes an object as a manifest, from the change that applies it.
func rewritten(t *testing.T, o *manifest.Object) string {
	change := o.Put().ProtoReflect()
	m := proto.Clone(change.Get(change.WhichOneof(change.Descriptor().Oneofs().ByName("change"))).Message().Interface()).ProtoReflect()
	metadata := map[string]any{}
	take := func(field protoreflect.Name, key string) {
		if fd := m.Descriptor().Fields().ByName(field); fd != nil {
			if m.Has(fd) && key != "" {
				metadata[key] = m.Get(fd).String()
			}
			m.Clear(fd)
		}
	}
	take("namespace", "namespace")
	if o.Kind == manifest.InstanceKind {
		take("label", "name")
	} else {
		take("name", "name")
	}
	if s, ok := m.Interface().(*registryv1.Service); ok && len(s.Annotations) > 0 {
		metadata["annotations"] = s.Annotations
	}
	take("annotations", "")
	take("proof", "")
	spec, err := protojson.Marshal(m.Interface())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": manifest.APIVersion, "kind": o.Kind, "metadata": metadata, "spec": json.RawMessage(spec),
	})
	if err != nil {
		t.Fatal(err)
	}
	return escaped(string(text))
}

// escaped writes what a file may not hold as it is in the escapes of quoted
// YAML.
func escaped(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r >= 0x7f {
			fmt.Fprintf(&b, `\U%08X`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// TestEveryKindIsRead walks the messages of manifests and finds no field of a
// kind that cannot be read from YAML. The registry's own revision aside.
func TestEveryKindIsRead(t *testing.T) {
	read := map[protoreflect.Kind]bool{
		protoreflect.BoolKind: true, protoreflect.EnumKind: true, protoreflect.Uint32Kind: true,
		protoreflect.DoubleKind: true, protoreflect.StringKind: true, protoreflect.MessageKind: true,
	}
	var walk func(protoreflect.MessageDescriptor)
	walk = func(desc protoreflect.MessageDescriptor) {
		for i := range desc.Fields().Len() {
			fd := desc.Fields().Get(i)
			switch {
			case fd.Name() == "revision" || fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Duration":
			case !read[fd.Kind()] || fd.IsMap() && fd.MapValue().Kind() != protoreflect.StringKind:
				t.Errorf("%s is %s", fd.FullName(), fd.Kind())
			case fd.Message() != nil:
				walk(fd.Message())
			}
		}
	}
	for _, m := range []proto.Message{&registryv1.Service{}, &registryv1.Instance{}, &registryv1.Contract{}, &registryv1.Profile{}} {
		walk(m.ProtoReflect().Descriptor())
	}
}
