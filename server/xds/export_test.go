package xds

// KnownNames is the number of names that are interned.
func (s *Server) KnownNames() int { return s.feed.index.known() }
