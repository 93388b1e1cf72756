package lint

import (
	"go/ast"
	"slices"
	"testing"
)

// hop is one step of the withdrawal's path (docs/ARCHITECTURE.md): within a
// package, the function that takes over has to reach the next name, through at
// most so many functions of its own.
type hop struct {
	pkg, from, to string
	through       int
}

// withdrawalPath is the path from the evidence to the wire: nine names, two
// hand-offs between goroutines. A name that is renamed, or a way that grows
// longer, is a change of the design: change the document with it.
var withdrawalPath = []hop{
	{"server/report", "ReportSelf", "CanReport", 3},
	{"server/report", "ReportSelf", "Submit", 2},
	{"server", "newReports", "Submit", 0}, // wired: report → shard
	{"server/shard", "run", "Observe", 4}, // hand-off: the inbox
	{"server/shard", "run", "Judge", 5},
	{"server/shard", "run", "Apply", 5},
	{"server/shard", "run", "Publish", 6},
	{"server", "buildCore", "Publish", 0}, // wired: shard → Publisher, shard → feeds
	{"server/xds", "work", "SendMsg", 4},  // hand-off: the dirty sets
}

// TestWithdrawalPath holds the path of a withdrawal to its nine names.
func TestWithdrawalPath(t *testing.T) {
	tree, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range withdrawalPath {
		steps, ok := reach(tree, h)
		switch {
		case !ok:
			t.Errorf("%s: %s no longer reaches %s: the withdrawal's path is broken, or has another name now", h.pkg, h.from, h.to)
		case steps > h.through:
			t.Errorf("%s: %s reaches %s through %d functions, at most %d are meant", h.pkg, h.from, h.to, steps, h.through)
		}
	}
	for _, name := range []struct{ pkg, fn string }{
		{"identity/authz", "CanReport"}, {"server/shard", "Submit"}, {"health", "Observe"}, {"health", "Judge"},
		{"views", "Apply"}, {"views", "Publish"}, {"server/xds", "Publish"},
	} {
		if len(bodies(tree, name.pkg)[name.fn]) == 0 {
			t.Errorf("%s has no %s: one of the nine names is gone", name.pkg, name.fn)
		}
	}
}

// bodies lists what each function of a package mentions, by function name;
// methods of several types under one name count together.
func bodies(t *tree, pkg string) map[string][]string {
	out := map[string][]string{}
	for _, f := range t.files {
		if f.pkg != pkg || !f.product() {
			continue
		}
		for _, d := range f.syntax.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			out[fn.Name.Name] = append(out[fn.Name.Name], mentioned(fn.Body)...)
		}
	}
	return out
}

// mentioned lists the names that a body calls or hands on as functions.
func mentioned(body *ast.BlockStmt) (names []string) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			names = append(names, n.Sel.Name)
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok {
				names = append(names, id.Name)
			}
		}
		return true
	})
	return names
}

// reach finds the shortest way from a function to a name, and says through how
// many further functions of the package it goes.
func reach(t *tree, h hop) (through int, ok bool) {
	calls := bodies(t, h.pkg)
	seen := map[string]bool{h.from: true}
	for level := []string{h.from}; len(level) > 0; through++ {
		var next []string
		for _, fn := range level {
			if slices.Contains(calls[fn], h.to) {
				return through, true
			}
			for _, n := range calls[fn] {
				if _, own := calls[n]; own && !seen[n] {
					seen[n] = true
					next = append(next, n)
				}
			}
		}
		level = next
	}
	return 0, false
}
