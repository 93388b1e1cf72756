package shard

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// heldView is a published view of which only the last state is known: the
// service's own row does not decode. Nothing judges its members.
type heldView struct {
	view *views.View
	// The service's checkpoint and its unreadable members, for when its row is back.
	memory []byte
	lost   []*views.Member
}

// hold takes over the held views that are this shard's.
func (s *shard) hold(boot Boot) {
	for name, v := range boot.Held {
		if s.set.of(name) == s {
			s.held[name] = &heldView{v, boot.Memories[name], boot.Lost[name]}
		}
	}
}

// meet makes a service of the first change that tells of it; nil when there is
// none to make. One that was held goes on like one that is loaded at a start:
// its instances are not new, and it is not published empty until they speak.
func (s *shard) meet(now time.Time, c registry.Change) *service {
	h := s.held[c.Name]
	switch {
	case c.Service == nil && (h == nil || c.Removal == registry.NotRemoved):
		return nil // never heard of it, or its row still does not decode
	case h == nil:
		return s.newService(c.Name, now)
	case c.Service == nil:
		delete(s.held, c.Name)
		return s.newService(c.Name, now)
	}
	return s.loadService(c, h.memory, h.lost)
}

// restampHeld gives a held view a new version.
func (s *shard) restampHeld(now time.Time, name registry.Name) {
	h := s.held[name]
	if h == nil {
		return
	}
	r := s.set.cfg.Publish(now, views.Candidate{Name: name, View: h.view, Base: h.view.Version(), Restamp: true})
	if r.Outcome == views.Published {
		h.view = r.Publication.New
		s.set.feed(r.Publication)
	}
}
