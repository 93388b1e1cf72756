package store

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// freezer is the file system of one opening of Pebble. It is there because
// Pebble ends the process, or retries for ever, on errors that a server must
// outlive (STORE.md §4). On the first error of an operation that changes
// files it freezes: that call never returns, and neither does any later
// change. So Pebble stays in the state of that moment, its readers go on, and
// nothing of it touches the folder again, which lets another opening take over.
//
// Reads are never held: a failed one freezes, and returns its error.
type freezer struct {
	base   vfs.FS
	onStop func(Status) // called once, under Pebble's locks: must not block

	mu      sync.Mutex
	stopped bool
	status  Status
	running map[*operation]struct{}
	ended   *sync.Cond    // an operation ended; on mu
	frozen  chan struct{} // closed when stopped
}

// operation is one change of files that is under way.
type operation struct {
	name, path string
	since      time.Time
	told       bool // it was reported as slow
}

func newFreezer(base vfs.FS, onStop func(Status)) *freezer {
	f := &freezer{base: base, onStop: onStop, running: make(map[*operation]struct{}), frozen: make(chan struct{})}
	f.ended = sync.NewCond(&f.mu)
	return f
}

// change runs one operation that changes files, and never returns when the
// freezer is frozen before it starts or by its error.
func (f *freezer) change(name, path string, do func() error) error {
	o := &operation{name: name, path: path, since: time.Now()}
	f.mu.Lock()
	if f.stopped {
		f.mu.Unlock()
		park()
	}
	f.running[o] = struct{}{}
	f.mu.Unlock()

	err := do()

	f.mu.Lock()
	delete(f.running, o)
	f.ended.Broadcast()
	f.mu.Unlock()
	if fatal(err) {
		f.stop(name, path, err)
		park()
	}
	return err
}

// read notes the error of an operation that changes nothing.
func (f *freezer) read(name, path string, err error) error {
	if fatal(err) {
		f.stop(name, path, err)
	}
	return err
}

// stop freezes; only the first cause counts.
func (f *freezer) stop(name, path string, err error) {
	f.mu.Lock()
	first := !f.stopped
	if first {
		f.stopped = true
		f.status = Status{State: stateFor(err), Op: name, Path: path, Err: err}
		close(f.frozen)
	}
	f.mu.Unlock()
	if first {
		f.onStop(f.status)
	}
}

// idle reports whether no change is under way: a frozen freezer that is idle
// will never touch the folder again.
func (f *freezer) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.running) == 0
}

// waitIdle waits until no change is under way.
func (f *freezer) waitIdle(within time.Duration) bool {
	var late bool
	timer := time.AfterFunc(within, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		late = true
		f.ended.Broadcast()
	})
	defer timer.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.running) > 0 && !late {
		f.ended.Wait()
	}
	return len(f.running) == 0
}

// slow calls tell for every change that has been running for longer than
// limit and was not told yet.
func (f *freezer) slow(limit time.Duration, tell func(op, path string, running time.Duration)) {
	var late []*operation
	now := time.Now()
	f.mu.Lock()
	for o := range f.running {
		if !o.told && now.Sub(o.since) > limit {
			o.told = true
			late = append(late, o)
		}
	}
	f.mu.Unlock()
	for _, o := range late {
		tell(o.name, o.path, now.Sub(o.since))
	}
}

// park never returns. Unwinding instead (a panic, runtime.Goexit) would run
// Pebble's deferred unlocks of mutexes that it does not hold.
func park() { select {} }

// stateFor says whether an error heals by itself: a disk that is full, or a
// process out of file descriptors or memory, wrote nothing and loses nothing.
func stateFor(err error) State {
	for _, heals := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if errors.Is(err, heals) {
			return Full
		}
	}
	return Frozen
}

// fatal tells the disk's failures from answers: a missing or existing file, the
// end of one, or something that the file system does not offer.
func fatal(err error) bool {
	if err == nil {
		return false
	}
	for _, answer := range []error{
		fs.ErrNotExist, fs.ErrExist, io.EOF, io.ErrUnexpectedEOF, errors.ErrUnsupported,
		vfs.ErrUnsupported, syscall.EOPNOTSUPP, syscall.ENOSYS,
	} {
		if errors.Is(err, answer) {
			return false
		}
	}
	return true
}

// Create implements vfs.FS. Before a marker is created its folder is synced:
// else the marker's entry can survive a crash that the file it names does not,
// and the store would not open again.
func (f *freezer) Create(name string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	if strings.HasPrefix(f.base.PathBase(name), "marker.") {
		if err := f.syncFolder(f.base.PathDir(name)); err != nil {
			return nil, err
		}
	}
	err = f.change("create", name, func() error { file, err = f.base.Create(name, c); return err })
	return f.wrap(file, name, true, err)
}

func (f *freezer) syncFolder(dir string) error {
	return f.change("sync", dir, func() error {
		d, err := f.base.OpenDir(dir)
		if err != nil {
			return err
		}
		return errors.Join(d.Sync(), d.Close())
	})
}

// Link implements vfs.FS.
func (f *freezer) Link(from, to string) error {
	return f.change("link", to, func() error { return f.base.Link(from, to) })
}

// Open implements vfs.FS.
func (f *freezer) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.base.Open(name, opts...)
	return f.wrap(file, name, false, f.read("open", name, err))
}

// OpenReadWrite implements vfs.FS.
func (f *freezer) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (file vfs.File, err error) {
	err = f.change("open for writing", name, func() error { file, err = f.base.OpenReadWrite(name, c, opts...); return err })
	return f.wrap(file, name, true, err)
}

// OpenDir implements vfs.FS. What is opened so is synced later.
func (f *freezer) OpenDir(name string) (file vfs.File, err error) {
	err = f.change("open folder", name, func() error { file, err = f.base.OpenDir(name); return err })
	return f.wrap(file, name, true, err)
}

// Remove implements vfs.FS.
func (f *freezer) Remove(name string) error {
	return f.change("remove", name, func() error { return f.base.Remove(name) })
}

// RemoveAll implements vfs.FS.
func (f *freezer) RemoveAll(name string) error {
	return f.change("remove all", name, func() error { return f.base.RemoveAll(name) })
}

// Rename implements vfs.FS.
func (f *freezer) Rename(from, to string) error {
	return f.change("rename", to, func() error { return f.base.Rename(from, to) })
}

// ReuseForWrite implements vfs.FS.
func (f *freezer) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	err = f.change("reuse", to, func() error { file, err = f.base.ReuseForWrite(from, to, c); return err })
	return f.wrap(file, to, true, err)
}

// MkdirAll implements vfs.FS.
func (f *freezer) MkdirAll(dir string, perm os.FileMode) error {
	return f.change("make folder", dir, func() error { return f.base.MkdirAll(dir, perm) })
}

// Lock implements vfs.FS. The store holds the folder's lock itself, across
// openings, so this one is free.
func (f *freezer) Lock(string) (io.Closer, error) { return unlocked{}, nil }

type unlocked struct{}

func (unlocked) Close() error { return nil }

// List implements vfs.FS.
func (f *freezer) List(dir string) ([]string, error) {
	names, err := f.base.List(dir)
	return names, f.read("list", dir, err)
}

// Stat implements vfs.FS.
func (f *freezer) Stat(name string) (vfs.FileInfo, error) {
	info, err := f.base.Stat(name)
	return info, f.read("stat", name, err)
}

// GetDiskUsage implements vfs.FS.
func (f *freezer) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	usage, err := f.base.GetDiskUsage(path)
	return usage, f.read("disk usage", path, err)
}

// PathBase implements vfs.FS.
func (f *freezer) PathBase(path string) string { return f.base.PathBase(path) }

// PathJoin implements vfs.FS.
func (f *freezer) PathJoin(elem ...string) string { return f.base.PathJoin(elem...) }

// PathDir implements vfs.FS.
func (f *freezer) PathDir(path string) string { return f.base.PathDir(path) }

// Unwrap implements vfs.FS.
func (f *freezer) Unwrap() vfs.FS { return f.base }

func (f *freezer) wrap(file vfs.File, path string, changes bool, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &freezingFile{File: file, fs: f, path: path, changes: changes}, nil
}
