package lint

import (
	"go/ast"
	"testing"
)

// The sizes above which nobody keeps a piece of code in mind.
const (
	maxFile     = 500 // lines
	maxFunction = 80  // lines
)

// large are the files and functions above the sizes, and why they stay whole.
var large = map[string]string{}

func TestSizes(t *testing.T) {
	tr := repository(t)
	for _, f := range tr.files {
		if !f.product() {
			continue
		}
		if n := tr.fset.Position(f.syntax.End()).Line; n > maxFile && large[f.path] == "" {
			t.Errorf("%s has %d lines, above %d; split it by what it is about, or say in large of internal/lint/sizes_test.go why not", f.path, n, maxFile)
		}
		for _, d := range f.syntax.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			from, to := tr.fset.Position(fn.Pos()).Line, tr.fset.Position(fn.End()).Line
			if n := to - from + 1; n > maxFunction && large[f.pkg+"."+fn.Name.Name] == "" {
				t.Errorf("%s: %s has %d lines, above %d; give its parts names, or say in large of internal/lint/sizes_test.go why not", tr.at(fn.Pos()), fn.Name.Name, n, maxFunction)
			}
		}
	}
}
