package lint

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestPackageDocuments(t *testing.T) {
	tr := repository(t)
	documented := make(map[string]bool)
	packages := make(map[string]*file)
	for _, f := range tr.files {
		if f.test || match("proto/...", f.pkg) {
			continue
		}
		packages[f.pkg] = f
		start := "Package " + f.syntax.Name.Name + " "
		if f.syntax.Name.Name == "main" {
			start = "Command " + path.Base(f.pkg) + " "
		}
		if f.syntax.Doc != nil && strings.HasPrefix(f.syntax.Doc.Text(), start) {
			documented[f.pkg] = true
		}
	}
	for pkg, f := range packages {
		if !documented[pkg] {
			t.Errorf("%s has no package document: write what it owns, what it never does, its promises of order and concurrency, "+
				"starting with %q", pkg, map[bool]string{true: "Command ", false: "Package "}[f.syntax.Name.Name == "main"]+"…")
		}
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	tr := repository(t)
	for _, f := range tr.files {
		if !f.product() {
			continue
		}
		for _, d := range f.syntax.Decls {
			for _, id := range undocumented(d) {
				t.Errorf("%s: %s has no comment; say what it means, its unit, its errors", tr.at(id.Pos()), id.Name)
			}
		}
	}
}

// undocumented lists the exported names of a declaration that have no comment:
// a group's comment speaks for all of it.
func undocumented(d ast.Decl) []*ast.Ident {
	var out []*ast.Ident
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && !ofUnexported(d) {
			out = append(out, d.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
					out = append(out, s.Name)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
						out = append(out, n)
					}
				}
			}
		}
	}
	return out
}

// ofUnexported reports whether a method's receiver cannot be named outside.
func ofUnexported(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return false
	}
	e := d.Recv.List[0].Type
	if s, ok := e.(*ast.StarExpr); ok {
		e = s.X
	}
	if i, ok := e.(*ast.IndexExpr); ok {
		e = i.X
	}
	if i, ok := e.(*ast.IndexListExpr); ok {
		e = i.X
	}
	id, ok := e.(*ast.Ident)
	return ok && !id.IsExported()
}

// empty are words that say nothing about what a thing is.
var empty = []string{"manager", "helper", "helpers", "util", "utils", "common", "base", "impl", "data", "info", "processor"}

// foreign are names that a library's interface or a standard gives.
var foreign = map[string]string{
	"views/store.PathBase": "Pebble's vfs.FS",
	"views/store.SyncData": "Pebble's vfs.File",
	"interop/harness.Data": "the data of a DNS record (RFC 1035 §3.2.1)",
}

// wordEnd is between two words of a name: HTTPInfo, readAll, a_b.
var wordEnd = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])|_`)

// emptyWord returns the word of a name that says nothing, or "".
func emptyWord(name string) string {
	for w := range strings.FieldsSeq(wordEnd.ReplaceAllString(name, "$1$3 $2$4")) {
		if slices.Contains(empty, strings.ToLower(w)) {
			return w
		}
	}
	return ""
}

func TestNamesSayWhatThingsAre(t *testing.T) {
	tr := repository(t)
	packages := make(map[string]bool)
	for _, f := range tr.files {
		if f.generated {
			continue
		}
		if !packages[f.pkg] && emptyWord(path.Base(f.pkg)) != "" {
			t.Errorf("package %s: name it after what it owns", f.pkg)
		}
		packages[f.pkg] = true
		if w := emptyWord(strings.TrimSuffix(path.Base(f.path), ".go")); w != "" {
			t.Errorf("%s: %q says nothing; name the file after what is in it", f.path, w)
		}
		for _, d := range f.syntax.Decls {
			for _, id := range declared(d, f.test) {
				if w := emptyWord(id.Name); w != "" && foreign[f.pkg+"."+id.Name] == "" {
					t.Errorf("%s: %q in %s says nothing; name what it is or does", tr.at(id.Pos()), w, id.Name)
				}
			}
		}
	}
}

// declared lists the types, and the exported functions and methods, of a declaration.
// Names of tests are sentences, which may speak of anything.
func declared(d ast.Decl, test bool) []*ast.Ident {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && !test {
			return []*ast.Ident{d.Name}
		}
	case *ast.GenDecl:
		var out []*ast.Ident
		for _, s := range d.Specs {
			if ts, ok := s.(*ast.TypeSpec); ok {
				out = append(out, ts.Name)
			}
		}
		return out
	}
	return nil
}
