package lint

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// dependencies are the direct dependencies of go.mod and what each is for. A
// new one needs a line here, and with it a reason that a reviewer can judge.
var dependencies = map[string]string{
	"github.com/cockroachdb/datadriven":            "tests: scenarios as text",
	"github.com/cockroachdb/pebble/v2":             "the embedded store (views/store)",
	"github.com/envoyproxy/go-control-plane":       "interop: its caches are the baseline of benchmarks",
	"github.com/envoyproxy/go-control-plane/envoy": "xDS protos (server/xds)",
	"github.com/lmittmann/tint":                    "logs for people (cmd)",
	"github.com/miekg/dns":                         "parses the unusual, and the oracle in tests (dns)",
	"github.com/prometheus/client_golang":          "metrics (server/metrics)",
	"github.com/spf13/cobra":                       "the command line (cmd)",
	"github.com/spf13/pflag":                       "the flags of a cobra command, by their own type: settings from the environment and the file",
	"github.com/spiffe/go-spiffe/v2":               "SVIDs and bundles (identity/svid)",
	"go.uber.org/goleak":                           "tests: no goroutine is left",
	"go.yaml.in/yaml/v3":                           "manifests and configuration, with positions",
	"golang.org/x/sys":                             "socket options and disk space (dns, views/store)",
	"golang.org/x/time":                            "token buckets (server/limits' users)",
	"google.golang.org/genproto/googleapis/rpc":    "error details of a gRPC status",
	"google.golang.org/grpc":                       "every RPC surface",
	"google.golang.org/protobuf":                   "the wire messages",
	"pgregory.net/rapid":                           "tests: properties",
}

var requireLine = regexp.MustCompile(`(?m)^(?:require )?\t?([^\s/]+\.[^\s]+) v[^\s]+$`)

func TestDependenciesAreListed(t *testing.T) {
	tr := repository(t)
	mod, err := os.ReadFile(filepath.Join(tr.root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	found := requireLine.FindAllSubmatch(mod, -1)
	if len(found) == 0 {
		t.Fatal("no direct dependency found in go.mod; this rule reads it wrongly")
	}
	direct := make(map[string]bool)
	for _, m := range found {
		direct[string(m[1])] = true
		if dependencies[string(m[1])] == "" {
			t.Errorf("go.mod: %s is not in dependencies of internal/lint/files_test.go; add it with its reason, or do without", m[1])
		}
	}
	for d := range dependencies {
		if !direct[d] {
			t.Errorf("internal/lint/files_test.go lists %s, which go.mod does not require directly; remove the line", d)
		}
	}
}

// private are marks of the machine that a file was written on. They are put
// together here so that this file does not hold them.
var private = []struct {
	what    string
	pattern *regexp.Regexp
}{
	{"a home or work folder", regexp.MustCompile(`(^|[^A-Za-z0-9._-])/(wo` + `rk|ro` + `ot|ho` + `me/[a-z]+|Us` + `ers/[a-z]+)/[A-Za-z0-9._-]`)},
	{"a package registry's address", regexp.MustCompile(`(?i)(gop` + `roxy|gosum` + `db|index[-_]url|npm_config_reg` + `istry)["']?\s*[:=]\s*["']?https?://`)},
	{"a package mirror's host", regexp.MustCompile(`(?i)\b(artif` + `actory|ne` + `xus|jf` + `rog)[a-z0-9-]*\.[a-z]`)},
}

// privateExceptions are lines that only look like one.
var privateExceptions = []struct{ file, part, why string }{}

func TestNothingOfThisMachine(t *testing.T) {
	tr := repository(t)
	for _, name := range tracked(t, tr.root) {
		content, err := os.ReadFile(filepath.Join(tr.root, name))
		if err != nil || bytes.IndexByte(content[:min(len(content), 8000)], 0) >= 0 {
			continue // deleted in the work tree, or binary
		}
		for i, line := range strings.Split(string(content), "\n") {
			for _, p := range private {
				if p.pattern.MatchString(line) && !excepted(name, line) {
					t.Errorf("%s:%d: holds %s (%q); use a relative path, a flag or an environment variable", name, i+1, p.what, p.pattern.FindString(line))
				}
			}
		}
	}
}

func excepted(name, line string) bool {
	for _, e := range privateExceptions {
		if e.file == name && strings.Contains(line, e.part) {
			return true
		}
	}
	return false
}

// tracked lists the files that git holds, or, where there is no git, all.
func tracked(t *testing.T, root string) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = root
	if out, err := cmd.Output(); err == nil {
		return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	}
	var names []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.Contains(path, "/.") {
			return err
		}
		rel, err := filepath.Rel(root, path)
		names = append(names, filepath.ToSlash(rel))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestOldestGo keeps the module on the Go version that the documents name.
func TestOldestGo(t *testing.T) {
	tr := repository(t)
	mod, err := os.ReadFile(filepath.Join(tr.root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^go 1\.26(\.\d+)?$`).Match(mod) {
		t.Error("go.mod does not say go 1.26; the build, the CI script and the README name that version")
	}
}
