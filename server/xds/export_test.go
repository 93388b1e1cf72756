package xds

// KnownNames is the number of names that are interned.
func (s *Server) KnownNames() int { return s.feed.index.known() }

// RenderedServices is the number of services of which bytes are kept.
func (s *Server) RenderedServices() int {
	s.render.mu.RLock()
	defer s.render.mu.RUnlock()
	return len(s.render.services)
}

// WildStreams is the number of streams that every new service concerns.
func (s *Server) WildStreams() int {
	s.feed.mu.RLock()
	defer s.feed.mu.RUnlock()
	return len(s.feed.wild)
}
