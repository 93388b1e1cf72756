package registry

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// refusedWithin is how soon a write to a disk that takes nothing is refused,
// with some slack for a busy machine.
const refusedWithin = 1500 * time.Millisecond

// asRoot reports whether the test may mount. Who is not root runs the test again
// in name spaces of its own, where one is, and takes that run's word.
func asRoot(t *testing.T) bool {
	t.Helper()
	const again = "INTEROP_IN_NAMESPACE=yes"
	if os.Geteuid() == 0 || slices.Contains(os.Environ(), again) {
		return true
	}
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), again)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("neither root nor allowed to be in a name space, or failed there: %v\n%s", err, out)
	}
	return false
}

// smallDisk mounts a memory file system of a few megabytes.
func smallDisk(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Fatalf("this test mounts a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill takes all the space that is left, and gives it back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := make([]byte, 64<<10); len(chunk) > 0; {
		if _, err = f.Write(chunk); err != nil {
			chunk = chunk[:len(chunk)/2]
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// On a full disk registrations are refused in time and with a clear status, the
// views go on being served, and a deregistration still leaves them. When there
// is space again, everything works without a restart.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if !asRoot(t) {
		return
	}
	disk := smallDisk(t, 24<<20)
	w := start(t, harness.ServerConfig{Data: filepath.Join(disk, "data")})
	w.api.Apply(t, harness.WithoutRamp("orders.shop"), harness.PutService("orders.shop"), harness.PutInstance("orders.shop", "a", at(1, 0)),
		harness.PutInstance("orders.shop", "b", at(1, 1)), harness.PutInstance("orders.shop", "c", at(1, 2)))
	d, s := w.delta(), w.sotw()
	w.ok(d.Subscribe(rawxds.EDS, "orders.shop"))
	w.ok(s.Ask(rawxds.EDS, "orders.shop"))
	everywhere := func(want ...netip.AddrPort) {
		t.Helper()
		w.holds(d, "orders.shop", budget, want...)
		w.holds(s, "orders.shop", budget, want...)
		w.lists("orders.shop", budget, want...)
	}
	everywhere(at(1, 0), at(1, 1), at(1, 2))

	free := fill(t, disk)
	w.untilRefused()
	for i := range 5 {
		began := time.Now()
		_, err := w.api.TryApply(harness.PutInstance("orders.shop", fmt.Sprintf("late-%d", i), at(2, i)))
		if took := time.Since(began); took > refusedWithin || !refusal(err) {
			t.Errorf("a registration on a full disk: %v after %s", err, took)
		}
	}
	if !strings.Contains(w.s.Metrics(t), "sightline_") || !w.s.Running() {
		t.Error("the server is not well")
	}
	// It leaves the views at once; its answer says that it is not durable.
	ctx, cancel := context.WithTimeout(context.Background(), starts)
	defer cancel()
	began := time.Now()
	_, err := w.api.Registry.DeregisterInstance(ctx, &registryv1.DeregisterInstanceRequest{Namespace: "shop", Service: "orders", Instance: "b"})
	if took := time.Since(began); took > refusedWithin || !refusal(err) {
		t.Errorf("a deregistration on a full disk: %v after %s", err, took)
	}
	everywhere(at(1, 0), at(1, 2))
	if got := harness.RunDig(t, w.s.DNS, "orders.shop."+zone, "A").Data("A"); len(got) != 2 {
		t.Errorf("DNS: %v", got)
	}

	free()
	harness.Eventually(t, 30*time.Second, "writes are taken again", func() error {
		_, err := w.api.TryApply(harness.PutInstance("orders.shop", "d", at(1, 3)))
		return err
	})
	everywhere(at(1, 0), at(1, 2), at(1, 3))
	w.s.Kill()
	w.s.Restart(t)
	w.lists("orders.shop", starts, at(1, 0), at(1, 2), at(1, 3))
}

// untilRefused registers until the disk's last pages are used up: what the store
// had allocated before can still take a few rows.
func (w *world) untilRefused() {
	w.Helper()
	harness.Eventually(w, starts, "the disk takes no more", func() error {
		_, err := w.api.TryApply(harness.PutService("filler.shop"), harness.PutInstance("filler.shop", "f", at(3, int(time.Now().UnixNano()%200))))
		if err == nil {
			return errors.New("it still does")
		}
		return nil
	})
}

func refusal(err error) bool {
	c := status.Code(err)
	return c == codes.ResourceExhausted || c == codes.Unavailable
}
