package server

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/registry/reconcile"
	"github.com/sightlinedev/sightline/registry/source/file"
	"github.com/sightlinedev/sightline/server/status"
)

// buildSources builds a file source for each folder of the configuration. Its
// rows are owned by file:<name>.
func (s *Server) buildSources(context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Manifests)) {
		dir := s.cfg.Manifests[name]
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return startError(status.InvalidConfig, "--manifests %s=%s: not a folder that can be read; make it, or leave it out", name, dir)
		}
		owner := "file:" + name
		s.sources = append(s.sources, file.New(file.Config{Dir: dir, Parse: s.parseManifest,
			Emit: func(ctx context.Context, r file.Report) bool { return s.reconcile(ctx, owner, r) }}))
	}
	return nil
}

// parseManifest adds one file's objects to a list. An instance that names no
// region is in the server's own.
func (s *Server) parseManifest(name string, data []byte, into *reconcile.List) error {
	before := len(into.Instances)
	if err := file.Manifests(name, data, into); err != nil {
		return err
	}
	for _, i := range into.Instances[before:] {
		i.Region = cmp.Or(i.Region, s.cfg.Region)
	}
	return nil
}

// reconcile makes a source's list true, as far as the brake and the store let
// it; false asks the source to hand it on again.
func (s *Server) reconcile(ctx context.Context, owner string, r file.Report) bool {
	s.report.held(owner, r.Held)
	d, err := s.writer.Reconcile(ctx, time.Now(), owner, &r.List)
	if err != nil {
		s.report.notReconciled(owner, err)
		return false
	}
	return d.Settled()
}
