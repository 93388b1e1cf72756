package server

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	// rebuildEvery is how often every view is made anew and compared with the one
	// that is served (DESIGN.md §1).
	rebuildEvery = time.Hour
	// rebuildAgain is how long after a difference it is looked at again, and
	// rebuildLooks how often it must have been there: views move while they are
	// compared.
	rebuildAgain = 5 * time.Second
	rebuildLooks = 3
)

// compareViews compares every hour what a start would publish now with what is
// published, until ctx ends. A difference is a defect of ours: it is told, and
// nothing is changed by it.
func (s *Server) compareViews(ctx context.Context) error {
	every := time.NewTicker(rebuildEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
		s.report.rebuilt(s.differingViews(ctx, rebuildAgain))
	}
}

// differingViews returns how many views were compared, and those that differ at
// every look, with what differs.
func (s *Server) differingViews(ctx context.Context, again time.Duration) (compared int, differ map[registry.Name]string) {
	for look := range rebuildLooks {
		if look > 0 {
			select {
			case <-ctx.Done():
				return compared, nil
			case <-time.After(again):
			}
		}
		before := differ
		differ = make(map[registry.Name]string)
		var rows []registry.Change
		s.writer.Full(func(c registry.Change) {
			if _, differed := before[c.Name]; differed || look == 0 {
				rows = append(rows, c)
			}
		})
		for _, c := range rows {
			r, err := s.shards.Rebuild(ctx, c)
			if err != nil {
				return compared, nil // we are stopping
			}
			if look == 0 && r.Skipped == "" {
				compared++
			}
			if !r.Same && r.Skipped == "" {
				differ[c.Name] = r.Detail
			}
		}
		if len(differ) == 0 {
			break
		}
	}
	return compared, differ
}

// rebuilt tells of a comparison.
func (r *reporter) rebuilt(compared int, differ map[registry.Name]string) {
	for _, n := range slices.SortedFunc(maps.Keys(differ), registry.Name.Compare) {
		r.incident("rebuild-differs", n.String(), "", differ[n])
	}
	r.log.Info("views were made anew and compared", "compared", compared, "differ", len(differ))
}
