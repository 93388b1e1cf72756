package store

import "github.com/cockroachdb/pebble/v2/vfs"

// freezingFile is a file of a freezer; Prefetch and Fd pass through.
type freezingFile struct {
	vfs.File
	fs   *freezer
	path string
	// changes says that the file was opened to be written or synced. The
	// errors of such a file's Stat and Close end Pebble too, so they freeze
	// like a write's; those of a file that is only read are returned.
	changes bool
}

// Close implements vfs.File.
func (f *freezingFile) Close() error {
	if !f.changes {
		return f.fs.read("close", f.path, f.File.Close())
	}
	return f.fs.change("close", f.path, f.File.Close)
}

// Read implements vfs.File.
func (f *freezingFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	return n, f.fs.read("read", f.path, err)
}

// ReadAt implements vfs.File.
func (f *freezingFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	return n, f.fs.read("read", f.path, err)
}

// Write implements vfs.File.
func (f *freezingFile) Write(p []byte) (n int, err error) {
	err = f.fs.change("write", f.path, func() error { n, err = f.File.Write(p); return err })
	return n, err
}

// WriteAt implements vfs.File.
func (f *freezingFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.fs.change("write", f.path, func() error { n, err = f.File.WriteAt(p, off); return err })
	return n, err
}

// Preallocate implements vfs.File.
func (f *freezingFile) Preallocate(off, length int64) error {
	return f.fs.change("preallocate", f.path, func() error { return f.File.Preallocate(off, length) })
}

// Stat implements vfs.File.
func (f *freezingFile) Stat() (info vfs.FileInfo, err error) {
	if !f.changes {
		info, err = f.File.Stat()
		return info, f.fs.read("stat", f.path, err)
	}
	err = f.fs.change("stat", f.path, func() error { info, err = f.File.Stat(); return err })
	return info, err
}

// Sync implements vfs.File.
func (f *freezingFile) Sync() error { return f.fs.change("sync", f.path, f.File.Sync) }

// SyncData implements vfs.File.
func (f *freezingFile) SyncData() error { return f.fs.change("sync", f.path, f.File.SyncData) }

// SyncTo implements vfs.File.
func (f *freezingFile) SyncTo(length int64) (full bool, err error) {
	err = f.fs.change("sync", f.path, func() error { full, err = f.File.SyncTo(length); return err })
	return full, err
}
