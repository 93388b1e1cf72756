package shard

import (
	"context"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// shard is one goroutine and the services that it owns.
type shard struct {
	// Fixed after newShard.
	set    *Set
	number int
	inbox  *inbox

	// Owned by run.
	services     map[registry.Name]*service
	lastTick     time.Time
	checkpointAt time.Time
	deferred     map[*service]bool // whose candidate waits for its lane
	gone         []*service        // whose deletion is published
	held         map[registry.Name]*heldView
	stance       *health.Stance // that the evaluators have
}

func newShard(s *Set, number int) *shard {
	return &shard{
		set: s, number: number, inbox: newInbox(s.cfg.Samples),
		services: make(map[registry.Name]*service), deferred: make(map[*service]bool),
		held: make(map[registry.Name]*heldView),
	}
}

// run loads, and then works until ctx ends.
func (s *shard) run(ctx context.Context, rows []registry.Change, boot Boot) {
	if !s.load(ctx, rows, boot) {
		return // nothing is saved of a start that did not end
	}
	cfg := &s.set.cfg
	now := time.Now()
	s.lastTick = now
	// Shards tick and save apart from each other.
	share := time.Duration(s.number) / time.Duration(cfg.Shards)
	s.checkpointAt = now.Add(cfg.CheckpointEvery + share*cfg.CheckpointEvery)
	timer := time.NewTimer(cfg.Tick)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			s.stop()
			return
		case <-s.inbox.wake:
		case <-timer.C:
		}
		s.wake(time.Now())
		timer.Reset(time.Until(s.nextWake()))
	}
}

// load builds the view of every stored service. It returns false when ctx ends.
func (s *shard) load(ctx context.Context, rows []registry.Change, boot Boot) bool {
	instances := 0
	s.hold(boot)
	for _, c := range rows {
		if ctx.Err() != nil {
			return false
		}
		instances += len(c.Instances)
		s.loadService(c, boot.Memories[c.Name], boot.Lost[c.Name])
	}
	s.set.loaded(len(rows), instances)
	return true
}

// wake takes what waits and does what is due. Registry changes, an instance's
// word against itself, questions and an inbox that fills are why it is called
// between ticks; whatever else came meanwhile is taken in with them.
func (s *shard) wake(now time.Time) {
	ticked := !now.Before(s.lastTick.Add(s.set.cfg.Tick))
	if late := now.Sub(s.lastTick); late > health.LateAfter(s.set.cfg.Tick) {
		s.gap(now, late)
	}
	if ticked {
		s.stand(now)
	}
	d := s.inbox.take()
	if d.ready {
		// The server answers from now on, and whoever could not renew while it
		// did not has a full term to do so.
		for _, svc := range s.services {
			svc.gap(now)
		}
	}
	for name, m := range d.mail {
		s.deliver(now, name, m, ticked || m.pressing())
	}
	s.inbox.giveBack(d)
	switch {
	case ticked || d.ready:
		for _, svc := range s.services {
			svc.turn(now)
		}
	default:
		for svc := range s.deferred {
			svc.turn(now)
		}
	}
	s.forget()
	for _, ask := range d.asks {
		ask()
	}
	if ticked {
		s.tally(now)
		s.lastTick = now
	}
	if !now.Before(s.checkpointAt) {
		s.checkpoint(now)
		s.checkpointAt = now.Add(s.set.cfg.CheckpointEvery)
	}
}

// gap says to every evaluator that nobody looked.
func (s *shard) gap(now time.Time, late time.Duration) {
	for _, svc := range s.services {
		svc.gap(now)
	}
	s.lastTick = now
	if f := s.set.cfg.Events.Gap; f != nil {
		f(s.number, late)
	}
}

// deliver hands a service its mail, and lets it judge and publish: at once, or
// at the next tick.
func (s *shard) deliver(now time.Time, name registry.Name, m *mail, atOnce bool) {
	svc := s.services[name]
	for _, c := range m.changes() {
		if svc == nil {
			if svc = s.meet(now, c); svc == nil {
				continue
			}
		}
		svc.change(now, c)
	}
	switch {
	case svc != nil:
		svc.receive(now, m, atOnce)
	case m.restamp:
		s.restampHeld(now, name)
	}
}

// forget drops the services whose deletion is published.
func (s *shard) forget() {
	for _, svc := range s.gone {
		if svc.deleted {
			delete(s.services, svc.name)
			s.set.save(svc.name, nil)
			s.set.observers.forget(svc.name)
		}
	}
	s.gone = nil
}

// nextWake is the next tick, or the end of a deferral before it.
func (s *shard) nextWake() time.Time {
	at := s.lastTick.Add(s.set.cfg.Tick)
	for svc := range s.deferred {
		if svc.publishAt.Before(at) {
			at = svc.publishAt
		}
	}
	return at
}

// stop does what still waits, and saves everything.
func (s *shard) stop() {
	now := time.Now()
	s.wake(now)
	for _, svc := range s.services {
		svc.turn(now) // what was only taken in is judged now: no tick comes
	}
	s.forget()
	s.checkpoint(now)
}
