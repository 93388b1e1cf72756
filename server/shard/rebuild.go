package shard

import (
	"context"
	"fmt"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// Rebuilt is a service's view made anew from desired state and the checkpoint,
// compared with the one that it has.
type Rebuilt struct {
	Same bool
	// Skipped says why the two cannot be compared now; empty: they were.
	Skipped string
	// Detail names the first thing that differs, with both sides.
	Detail string
}

// Rebuild makes a service's view anew, as a start would, from rows as the
// registry has them and from what a checkpoint would hold now, and compares it
// with the view that the service has, by their hashes. Nothing is changed by it.
// A difference that a second look does not find was a moment's: a step of a ramp
// that was due, a change that was on its way.
func (s *Set) Rebuild(ctx context.Context, c registry.Change) (Rebuilt, error) {
	return ask(ctx, s, c.Name, func(svc *service) Rebuilt {
		if svc == nil {
			return Rebuilt{Skipped: "it is not evaluated, or its row cannot be read"}
		}
		return svc.rebuild(time.Now(), c)
	})
}

func (s *service) rebuild(now time.Time, c registry.Change) Rebuilt {
	if why := s.incomparable(c); why != "" {
		return Rebuilt{Skipped: why}
	}
	m, err := readMemory(s.remember(now), now)
	if err != nil {
		return Rebuilt{Detail: err.Error()} // our own bytes: a start would lose them
	}
	c.Contract = s.contracts.effective()
	e := health.New(s.name, now, m.health)
	e.Load(c)
	e.Stand(now, s.shard.stance)
	o := e.Judge(now)
	made, _ := views.NewAssembler(s.name, m.views).Apply(now, views.Input{Change: &c, Verdicts: o.Changed})
	return compareViews(s.assembler.Candidate().View, made.View)
}

// incomparable says why a rebuilt view may differ though nothing is wrong.
func (s *service) incomparable(c registry.Change) string {
	k := &s.contracts
	switch {
	case c.Revision != k.row.Revision && c.Revision != s.loaded:
		return "a change is on its way"
	case c.DamagedRows > 0:
		return "rows of it cannot be read"
	case k.zonesAhead():
		return "a contract is in effect in some zones"
	}
	for _, v := range s.evaluator.Verdicts() {
		if v.RampHeld {
			return "a step of a ramp waits for evidence, which a start does not have"
		}
	}
	return ""
}

func compareViews(live, made *views.View) Rebuilt {
	switch {
	case live == nil || made == nil:
		return Rebuilt{Same: live == made, Detail: fmt.Sprintf("there is a view: %t, rebuilt: %t", live != nil, made != nil)}
	case live.EndpointHash == made.EndpointHash && live.ConfigHash == made.ConfigHash:
		return Rebuilt{Same: true}
	case live.EndpointHash == made.EndpointHash:
		return Rebuilt{Detail: fmt.Sprintf("config hash %x, rebuilt %x", live.ConfigHash[:6], made.ConfigHash[:6])}
	}
	for k, m := range live.Members {
		if k >= len(made.Members) || made.Members[k].UID != m.UID {
			return Rebuilt{Detail: fmt.Sprintf("member %s, and none of its place in the rebuilt view of %d", m.UID, len(made.Members))}
		}
		if a, b := describeMember(m), describeMember(made.Members[k]); a != b {
			return Rebuilt{Detail: fmt.Sprintf("member %s is %s, rebuilt %s", m.UID, a, b)}
		}
	}
	return Rebuilt{Detail: fmt.Sprintf("%d members, guard %v, confidence %v; rebuilt %d, %v, %v",
		len(live.Members), live.Guard, live.Confidence, len(made.Members), made.Guard, made.Confidence)}
}

func describeMember(m *views.Member) string {
	return fmt.Sprintf("%v w%d listed %t draining %t last resort %t own locality %t at %v %s", m.State, m.Weight, m.Listed, m.Draining,
		m.LastResort, m.OwnLocality, m.Endpoint, m.Zone)
}
