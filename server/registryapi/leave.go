package registryapi

import (
	"context"
	"fmt"
	"time"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/desired"
)

// leaveLater removes an instance when its grace has passed. Should the process
// end before, the instance stays draining and its lease lapses.
func (s *Server) leaveLater(m registry.RemoveInstance, grace time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if t := s.leavers[m.UID]; t != nil {
		t.Stop()
	}
	s.leavers[m.UID] = time.AfterFunc(grace, func() {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return
		}
		delete(s.leavers, m.UID)
		s.ending.Add(1)
		s.mu.Unlock()
		defer s.ending.Done()
		// The Writer applies a removal at once and keeps it until it is durable;
		// there is nobody left to tell how it went.
		_, _ = s.cfg.Writer.Write(context.Background(), desired.Request{Mutations: []registry.Mutation{m}})
	})
}

// stay cancels a grace: the instance has registered again.
func (s *Server) stay(uid registry.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.leavers[uid]; t != nil {
		t.Stop()
		delete(s.leavers, uid)
	}
}

// sortable is a uid as text that sorts by number.
func sortable(u registry.UID) string { return fmt.Sprintf("%020d", uint64(u)) }
