package manifest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sightlinedev/sightline/registry/manifest"
)

// TestScenarios runs testdata/scenarios: "parse" reads its input as the file shop.yaml
// and shows the objects as the changes that apply them, or the error's text;
// "at field=F rule=R" shows where a violation of field F found by a server
// stands in the first object.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			objects, err := manifest.Parse("shop.yaml", []byte(d.Input))
			if err != nil {
				return err.Error()
			}
			if d.Cmd == "at" {
				var field, rule string
				d.ScanArgs(t, "field", &field)
				d.ScanArgs(t, "rule", &rule)
				return objects[0].Problem(field, rule, "the server says no").Error()
			}
			var out strings.Builder
			for _, o := range objects {
				fmt.Fprintf(&out, "line %d: %s %s\n%s\n", o.Line, o.Kind, o.Name(), compact(t, &o))
			}
			return out.String()
		})
	})
}

func compact(t *testing.T, o *manifest.Object) string {
	text, err := protojson.Marshal(o.Put())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

const service = `apiVersion: sightline.dev/v1
kind: Service
metadata: {namespace: shop, name: checkout}
spec: {ports: [{name: grpc, number: 8080}]}
`

// first parses what must fail, and returns the first problem.
func first(t *testing.T, data string) manifest.Problem {
	t.Helper()
	objects, err := manifest.Parse("f.yaml", []byte(data))
	var problems manifest.Problems
	if !errors.As(err, &problems) || len(problems) == 0 || objects != nil {
		t.Fatalf("got %d objects and %v, want problems and no object", len(objects), err)
	}
	return problems[0]
}

// TestUnreadableText covers what a text scenario cannot hold.
func TestUnreadableText(t *testing.T) {
	for _, tc := range []struct {
		name, data   string
		code         manifest.Code
		line, column int
	}{
		{"invalid UTF-8", "# é ok\nkind: \xff\n", manifest.BadText, 2, 7},
		{"UTF-16", "\xff\xfek\x00i\x00", manifest.BadText, 1, 1},
		{"NUL", "kind: a\x00b", manifest.BadText, 1, 8},
		{"escape", "kind: \x1b[31m", manifest.BadText, 1, 7},
		{"lone carriage return", "kind: a\rb: c\n", manifest.BadText, 1, 8},
		{"line separator", "kind: a\u2028b", manifest.BadText, 1, 8},
		{"too large", service + strings.Repeat("# filler\n", manifest.MaxFileSize/9), manifest.TooLarge, 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := first(t, tc.data)
			if p.Code != tc.code || p.Line != tc.line || p.Column != tc.column {
				t.Errorf("got %v, want %s at %d:%d", p, tc.code, tc.line, tc.column)
			}
			if strings.ContainsAny(p.Error(), "\x00\x1b\r") {
				t.Errorf("%q carries control characters", p.Error())
			}
		})
	}
}

// TestLargestFile reads a file of exactly the limit, with CRLF and a byte order
// mark.
func TestLargestFile(t *testing.T) {
	text := strings.ReplaceAll(service, "\n", "\r\n")
	text += "#" + strings.Repeat("x", manifest.MaxFileSize-len(text)-1)
	objects, err := manifest.Parse("f.yaml", []byte("\ufeff"+text))
	if err != nil || len(objects) != 1 || objects[0].Name() != "shop/checkout" {
		t.Errorf("got %v, %v", objects, err)
	}
}

// TestManyProblems expects a bounded answer to a file that is wrong everywhere,
// all on one line.
func TestManyProblems(t *testing.T) {
	var b strings.Builder
	b.WriteString(strings.Split(service, "spec:")[0] + "spec: {")
	for i := range 20_000 {
		fmt.Fprintf(&b, "port%d: 1, ", i)
	}
	b.WriteString("}\n")
	_, err := manifest.Parse("f.yaml", []byte(b.String()))
	var problems manifest.Problems
	if !errors.As(err, &problems) || len(problems) != manifest.MaxProblems+1 {
		t.Fatalf("got %d problems", len(problems))
	}
	if last := problems[manifest.MaxProblems]; last.Code != manifest.MoreProblems {
		t.Errorf("the last is %v", last)
	}
	if n := len(err.Error()); n > 32<<10 {
		t.Errorf("the text has %d bytes", n)
	}
}

// TestRowsAreLeftForTheCaller checks what Parse must not decide.
func TestRowsAreLeftForTheCaller(t *testing.T) {
	objects, err := manifest.Parse("f.yaml", []byte(service))
	if err != nil {
		t.Fatal(err)
	}
	if s := objects[0].Service; s.Source != "" || s.Revision != 0 {
		t.Errorf("got source %q and revision %d", s.Source, s.Revision)
	}
}

// TestDelete names each kind, and cannot name an instance without a name.
func TestDelete(t *testing.T) {
	const header = "apiVersion: sightline.dev/v1\nkind: %s\nmetadata: {namespace: shop%s}\nspec: %s\n"
	for _, tc := range []struct {
		kind, name, spec, want string
	}{
		{"Service", ", name: cart", "{ports: [{name: a, number: 1}]}", `{"deleteService":{"namespace":"shop","name":"cart"}}`},
		{"Contract", ", name: cart", "{}", `{"deleteContract":{"namespace":"shop","name":"cart"}}`},
		{"CapabilityProfile", ", name: cart", "{}", `{"deleteProfile":{"namespace":"shop","name":"cart"}}`},
		{"Instance", ", name: c1", "{service: cart, address: 192.0.2.1}",
			`{"deleteInstance":{"namespace":"shop","service":"cart","instance":"c1"}}`},
		{"Instance", "", "{service: cart, address: 192.0.2.1}", ""},
	} {
		objects, err := manifest.Parse("f.yaml", fmt.Appendf(nil, header, tc.kind, tc.name, tc.spec))
		if err != nil {
			t.Fatal(err)
		}
		change, ok := objects[0].Delete()
		if ok != (tc.want != "") {
			t.Errorf("%s%s: ok is %v", tc.kind, tc.name, ok)
		}
		if !ok {
			continue
		}
		text, err := protojson.Marshal(change)
		if got := strings.ReplaceAll(string(text), " ", ""); err != nil || got != tc.want {
			t.Errorf("%s%s: got %s, %v", tc.kind, tc.name, got, err)
		}
	}
}
