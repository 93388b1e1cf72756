package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// TestEveryKindOfOperation runs each operation of a file system and a file
// under each error that a disk gives: one that changes files never returns and
// freezes; one that reads returns its error and freezes; neither panics.
func TestEveryKindOfOperation(t *testing.T) {
	for _, test := range []struct {
		kind  errorfs.OpKind
		reads bool
		do    func(*freezer, vfs.File) error
	}{
		{errorfs.OpCreate, false, func(f *freezer, _ vfs.File) error { _, err := f.Create("data/x", "test"); return err }},
		{errorfs.OpLink, false, func(f *freezer, _ vfs.File) error { return f.Link("data/a", "data/b") }},
		{errorfs.OpOpen, true, func(f *freezer, _ vfs.File) error { _, err := f.Open("data/a"); return err }},
		{errorfs.OpOpen, false, func(f *freezer, _ vfs.File) error { _, err := f.OpenReadWrite("data/a", "test"); return err }},
		{errorfs.OpOpenDir, false, func(f *freezer, _ vfs.File) error { _, err := f.OpenDir("data"); return err }},
		{errorfs.OpOpenDir, false, func(f *freezer, _ vfs.File) error { _, err := f.Create("data/marker.x.000001.a", "test"); return err }},
		{errorfs.OpRemove, false, func(f *freezer, _ vfs.File) error { return f.Remove("data/a") }},
		{errorfs.OpRemoveAll, false, func(f *freezer, _ vfs.File) error { return f.RemoveAll("data") }},
		{errorfs.OpRename, false, func(f *freezer, _ vfs.File) error { return f.Rename("data/a", "data/b") }},
		{errorfs.OpReuseForWrite, false, func(f *freezer, _ vfs.File) error { _, err := f.ReuseForWrite("data/a", "data/b", "test"); return err }},
		{errorfs.OpMkdirAll, false, func(f *freezer, _ vfs.File) error { return f.MkdirAll("data/c", 0o700) }},
		{errorfs.OpList, true, func(f *freezer, _ vfs.File) error { _, err := f.List("data"); return err }},
		{errorfs.OpStat, true, func(f *freezer, _ vfs.File) error { _, err := f.Stat("data/a"); return err }},
		{errorfs.OpGetDiskUsage, true, func(f *freezer, _ vfs.File) error { _, err := f.GetDiskUsage("data"); return err }},
		{errorfs.OpFilePreallocate, false, func(_ *freezer, h vfs.File) error { return h.Preallocate(0, 10) }},
		{errorfs.OpFileRead, true, func(_ *freezer, h vfs.File) error { _, err := h.Read(make([]byte, 1)); return err }},
		{errorfs.OpFileReadAt, true, func(_ *freezer, h vfs.File) error { _, err := h.ReadAt(make([]byte, 1), 0); return err }},
		{errorfs.OpFileWrite, false, func(_ *freezer, h vfs.File) error { _, err := h.Write([]byte("x")); return err }},
		{errorfs.OpFileWriteAt, false, func(_ *freezer, h vfs.File) error { _, err := h.WriteAt([]byte("x"), 0); return err }},
		{errorfs.OpFileStat, false, func(_ *freezer, h vfs.File) error { _, err := h.Stat(); return err }},
		{errorfs.OpFileSync, false, func(_ *freezer, h vfs.File) error { return h.Sync() }},
		{errorfs.OpFileSyncData, false, func(_ *freezer, h vfs.File) error { return h.SyncData() }},
		{errorfs.OpFileSyncTo, false, func(_ *freezer, h vfs.File) error { _, err := h.SyncTo(1); return err }},
	} {
		for _, want := range []error{syscall.ENOSPC, syscall.EIO, syscall.EROFS, errors.New("something else")} {
			t.Run(fmt.Sprintf("%d/%v", test.kind, want), func(t *testing.T) {
				inj := &oneKind{kind: test.kind, err: want}
				f, file, stopped := freezerOn(t, inj)
				inj.on.Store(true)
				returned := make(chan error, 1)
				go func() { returned <- test.do(f, file) }()
				judgeFrozen(t, <-stopped, want, returned, test.reads)
				inj.on.Store(false)
				heldAfterwards(t, f, file)
			})
		}
	}
}

// freezerOn returns a freezer over a folder with one file, and that file.
func freezerOn(t *testing.T, inj errorfs.Injector) (*freezer, vfs.File, <-chan Status) {
	t.Helper()
	stopped := make(chan Status, 1)
	f := newFreezer(errorfs.Wrap(vfs.NewMem(), inj), func(st Status) { stopped <- st })
	must(t, f.MkdirAll("data", 0o700))
	file, err := f.Create("data/a", "test")
	must(t, err)
	_, err = file.Write([]byte("bytes"))
	must(t, err)
	file, err = f.OpenReadWrite("data/a", "test")
	must(t, err)
	return f, file, stopped
}

func judgeFrozen(t *testing.T, st Status, want error, returned <-chan error, reads bool) {
	t.Helper()
	if !errors.Is(st.Err, want) || (want == syscall.ENOSPC) != (st.State == Full) || st.State == Writable || st.Op == "" {
		t.Errorf("status %+v", st)
	}
	if reads {
		if err := <-returned; !errors.Is(err, want) {
			t.Errorf("returned %v", err)
		}
		return
	}
	select {
	case err := <-returned:
		t.Errorf("the call returned %v", err)
	case <-time.After(5 * time.Millisecond):
	}
}

// heldAfterwards: the disk is well again, and still nothing changes a file,
// while reads go on.
func heldAfterwards(t *testing.T, f *freezer, file vfs.File) {
	t.Helper()
	returned := make(chan error, 1)
	go func() { _, err := file.Write([]byte("x")); returned <- err }()
	if _, err := file.ReadAt(make([]byte, 5), 0); err != nil {
		t.Errorf("a reader is not served any more: %v", err)
	}
	select {
	case err := <-returned:
		t.Errorf("a later write returned %v", err)
	case <-time.After(5 * time.Millisecond):
	}
	if !f.idle() {
		t.Error("a frozen file system that is left alone is idle")
	}
}

// failingClose is a file whose Close fails, which errorfs never does.
type failingClose struct {
	vfs.File
	err error
}

// Close implements vfs.File.
func (f failingClose) Close() error { return errors.Join(f.err, f.File.Close()) }

func TestClosingAFile(t *testing.T) {
	for _, want := range []error{syscall.ENOSPC, syscall.EIO} {
		for _, changes := range []bool{true, false} {
			f, file, stopped := freezerOn(t, &oneKind{})
			bad := &freezingFile{File: failingClose{file, want}, fs: f, path: "data/a", changes: changes}
			returned := make(chan error, 1)
			go func() { returned <- bad.Close() }()
			judgeFrozen(t, <-stopped, want, returned, !changes)
		}
	}
}

// TestAnswersAreNoFailures: what a healthy disk says does not freeze.
func TestAnswersAreNoFailures(t *testing.T) {
	f, file, stopped := freezerOn(t, &oneKind{})
	_, openErr := f.Open("data/none")
	_, readErr := file.ReadAt(make([]byte, 100), 3)
	_, usageErr := f.GetDiskUsage("data")
	for _, test := range []struct{ got, want error }{
		{openErr, fs.ErrNotExist},
		{readErr, io.EOF},
		{usageErr, vfs.ErrUnsupported},
		{f.Rename("data/none", "data/b"), fs.ErrNotExist},
		{f.Link("data/a", "data/a"), fs.ErrExist},
		{f.change("preallocate", "data/a", func() error { return syscall.EOPNOTSUPP }), syscall.EOPNOTSUPP},
	} {
		if !errors.Is(test.got, test.want) {
			t.Errorf("got %v, want %v", test.got, test.want)
		}
	}
	if lock, err := f.Lock("data/LOCK"); err != nil || lock.Close() != nil {
		t.Error("the lock is the store's, and free here")
	}
	select {
	case st := <-stopped:
		t.Errorf("frozen by %+v", st)
	default:
	}
}

// TestAMarkerIsCreatedInASyncedFolder: else its entry can outlive that of the
// file that it names.
func TestAMarkerIsCreatedInASyncedFolder(t *testing.T) {
	var seen []string
	inj := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpCreate {
			seen = append(seen, fmt.Sprintf("%d %s", op.Kind, op.Path))
		}
		return nil
	})
	f, _, _ := freezerOn(t, inj)
	seen = nil
	for _, name := range []string{"data/000001.log", "data/marker.manifest.000001.MANIFEST-000001"} {
		_, err := f.Create(name, "test")
		must(t, err)
	}
	want := []string{
		fmt.Sprintf("%d data/000001.log", errorfs.OpCreate),
		fmt.Sprintf("%d data", errorfs.OpFileSync),
		fmt.Sprintf("%d data/marker.manifest.000001.MANIFEST-000001", errorfs.OpCreate),
	}
	if !slices.Equal(seen, want) {
		t.Errorf("operations %q, want %q", seen, want)
	}
}

func TestSlowOperationsAreToldOnce(t *testing.T) {
	f, _, _ := freezerOn(t, &oneKind{})
	end := make(chan struct{})
	go func() { _ = f.change("sync", "data/a", func() error { <-end; return nil }) }()
	var told []string
	for deadline := time.Now().Add(5 * time.Second); len(told) == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		f.slow(time.Millisecond, func(op, path string, running time.Duration) { told = append(told, op+" "+path) })
	}
	f.slow(0, func(op, path string, _ time.Duration) { told = append(told, "again "+op+" "+path) })
	if !slices.Equal(told, []string{"sync data/a"}) || f.idle() {
		t.Errorf("told %q, idle %v", told, f.idle())
	}
	close(end)
}

// oneKind fails every operation of a kind while it is on.
type oneKind struct {
	kind errorfs.OpKind
	err  error
	on   atomic.Bool
}

// String implements errorfs.Injector.
func (o *oneKind) String() string { return fmt.Sprint(o.kind) }

// MaybeError implements errorfs.Injector.
func (o *oneKind) MaybeError(op errorfs.Op) error {
	if o.on.Load() && op.Kind == o.kind {
		return &fs.PathError{Op: "test", Path: op.Path, Err: o.err}
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
