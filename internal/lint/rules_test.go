package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// These tests hold the rules against small pieces of code, so that a rule that
// finds nothing in the repository is known to be able to find something.

func snippet(t *testing.T, code string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "snippet.go", "package snippet\n"+code, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, pkg string
		want         bool
	}{
		{"server", "server", true}, {"server", "server/xds", false}, {"server/*", "server/xds", true},
		{"server/*", "server", false}, {"server/*", "server/xds/feed", false}, {"server/...", "server/xds/feed", true},
		{"server/...", "server", true}, {"server/...", "serverless", false}, {"net/...", "net/netip", true},
	} {
		if got := match(c.pattern, c.pkg); got != c.want {
			t.Errorf("match(%q, %q) = %v", c.pattern, c.pkg, got)
		}
	}
	if r := rowOf("registry/source/file"); r == nil || r.pkg != "registry/source/*" {
		t.Errorf("registry/source/file is judged by %+v", r)
	}
	if r := rowOf("nowhere"); r != nil {
		t.Errorf("an unknown package is judged by %+v", r)
	}
}

func TestWritesAreFound(t *testing.T) {
	f := snippet(t, `
var a, b, c, d, e, g, h int
func f(h int) {
	a = 1
	b.x[2] = 3
	c++
	delete(d, 1)
	_ = &e
	g := 1
	g = 2
	h = 3
	_ = i
}`)
	var names []string
	for _, id := range written(f) {
		if !shadowed(f, id) && id.Name != "_" {
			names = append(names, id.Name)
		}
	}
	if got := strings.Join(names, ""); got != "abcde" {
		t.Errorf("found writes to %q", got)
	}
}

func TestStatefulTypesAreFound(t *testing.T) {
	f := snippet(t, "var a sync.Mutex\nvar b = atomic.Pointer[int]{}\nvar c = &sync.Pool{}\nvar d = errors.New(\"x\")")
	got := make(map[string]string)
	for id, typ := range packageVars(f) {
		got[id.Name] = typ
	}
	if got["a"] != "sync.Mutex" || got["b"] != "atomic.Pointer" || got["c"] != "sync.Pool" || got["d"] != "" {
		t.Errorf("found %v", got)
	}
}

func TestMissingCommentsAreFound(t *testing.T) {
	f := snippet(t, `
type A struct{}
// B is documented.
type B struct{}
func (b *B) M() {}
func (u *u) M() {}
// The constants.
const ( C = 1; D = 2 )
const E = 1
const F = 2 // with a comment
func g() {}
`)
	var names []string
	for _, d := range f.Decls {
		for _, id := range undocumented(d) {
			names = append(names, id.Name)
		}
	}
	if got := strings.Join(names, " "); got != "A M E" {
		t.Errorf("found %q", got)
	}
}

func TestEmptyWordsAreFound(t *testing.T) {
	for name, want := range map[string]string{
		"ConnManager": "Manager", "HTTPInfo": "Info", "data": "data", "string_utils": "utils",
		"Database": "", "Informer": "", "Evaluator": "", "Basement": "", "Impl": "Impl",
	} {
		if got := emptyWord(name); got != want {
			t.Errorf("emptyWord(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestMarksOfAMachineAreFound(t *testing.T) {
	for _, line := range []string{"cd /wo" + "rk/tree", "see /ro" + "ot/.cache", "GOP" + "ROXY=https://mirror.invalid", "index-" + "url = http://x.invalid"} {
		found := false
		for _, p := range private {
			found = found || p.pattern.MatchString(line)
		}
		if !found {
			t.Errorf("%q is not found", line)
		}
	}
}
