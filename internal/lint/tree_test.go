package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/sightlinedev/sightline"

// file is one Go file of the repository.
type file struct {
	path      string // from the root, with slashes
	pkg       string // folder from the root
	syntax    *ast.File
	test      bool
	generated bool
}

// imports lists the file's import paths.
func (f *file) imports() []string {
	var out []string
	for _, i := range f.syntax.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err == nil {
			out = append(out, p)
		}
	}
	return out
}

// product reports whether the file is ours and goes into a binary.
func (f *file) product() bool { return !f.test && !f.generated }

// tree is every Go file of the module, parsed once for all rules.
type tree struct {
	root  string
	fset  *token.FileSet
	files []*file
}

func (t *tree) at(pos token.Pos) string {
	p := t.fset.Position(pos)
	rel, err := filepath.Rel(t.root, p.Filename)
	if err != nil {
		rel = p.Filename
	}
	return filepath.ToSlash(rel) + ":" + strconv.Itoa(p.Line)
}

// load parses the repository at most once.
var load = sync.OnceValues(func() (*tree, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	t := &tree{root: root, fset: token.NewFileSet()}
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin" || isModule(name)):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".go":
			return nil
		}
		return t.add(name)
	})
	return t, err
})

// isModule reports whether the folder is a module of its own (tools).
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func (t *tree) add(name string) error {
	syntax, err := parser.ParseFile(t.fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(t.root, name)
	if err != nil {
		return err
	}
	rel = filepath.ToSlash(rel)
	t.files = append(t.files, &file{path: rel, pkg: path.Dir(rel), syntax: syntax,
		test: strings.HasSuffix(rel, "_test.go"), generated: ast.IsGenerated(syntax)})
	return nil
}

func repository(t *testing.T) *tree {
	t.Helper()
	tr, err := load()
	if err != nil {
		t.Fatalf("the repository does not parse: %v", err)
	}
	if len(tr.files) < 20 {
		t.Fatalf("only %d Go files were found under %s; the rules would say nothing", len(tr.files), tr.root)
	}
	return tr
}

// match reports whether a package path fits a pattern: the path itself, one
// level below it (ends in /*), or it and all below it (ends in /...).
func match(pattern, pkg string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == base || strings.HasPrefix(pkg, base+"/")
	}
	if base, ok := strings.CutSuffix(pattern, "/*"); ok {
		rest, below := strings.CutPrefix(pkg, base+"/")
		return below && !strings.Contains(rest, "/")
	}
	return pattern == pkg
}

func matchAny(patterns []string, pkg string) bool {
	for _, p := range patterns {
		if match(p, pkg) {
			return true
		}
	}
	return false
}
