package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
)

// followed is how soon a change of a file is in the views: a file must look the
// same twice, a second apart, and the folder is read every 2 s.
const followed = 15 * time.Second

func manifest(service string, members ...int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: sightline.dev/v1\nkind: Service\nmetadata: {namespace: shop, name: %s}\n"+
		"spec: {ports: [{name: grpc, number: 9090, protocol: grpc}], exposure: {dnsAnonymous: true}}\n", service)
	for _, m := range members {
		fmt.Fprintf(&b, "---\napiVersion: sightline.dev/v1\nkind: Instance\nmetadata: {namespace: shop, name: m%d}\n"+
			"spec: {service: %s, address: %s, ports: [{name: grpc, number: %d}], identity: spiffe://test/ns/shop/sa/%s}\n",
			m, service, at(50, m).Addr(), at(50, m).Port(), service)
	}
	return b.String()
}

// A folder of manifests is followed: a file that comes, changes and goes; one
// that is half written changes nothing.
func TestManifestFolderIsFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first.yaml", manifest("first", 0))
	w := start(t, harness.ServerConfig{Args: []string{"--manifests", "local=" + dir}})
	c := w.delta()
	w.ok(c.Subscribe(rawxds.EDS, "first.shop", "second.shop"))
	w.holds(c, "first.shop", followed, at(50, 0))

	write("second.yaml", manifest("second", 1, 2))
	w.holds(c, "second.shop", followed, at(50, 1), at(50, 2))
	write("second.yaml", manifest("second", 2, 3))
	w.holds(c, "second.shop", followed, at(50, 2), at(50, 3))

	// The rows are the folder's: nobody else changes them.
	_, err := w.api.TryApply(harness.PutInstance("second.shop", "m2", at(50, 9)))
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("another source wrote the folder's row: %v", err)
	}

	// A half-written file holds what it gave, and the others are followed.
	half := manifest("second", 2)
	write("second.yaml", half[:len(half)-30])
	write("first.yaml", manifest("first", 0, 4))
	w.holds(c, "first.shop", followed, at(50, 0), at(50, 4))
	w.holds(c, "second.shop", followed, at(50, 2), at(50, 3))
	w.lists("second.shop", followed, at(50, 2), at(50, 3))

	if err := os.Remove(filepath.Join(dir, "second.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := c.Await(followed, func() bool { _, held := c.Held(rawxds.EDS)["second.shop"]; return !held }); err != nil {
		t.Fatalf("the file is gone and the service is not: %v", err)
	}
	w.holds(c, "first.shop", followed, at(50, 0), at(50, 4))

	// What the folder said holds over a crash.
	w.s.Kill()
	w.s.Restart(t)
	w.lists("first.shop", followed, at(50, 0), at(50, 4))
}
