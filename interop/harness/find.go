package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Root is the repository's root: the folder above this package that holds go.mod.
func Root(t testing.TB) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	dir := filepath.Dir(file)
	if !ok || !filepath.IsAbs(dir) { // built with -trimpath: the test's folder is inside the repository
		var err error
		if dir, err = os.Getwd(); err != nil {
			t.Fatalf("find the repository: %v", err)
		}
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("find the repository: no go.mod above this package")
	return ""
}

// find returns the first of the candidates that can be run: an environment
// variable, files below the repository, a name in PATH. It fails the test when
// there is none.
func find(t testing.TB, variable string, files []string, name, remedy string) string {
	t.Helper()
	if p := os.Getenv(variable); variable != "" && p != "" {
		if _, err := os.Stat(p); err != nil {
			t.Fatalf("%s: %v", variable, err)
		}
		return p
	}
	root := Root(t)
	for _, pattern := range files {
		matches, _ := filepath.Glob(filepath.Join(root, pattern)) // the patterns are constants
		for _, m := range matches {
			if st, err := os.Stat(m); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				return m
			}
		}
	}
	if p, err := exec.LookPath(name); name != "" && err == nil {
		return p
	}
	t.Fatalf("%s not found (looked at $%s, %v and PATH): %s", name, variable, files, remedy)
	return ""
}

// EnvoyBinary finds real Envoy.
func EnvoyBinary(t testing.TB) string {
	t.Helper()
	return find(t, "SIGHTLINE_ENVOY", []string{".cache/envoy/envoy"}, "envoy", "run make envoy")
}

// SightlineBinary finds the built binary under test.
func SightlineBinary(t testing.TB) string {
	t.Helper()
	return find(t, "SIGHTLINE_BIN", []string{"bin/sightline"}, "", "run make build")
}

// Grpcurl finds grpcurl.
func Grpcurl(t testing.TB) string {
	t.Helper()
	return find(t, "SIGHTLINE_GRPCURL", []string{".cache/tools/grpcurl"}, "grpcurl", "run make tools")
}

// Dig finds dig, of Debian's package bind9-dnsutils.
func Dig(t testing.TB) string {
	t.Helper()
	return find(t, "SIGHTLINE_DIG", nil, "dig", "install bind9-dnsutils")
}
