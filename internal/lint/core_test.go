package lint

import (
	"go/ast"
	"path"
	"slices"
	"testing"
)

// core are the pure packages: input in, effects out as values, now as an
// argument. That is what lets a simulated day run in a second and a decision be
// replayed.
var core = []string{"registry", "registry/reconcile", "registry/throttle", "registry/reach",
	"health", "views", "identity", "identity/authz"}

// impure are imports that read a clock, a network, a random source, or the
// process around them, and those that hide goroutines.
var impure = []string{"context", "crypto/rand", "io", "log/...", "math/rand/...", "net/...", "os/...",
	"runtime/...", "sync/...", "syscall", "testing/..."}

// pureExceptions are imports of the core that the list above would refuse.
var pureExceptions = map[string]string{
	"net/netip": "addresses as values; it opens nothing",
}

// syncFiles are the only files of the core that may be used from several
// goroutines.
var syncFiles = map[string][]string{
	"sync":        {"views/publisher.go", "views/snapshot.go"},
	"sync/atomic": {"views/publisher.go", "views/snapshot.go"},
}

// clockCalls read or wait for the clock; durations and arithmetic are fine.
var clockCalls = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

func TestPureCore(t *testing.T) {
	tr := repository(t)
	for _, f := range tr.files {
		if !f.product() || !slices.Contains(core, f.pkg) {
			continue
		}
		for _, i := range f.imports() {
			if _, fine := pureExceptions[i]; fine || !matchAny(impure, i) || slices.Contains(syncFiles[i], f.path) {
				continue
			}
			t.Errorf("%s imports %s, and %s is pure: take what you need as an argument or a function", f.path, i, f.pkg)
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a goroutine in the pure core; return what is to be done, a driver does it", tr.at(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clockCalls, n.Sel.Name) {
					t.Errorf("%s: time.%s in the pure core; take now as an argument", tr.at(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
}

// starters are the packages that may start goroutines, and what for. Each
// goroutine has one starter, which stops it.
var starters = []struct{ pkg, why string }{
	{"views/store", "the writer, the writer behind, and a disk that may hang"},
	{"identity/svid", "polls files, follows the Workload API"},
	{"health/probe", "the loop, the two streams, and the probes in flight: all end with Run"},
	{"registry/source/*", "a source's passes"},
	{"dns", "socket loops"},
	{"server", "the composition root starts and stops everything"},
	{"server/*", "shards, streams, the writer: each ends with its Run or its stream"},
	{"client/...", "the mirror's stream"},
	{"cmd/...", "the edge: processes and callers of demo, streams of the command line"},
	{"interop/...", "real peers and load"},
}

// leaksUnchecked are packages whose tests cannot end with that look, and why.
var leaksUnchecked = map[string]string{
	"views/store": "a call into a frozen store never returns, by design (docs/adr: a bad disk must not end the process)",
}

func TestGoroutineSites(t *testing.T) {
	tr := repository(t)
	starts := make(map[string]string) // package → where
	for _, f := range tr.files {
		if !f.product() {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				starts[f.pkg] = tr.at(g.Pos())
			}
			return true
		})
	}
	for pkg, where := range starts {
		if !slices.ContainsFunc(starters, func(s struct{ pkg, why string }) bool { return match(s.pkg, pkg) }) {
			t.Errorf("%s: package %s may not start goroutines; add it to starters in internal/lint/core_test.go with who stops them", where, pkg)
		}
		if leaksUnchecked[pkg] == "" && !match("cmd/...", pkg) && !match("interop/...", pkg) && !tr.checksLeaks(pkg) {
			t.Errorf("%s: package %s starts goroutines; its tests need a TestMain that calls goleak.VerifyTestMain", where, pkg)
		}
	}
}

// checksLeaks reports whether a package's tests end with a look for goroutines
// that are left.
func (t *tree) checksLeaks(pkg string) bool {
	return slices.ContainsFunc(t.files, func(f *file) bool {
		return f.test && f.pkg == pkg && slices.Contains(f.imports(), "go.uber.org/goleak") && slices.ContainsFunc(f.syntax.Decls, func(d ast.Decl) bool {
			fn, ok := d.(*ast.FuncDecl)
			return ok && fn.Name.Name == "TestMain"
		})
	})
}

func TestNoInit(t *testing.T) {
	tr := repository(t)
	for _, f := range tr.files {
		if f.generated {
			continue
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: init runs by import; build what you need in a constructor that is called", tr.at(fn.Pos()))
			}
		}
		for _, i := range f.syntax.Imports {
			if i.Name != nil && i.Name.Name == "_" && f.product() && blankImports[i.Path.Value] == "" {
				t.Errorf("%s: an import for its side effect; call what you need", tr.at(i.Pos()))
			}
		}
	}
}

// blankImports are the imports for their side effect, and why there is no other way.
var blankImports = map[string]string{
	`"google.golang.org/grpc/xds"`: "grpc-go registers the xds:/// scheme this way alone",
	`"embed"`:                      "the compiler asks for it where a variable embeds a file",
}

// mutable are package variables that may be written after the start, or hold
// something that changes, and why there is no owner for them.
var mutable = map[string]string{}

// changing are types of which a package variable is state, whatever the code
// around it does.
var changing = []string{"sync.Mutex", "sync.RWMutex", "sync.Map", "sync.Pool", "sync.Once", "sync.WaitGroup",
	"atomic.Bool", "atomic.Int32", "atomic.Int64", "atomic.Uint32", "atomic.Uint64", "atomic.Pointer", "atomic.Value"}

// TestNoMutablePackageVariables finds variables that something in their package
// writes, and those of types that exist to change. Tables and error values that
// are only read are fine.
func TestNoMutablePackageVariables(t *testing.T) {
	tr := repository(t)
	vars := make(map[string]*ast.Ident) // package.name
	for _, f := range tr.files {
		if !f.product() {
			continue
		}
		for name, where := range packageVars(f.syntax) {
			vars[f.pkg+"."+name.Name] = name
			if slices.Contains(changing, where) && mutable[f.pkg+"."+name.Name] == "" {
				t.Errorf("%s: package variable %s of type %s is state without an owner; make it a field", tr.at(name.Pos()), name.Name, where)
			}
		}
	}
	for _, f := range tr.files {
		if !f.product() {
			continue
		}
		for _, id := range written(f.syntax) {
			key := f.pkg + "." + id.Name
			if v := vars[key]; v != nil && mutable[key] == "" && !shadowed(f.syntax, id) {
				t.Errorf("%s: package variable %s is written here; make it a field of what owns it, or return it", tr.at(id.Pos()), path.Base(key))
			}
		}
	}
}

// packageVars returns the variables of a file with the name of their declared type.
func packageVars(f *ast.File) map[*ast.Ident]string {
	out := make(map[*ast.Ident]string)
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range g.Specs {
			v, ok := s.(*ast.ValueSpec)
			if !ok || g.Tok.String() != "var" {
				continue
			}
			for _, n := range v.Names {
				if n.Name != "_" {
					out[n] = typeName(v)
				}
			}
		}
	}
	return out
}

// typeName is the declared type, or that of a composite literal.
func typeName(v *ast.ValueSpec) string {
	e := v.Type
	if e == nil && len(v.Values) == 1 {
		value := v.Values[0]
		if u, ok := value.(*ast.UnaryExpr); ok {
			value = u.X
		}
		if c, ok := value.(*ast.CompositeLit); ok {
			e = c.Type
		}
	}
	if i, ok := e.(*ast.IndexExpr); ok {
		e = i.X
	}
	if s, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	return ""
}

// written lists the identifiers at the root of what a file assigns to,
// increments, deletes from or takes the address of.
func written(f *ast.File) []*ast.Ident {
	var out []*ast.Ident
	note := func(e ast.Expr) {
		if id := rootOf(e); id != nil {
			out = append(out, id)
		}
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok.String() == ":=" {
					break
				}
				for _, e := range n.Lhs {
					note(e)
				}
			case *ast.IncDecStmt:
				note(n.X)
			case *ast.UnaryExpr:
				if n.Op.String() == "&" {
					note(n.X)
				}
			case *ast.CallExpr:
				if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "delete" || id.Name == "clear") && len(n.Args) > 0 {
					note(n.Args[0])
				}
			}
			return true
		})
	}
	return out
}

func rootOf(e ast.Expr) *ast.Ident {
	switch e := e.(type) {
	case *ast.Ident:
		return e
	case *ast.IndexExpr:
		return rootOf(e.X)
	case *ast.SelectorExpr:
		return rootOf(e.X)
	case *ast.StarExpr:
		return rootOf(e.X)
	case *ast.ParenExpr:
		return rootOf(e.X)
	}
	return nil
}

// shadowed reports whether the function around id declares a variable of its
// own with that name: a parameter, a receiver, a result or a local.
func shadowed(f *ast.File, id *ast.Ident) bool {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || id.Pos() < fn.Pos() || id.Pos() > fn.End() {
			continue
		}
		found := false
		ast.Inspect(fn, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				found = found || slices.ContainsFunc(n.Names, func(x *ast.Ident) bool { return x.Name == id.Name })
			case *ast.AssignStmt:
				if n.Tok.String() == ":=" {
					found = found || slices.ContainsFunc(n.Lhs, func(x ast.Expr) bool { i, ok := x.(*ast.Ident); return ok && i.Name == id.Name })
				}
			case *ast.ValueSpec:
				found = found || slices.ContainsFunc(n.Names, func(x *ast.Ident) bool { return x.Name == id.Name })
			case *ast.RangeStmt:
				for _, x := range []ast.Expr{n.Key, n.Value} {
					if i, ok := x.(*ast.Ident); ok && i.Name == id.Name {
						found = true
					}
				}
			}
			return !found
		})
		return found
	}
	return false
}
