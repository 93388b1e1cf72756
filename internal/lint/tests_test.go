package lint

import (
	"go/ast"
	"slices"
	"testing"
)

// TestTestsDoNotSkip: a test that can be skipped is one that nobody runs.
func TestTestsDoNotSkip(t *testing.T) {
	tr := repository(t)
	for _, f := range tr.files {
		if !f.test {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if s, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
				if x, ok := s.X.(*ast.Ident); ok && slices.Contains([]string{"t", "b", "f"}, x.Name) {
					t.Errorf("%s: a test that skips itself; bring what it needs, or move it to where that is", tr.at(call.Pos()))
				}
			}
			return true
		})
	}
}

// sleepers are test packages that talk to real processes, sockets or disks and
// have to wait for them.
var sleepers = []string{"interop/...", "cmd/...", "views/store", "dns", "server", "server/xds", "identity/svid", "client"}

// TestSleepsAreInBubbles: a test that sleeps for real is slow on a good day and
// wrong on a bad one; in a synctest bubble an hour costs nothing.
func TestSleepsAreInBubbles(t *testing.T) {
	tr := repository(t)
	for _, f := range tr.files {
		if !f.test || matchAny(sleepers, f.pkg) || slices.Contains(f.imports(), "testing/synctest") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Sleep" {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s: a real sleep in a test; run it in a testing/synctest bubble", tr.at(n.Pos()))
				}
			}
			return true
		})
	}
}
