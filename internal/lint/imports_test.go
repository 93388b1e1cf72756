package lint

import (
	"strings"
	"testing"
)

// row is one line of the import matrix: what the packages that fit a pattern
// may import of ours, beside what lies below themselves. The first row that
// fits a package counts.
type row struct {
	pkg string
	may []string
	why string
}

var (
	leaves     = []string{"registry", "registry/reconcile", "registry/throttle", "registry/reach"}
	identities = []string{"identity", "identity/authz", "identity/svid"}
	support    = []string{"server/limits", "server/metrics", "server/status"}
	surface    = join([]string{"views", "proto/..."}, identities, support)
	writing    = join(surface, leaves, []string{"registry/wire", "health"})
)

// matrix is that of docs/ARCHITECTURE.md, the code map.
var matrix = []row{
	{"proto/...", []string{"proto/..."}, "generated; messages import messages"},

	{"identity", nil, "everybody imports it"},
	{"identity/svid", []string{"identity"}, "certificates know ids, not what they may do"},
	{"identity/authz", []string{"identity"}, "a decision sees ids and names alone"},
	{"identity/devca", []string{"identity", "identity/svid"}, "makes what svid reads"},

	{"registry/wire", []string{"registry", "proto/...", "identity"}, "converts desired state"},
	{"registry/manifest", []string{"registry", "registry/wire", "proto/...", "identity"}, "manifests are the protos' JSON form"},
	{"registry/source/*", join(leaves, []string{"registry/manifest", "identity"}), "a source hands lists on; it stores nothing"},
	{"registry", []string{"identity"}, "desired state depends on nothing that uses it"},
	{"registry/*", []string{"registry", "identity"}, "pure leaves"},

	{"health/probe", []string{"proto/...", "identity", "identity/svid"}, "a prober is another process"},
	{"health", []string{"registry", "identity"}, "evidence to verdict"},
	{"views/wire", []string{"views", "proto/...", "identity"}, "converts views"},
	{"views/store", []string{"registry", "health", "views", "identity"}, "bytes on disk"},
	{"views", []string{"registry", "health", "identity"}, "verdicts to views"},

	{"dns", join([]string{"views"}, identities, support), "answers from a Snapshot"},
	{"server/limits", nil, "everybody's numbers"},
	{"server/metrics", nil, "one file names every metric"},
	{"server/status", nil, "codes and their one mapping"},
	{"server/shard", join(leaves, []string{"health", "views", "server/limits", "server/metrics", "identity"}), "reached through functions"},
	{"server/desired", join(writing, []string{"views/wire"}), "the only writer; the store is a function to it"},
	{"server/webhook", nil, "sends what server says; decides nothing"},
	{"server/paging", []string{"server/status"}, "one form of page and token for every list"},
	{"server/admin", join(writing, []string{"views/wire", "server/desired", "server/paging"}), "shows both sides"},
	{"server/registryapi", join(writing, []string{"server/desired", "server/paging"}), "writes through desired"},
	{"server/policy", join(writing, []string{"server/desired"}), "writes through desired"},
	{"server/report", join(writing, []string{"server/desired"}), "evidence in"},
	{"server/resolve", join(surface, []string{"views/wire"}), "reads a Snapshot"},
	{"server/watch", join(surface, []string{"views/wire"}), "reads a Snapshot"},
	{"server/xds/...", join(surface, []string{"server/xds/..."}), "reads a Snapshot"},
	{"server/peer", surface, "reads a Snapshot"},
	{"server/console", surface, "reads a Snapshot"},
	{"server", []string{"proto/...", "identity/...", "registry/...", "health", "views/...", "dns", "server/...", "client/..."}, "the composition root"},

	{"client/...", []string{"client/...", "proto/...", "views", "views/wire", "identity", "identity/svid"}, "the mirror; no server in it"},
	{"interop/...", []string{"interop/...", "proto/...", "client/...", "identity/...", "registry/...", "health/...", "views/...", "server/..."}, "what the harness and the simulator need"},
	{"cmd/...", []string{"cmd/...", "server", "client/...", "health/probe", "proto/...", "registry/manifest", "identity", "identity/svid", "identity/devca"}, "flags to config to Run; no logic"},
	{"internal/lint", nil, "reads files"},
}

func join(lists ...[]string) []string {
	var out []string
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

func TestImportMatrix(t *testing.T) {
	tr := repository(t)
	for _, f := range tr.files {
		if f.test {
			continue
		}
		r := rowOf(f.pkg)
		if r == nil {
			t.Errorf("%s: package %s has no row in the matrix of internal/lint/imports_test.go; add one with its reason", f.path, f.pkg)
			continue
		}
		for _, i := range f.imports() {
			ours, ok := strings.CutPrefix(i, module+"/")
			if ok && ours != f.pkg && !match(f.pkg+"/...", ours) && !matchAny(r.may, ours) {
				t.Errorf("%s imports %s, which %s may not (%s); reach it through a function that server wires, or move the code",
					f.path, ours, f.pkg, r.why)
			}
		}
	}
}

func rowOf(pkg string) *row {
	for i := range matrix {
		if match(matrix[i].pkg, pkg) {
			return &matrix[i]
		}
	}
	return nil
}

// importers names the only packages that may import a library, so that leaving
// a library is a change in one folder. interop and tests may use any.
var importers = []struct {
	library string // import path prefix
	pkgs    []string
}{
	{"github.com/cockroachdb/pebble", []string{"views/store"}},
	{"github.com/spiffe/go-spiffe", []string{"identity/svid", "identity/devca"}},
	{"github.com/miekg/dns", []string{"dns"}},
	{"github.com/envoyproxy/go-control-plane", []string{"server/xds/..."}},
	{"github.com/cncf/xds", []string{"server/xds/..."}},
	{"github.com/prometheus", []string{"server/metrics", "server"}},
	{"github.com/spf13/cobra", []string{"cmd/..."}},
	{"github.com/lmittmann/tint", []string{"cmd/...", "server"}},
	{"go.yaml.in/yaml", []string{"registry/manifest", "cmd/..."}},
	{"k8s.io", []string{"registry/source/kube"}},
}

func TestOneImporterPerLibrary(t *testing.T) {
	tr := repository(t)
	for _, f := range tr.files {
		if f.test || match("interop/...", f.pkg) {
			continue
		}
		for _, i := range f.imports() {
			for _, l := range importers {
				if match(l.library+"/...", i) && !matchAny(l.pkgs, f.pkg) {
					t.Errorf("%s imports %s; only %s may: ask that package for what you need", f.path, i, strings.Join(l.pkgs, ", "))
				}
			}
		}
	}
}

// rpcPackages are where generated types may be seen: they stop at the edges.
var rpcPackages = []string{"proto/...", "server/...", "client/...", "cmd/...", "health/probe", "registry/manifest",
	"registry/wire", "views/wire", "interop/..."}

func TestGeneratedTypesStopAtTheEdges(t *testing.T) {
	tr := repository(t)
	for _, f := range tr.files {
		if f.test || matchAny(rpcPackages, f.pkg) {
			continue
		}
		for _, i := range f.imports() {
			if strings.HasPrefix(i, module+"/proto/") || match("google.golang.org/protobuf/...", i) {
				t.Errorf("%s imports %s; convert in registry/wire or views/wire instead", f.path, i)
			}
		}
	}
}
