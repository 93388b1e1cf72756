package probe

import (
	"context"
	"errors"
	"io"
	"time"

	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

// follow keeps the assignment stream open until ctx ends. What was assigned is
// held while the stream is away, up to Limits.KeepAssignment.
func (p *Prober) follow(ctx context.Context) {
	link := p.newLink(Assignment)
	held := uint64(0)
	seen := time.Now()
	for ctx.Err() == nil {
		err := p.watch(ctx, &held, link, &seen)
		if ctx.Err() != nil {
			return
		}
		link.lost(err)
		p.counts.lost(Assignment)
		wait := link.pause(p.cfg.Limits.MaxBackOff)
		if held != 0 && time.Since(seen) > p.cfg.Limits.KeepAssignment {
			held = 0 // whoever holds the region now has given these targets away
			if !p.hand(ctx, update{expired: true}) {
				return
			}
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

// watch follows one stream until it breaks, which is always an error.
func (p *Prober) watch(ctx context.Context, held *uint64, link *link, seen *time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.cfg.Client.WatchAssignment(ctx, &healthv1.WatchAssignmentRequest{Zone: p.cfg.Zone, Generation: *held})
	if err != nil {
		return err
	}
	for {
		change, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return errEnded
		case err != nil:
			return err
		}
		link.works()
		if !p.hand(ctx, update{change: change}) {
			return ctx.Err()
		}
		*held = change.GetGeneration()
		*seen = time.Now()
	}
}

var errEnded = errors.New("the control plane ended the stream")

// hand gives an update to the loop; false when ctx ended first.
func (p *Prober) hand(ctx context.Context, u update) bool {
	select {
	case p.updates <- u:
		return true
	case <-ctx.Done():
		return false
	}
}

// partsWithin is how long after its first part the rest of a full assignment
// may take. What none of them names is dropped then.
const partsWithin = time.Second

// assign takes a change of the assignment into the schedule.
func (p *Prober) assign(now time.Time, u update) {
	switch {
	case u.expired:
		p.generation = 0
		p.supersede(now)
		p.sweep()
	case u.change.GetFull():
		p.generation = u.change.GetGeneration()
		p.supersede(now)
	default:
		p.generation = u.change.GetGeneration()
	}
	for _, uid := range u.change.GetRemovedUids() {
		p.drop(uid)
	}
	p.upsert(now, u.change.GetTargets())
	p.assigned()
}

// supersede begins a full assignment: what is held and not named again goes,
// but not before all parts are there, so that what stays keeps its schedule.
func (p *Prober) supersede(now time.Time) {
	p.old, p.oldSince = make(map[string]bool, len(p.targets)), now
	for uid := range p.targets {
		p.old[uid] = true
	}
}

// sweep drops what a full assignment has not named again.
func (p *Prober) sweep() {
	for uid := range p.old {
		p.drop(uid)
	}
	p.old = nil
}

// assigned tells the reporter, the counters and the events what is assigned now.
func (p *Prober) assigned() {
	p.forgetBudgets()
	p.board.assigned(p.generation, p.targets)
	n := len(p.targets) - len(p.old)
	p.counts.targets.Store(int64(n))
	if told := p.cfg.Events.Assigned; told != nil {
		told(p.generation, n)
	}
}

func (p *Prober) upsert(now time.Time, list []*healthv1.Target) {
	for _, m := range list {
		t, err := newTarget(m, p.cfg.AllowLoopback)
		delete(p.old, m.GetUid())
		if err == nil && p.targets[t.uid] == nil && len(p.targets) >= p.cfg.Limits.Targets {
			err = errTooMany
		}
		if err != nil {
			p.drop(m.GetUid()) // what it was is no longer assigned
			p.counts.unusable.Add(1)
			if told := p.cfg.Events.Unusable; told != nil {
				told(m.GetUid(), err.Error())
			}
			continue
		}
		p.put(now, t)
	}
}

var errTooMany = errors.New("the assignment has more targets than this prober takes (Limits.Targets); start more probers")

// put adds a target, or changes the one that is held.
func (p *Prober) put(now time.Time, t *target) {
	first := now.Add(phase(p.cfg.Name, t.uid, t.interval))
	held := p.targets[t.uid]
	if held == nil {
		t.due = first
		p.targets[t.uid] = t
		p.prompt.add(t)
		return
	}
	inFlight := held.at < 0
	if !inFlight {
		p.queueOf(held).remove(held)
	}
	if held.question != t.question {
		held.last, held.detail, held.told = NoWord, "", false
	}
	// Also at a faster cadence than before, and once its address is proved: the
	// new phase, and not sooner.
	if held.due.After(first) {
		held.due = first
	}
	held.question, held.dialBack, held.interval, held.timeout = t.question, t.dialBack, t.interval, t.timeout
	if !inFlight {
		p.queueOf(held).add(held)
	}
}

func (p *Prober) drop(uid string) {
	t := p.targets[uid]
	if t == nil {
		return
	}
	delete(p.targets, uid)
	delete(p.old, uid)
	if t.at < 0 {
		t.gone = true
		return
	}
	p.queueOf(t).remove(t)
}

// forgetBudgets keeps the dial-back budgets of the identities assigned now.
func (p *Prober) forgetBudgets() {
	if len(p.dialBacks) <= len(p.targets) {
		return // bounded by what is assigned
	}
	for id := range p.dialBacks {
		used := false
		for _, t := range p.targets {
			used = used || t.identity == id
		}
		if !used {
			delete(p.dialBacks, id)
		}
	}
}
