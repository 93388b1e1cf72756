package file

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/registry/reconcile"
)

// Numbers of a pass (NAMES.md, "Manifests").
const (
	Pass    = 2 * time.Second  // from the start of one pass to that of the next
	Look    = time.Second      // between the two looks of a pass
	Refresh = 30 * time.Second // an unchanged, settled list is handed on again this often

	// MaxSize is the largest manifest file read, in bytes.
	MaxSize = 16 << 20
)

// ParseFunc reads one manifest file and adds its objects to the list. Its error
// names file, line and column; the list is then not used.
type ParseFunc func(file string, data []byte, into *reconcile.List) error

// Held is a file whose newest content is not in the list, and why.
type Held struct {
	File  string // name in the folder
	Why   string // the error, with line and column where the parser knows them
	Since time.Time
	Gave  int // objects of its earlier content that stay
}

// Report is the result of one pass.
type Report struct {
	List  reconcile.List
	Files int    // manifests in the folder
	Held  []Held // by name
}

// Config is what a Source needs.
type Config struct {
	Dir   string
	Parse ParseFunc
	// Emit takes the report of a pass. It returns true when nothing of the list
	// waits, and is then not called again until a file changes or Refresh has
	// passed. It may block; the next pass waits for it.
	Emit func(context.Context, Report) (settled bool)
}

// Source watches one folder.
type Source struct {
	cfg Config

	// owned by Run
	files    map[string]*entry
	allRead  bool // every file of the folder has been read once since the start
	settled  bool
	emitted  time.Time
	answered reconcile.Answer
}

// entry is what is known of one file.
type entry struct {
	info fs.FileInfo // of the content that gave is from; nil: none yet
	gave *reconcile.List

	failed fs.FileInfo // of content that does not parse: not read again until it changes
	why    string      // why the newest content is not in gave
	since  time.Time
}

// New returns a source for the folder; Run makes it work.
func New(cfg Config) *Source { return &Source{cfg: cfg, files: make(map[string]*entry)} }

// Run makes passes until ctx ends, and returns its error. The first list is
// handed on one Look after the start.
func (s *Source) Run(ctx context.Context) error {
	tick := time.NewTicker(Pass)
	defer tick.Stop()
	for {
		if err := s.pass(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// pass looks twice, reads what changed, and hands the list on.
func (s *Source) pass(ctx context.Context) error {
	before, err1 := look(s.cfg.Dir)
	wait := time.NewTimer(Look)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-wait.C:
	}
	after, err2 := look(s.cfg.Dir)
	now := time.Now()
	if err1 != nil || err2 != nil {
		s.emit(ctx, now, s.answered != reconcile.NoAnswer, Report{List: reconcile.List{
			Answer: reconcile.NoAnswer, Detail: firstError(err2, err1).Error()}})
		return nil
	}
	changed := s.update(now, before, after)
	s.emit(ctx, now, changed || s.answered != reconcile.Listed, s.report(after))
	return nil
}

func (s *Source) emit(ctx context.Context, now time.Time, changed bool, r Report) {
	if !changed && s.settled && now.Sub(s.emitted) < Refresh {
		return
	}
	s.settled = s.cfg.Emit(ctx, r)
	s.emitted, s.answered = now, r.List.Answer
}

// look lists the manifests of a folder, links followed. A file that vanishes
// meanwhile is left out; one that cannot be looked at is there without info.
func look(dir string) (map[string]fs.FileInfo, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := make(map[string]fs.FileInfo, len(names))
	for _, n := range names {
		if !isManifest(n.Name()) {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, n.Name()))
		switch {
		case err == nil && info.IsDir(), os.IsNotExist(err) && n.Type()&fs.ModeSymlink == 0:
		case err != nil:
			found[n.Name()] = nil
		default:
			found[n.Name()] = info
		}
	}
	return found, nil
}

// isManifest picks files by name; editors' and mounts' own files start with a dot.
func isManifest(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// update brings the entries up to what both looks agree on, and reports
// whether anything changed.
func (s *Source) update(now time.Time, before, after map[string]fs.FileInfo) bool {
	changed := false
	for name, e := range s.files {
		_, was := before[name]
		if _, is := after[name]; is || was {
			continue // there, or perhaps just being replaced
		}
		delete(s.files, name)
		changed = changed || e.gave != nil || e.why != ""
	}
	for name, info := range after {
		e := s.files[name]
		if e == nil {
			e = &entry{}
			s.files[name] = e
		}
		switch {
		case info == nil:
			changed = e.hold(now, "it cannot be looked at; check that it exists and may be read") || changed
		case !same(before[name], info):
			e.failed = nil // to be read again once it is stable
			changed = e.hold(now, "it is still being written") || changed
		case same(e.info, info):
			changed = e.release() || changed
		case !same(e.failed, info):
			changed = s.read(now, name, e, info) || changed
		}
	}
	return changed
}

// read takes a file's content, or notes why it cannot be taken; it reports
// whether that is news.
func (s *Source) read(now time.Time, name string, e *entry, info fs.FileInfo) (changed bool) {
	path := filepath.Join(s.cfg.Dir, name)
	if info.Size() > MaxSize {
		e.failed = info
		return e.hold(now, fmt.Sprintf("it has %d bytes, the limit is %d; split it", info.Size(), MaxSize))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return e.hold(now, err.Error())
	}
	if again, err := os.Stat(path); err != nil || !same(info, again) || int64(len(data)) != info.Size() {
		return e.hold(now, "it is still being written")
	}
	var list reconcile.List
	if err := s.cfg.Parse(name, data, &list); err != nil {
		e.failed = info
		return e.hold(now, err.Error())
	}
	e.info, e.gave = info, &list
	e.release()
	return true
}

// hold notes why the newest content does not count.
func (e *entry) hold(now time.Time, why string) (changed bool) {
	if e.why == why {
		return false
	}
	if e.why == "" {
		e.since = now
	}
	e.why = why
	return true
}

// release marks the content as taken.
func (e *entry) release() (changed bool) {
	changed = e.why != ""
	e.why, e.failed = "", nil
	return changed
}

// report joins what all files give, in the order of their names.
func (s *Source) report(after map[string]fs.FileInfo) Report {
	r := Report{List: reconcile.List{Answer: reconcile.Listed}, Files: len(after)}
	var unread []string
	for _, name := range sortedNames(s.files) {
		e := s.files[name]
		gave := 0
		if e.gave != nil {
			gave = join(&r.List, e.gave)
		} else {
			unread = append(unread, name)
		}
		if e.why != "" {
			r.Held = append(r.Held, Held{File: name, Why: e.why, Since: e.since, Gave: gave})
		}
	}
	// Once all was read, a file that has never been read is new: nothing that
	// is held can be from it.
	s.allRead = s.allRead || len(unread) == 0
	if !s.allRead {
		r.List.Incomplete = strings.Join(unread, ", ")
	}
	return r
}

func join(into, from *reconcile.List) int {
	into.Services = append(into.Services, from.Services...)
	into.Instances = append(into.Instances, from.Instances...)
	into.Contracts = append(into.Contracts, from.Contracts...)
	into.Profiles = append(into.Profiles, from.Profiles...)
	return len(from.Services) + len(from.Instances) + len(from.Contracts) + len(from.Profiles)
}

func sortedNames(files map[string]*entry) []string {
	names := make([]string, 0, len(files))
	for n := range files {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// same reports whether two looks saw one file with one content.
func same(a, b fs.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
