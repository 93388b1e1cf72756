package xds

import (
	"slices"

	"github.com/sightlinedev/sightline/views"
)

// Holders lists the ids of the streams that know the service under any of its
// names, in order: subscribed by name, or told of it through a wildcard.
func (s *Server) Holders(n views.Name) (streams []uint32) {
	for _, sub := range s.feed.index.subscribers(nil, n) {
		streams = append(streams, sub.stream)
	}
	slices.Sort(streams)
	return slices.Compact(streams)
}
