package probe

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sightlinedev/sightline/identity"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

// Prober asks the targets of its assignment and reports what it saw.
type Prober struct {
	// Fixed after New.
	cfg     Config
	asker   asker
	updates chan update // from the follower of the assignment to the loop
	results chan flight // from probes in flight to the loop
	board   *board      // from the loop to the reporter
	counts  counters

	// Owned by the loop.
	targets    map[string]*target
	prompt     queue // targets that answered when last asked, or were never asked
	slow       queue // targets that did not: a probe of one may take its whole timeout
	inFlight   int
	slowFlight int
	generation uint64
	old        map[string]bool // targets that a full assignment has not named again so far
	oldSince   time.Time       // when its first part came
	dialBacks  map[identity.ID]*rate.Limiter
	awake      time.Time // when the loop last ran
	gapEnd     time.Time // end of the last gap of our own
	lagEnd     time.Time // when the loop last came late to something
	pausedTold time.Time // when Events.Paused was last told
}

// flight is a probe that has ended.
type flight struct {
	target *target
	result Result
}

// update is a change of the assignment, or its end.
type update struct {
	change  *healthv1.WatchAssignmentResponse
	expired bool // the control plane has been away too long: nothing is assigned
}

func newProber(c Config) *Prober {
	return &Prober{
		cfg: c,
		asker: asker{dial: c.Dial, lookup: c.Lookup, source: c.SVID, allowLoopback: c.AllowLoopback,
			responseBytes: c.Limits.ResponseBytes},
		updates: make(chan update), results: make(chan flight), board: newBoard(c.Limits.Pending),
		targets: make(map[string]*target), dialBacks: make(map[identity.ID]*rate.Limiter),
	}
}

// Run asks and reports until ctx ends, and returns nil then. A control plane
// that cannot be reached is no error: Run goes on trying.
func (p *Prober) Run(ctx context.Context) error {
	// Stop order: the streams first, so that nothing feeds the loop or reads the
	// board, then the loop, which waits for the probes in flight.
	var streams, loop sync.WaitGroup
	loopCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	loop.Go(func() { p.loop(loopCtx) })
	streams.Go(func() { p.follow(ctx) })
	streams.Go(func() { p.report(ctx) })
	streams.Wait()
	stop()
	loop.Wait()
	return nil
}

const (
	// heartbeat is how often the loop runs at least, so that it sees a gap of
	// its own.
	heartbeat = 250 * time.Millisecond
	// ownGap is a wait of the loop that only a pause of this process explains.
	ownGap = 2*heartbeat + time.Second
)

func (p *Prober) loop(ctx context.Context) {
	timer := time.NewTimer(heartbeat)
	defer timer.Stop()
	p.awake = time.Now()
	rings := p.awake.Add(heartbeat)
	for {
		select {
		case <-ctx.Done():
			for p.inFlight > 0 { // their context has ended too
				<-p.results
				p.inFlight--
			}
			return
		case u := <-p.updates:
			p.wake(time.Now())
			p.assign(time.Now(), u)
		case f := <-p.results:
			p.wake(time.Now())
			p.take(time.Now(), f)
		case <-timer.C:
			now := time.Now()
			p.lag(now, rings)
			p.wake(now)
		}
		p.start(ctx, time.Now())
		now := time.Now()
		wait := p.untilNext(now)
		rings = now.Add(wait)
		timer.Reset(wait)
	}
}

// onTime is how late this process may be to what it waits for. If it is later
// it has no processor to spare, and may be as late to read an answer.
const onTime = 50 * time.Millisecond

// lag notes that the loop comes late to something that was ready then.
func (p *Prober) lag(now, then time.Time) {
	if now.Sub(then) > onTime {
		p.lagEnd = now
	}
}

// wake notices a gap of our own: probes that were in flight in it may have been
// answered in time, and nobody looked.
func (p *Prober) wake(now time.Time) {
	if gap := now.Sub(p.awake); gap > ownGap {
		p.gapEnd = now
		p.counts.gaps.Add(1)
		p.paused(now, gap)
	}
	p.awake = now
	if len(p.old) > 0 && now.Sub(p.oldSince) > partsWithin {
		p.sweep()
		p.assigned()
	}
}

// start begins every probe that is due, as far as there is room.
func (p *Prober) start(ctx context.Context, now time.Time) {
	for p.inFlight < p.room(now) {
		t := p.dueFirst(now)
		if t == nil {
			return
		}
		kind, ok := p.next(now, t)
		if !ok {
			p.queueOf(t).add(t)
			continue
		}
		p.inFlight++
		if t.slowSlot = slowOutcome(t.last); t.slowSlot {
			p.slowFlight++
		}
		p.counts.late(now.Sub(t.due))
		q, timeout := t.question, t.timeout
		go func() { p.results <- flight{t, p.asker.ask(ctx, q, kind, timeout)} }() // the loop takes every one
	}
}

// dueFirst takes the target that has been due longest. Slow ones get three
// quarters of the room: a dead zone must not keep the others from being asked.
func (p *Prober) dueFirst(now time.Time) *target {
	t := p.prompt.first()
	if s := p.slow.first(); s != nil && p.slowFlight < p.slowRoom(now) && (t == nil || s.due.Before(t.due)) {
		t = s
	}
	if t == nil || t.due.After(now) {
		return nil
	}
	p.queueOf(t).remove(t)
	return t
}

func (p *Prober) slowRoom(now time.Time) int { return max(1, p.room(now)*3/4) }

// lagRoom is the room while there is no processor to spare: more probes at once
// would all end late, and none would tell anything.
const lagRoom = 64

// room is how many probes may be in flight.
func (p *Prober) room(now time.Time) int {
	if now.Sub(p.lagEnd) < heartbeat {
		return min(p.cfg.Limits.InFlight, lagRoom)
	}
	return p.cfg.Limits.InFlight
}

// next says what a target that is due is asked; ok is false where it has to
// wait, and its time has been moved. An address that is not proved is dialled
// back and asked nothing else.
func (p *Prober) next(now time.Time, t *target) (kind Kind, ok bool) {
	switch {
	case !t.dialBack:
		return t.kind, true
	case p.cfg.SVID == nil:
		t.due = now.Add(spread(t.interval))
		return DialBack, false
	case !p.budget(t.identity).AllowN(now, 1):
		p.counts.dialBacksHeld.Add(1)
		t.due = now.Add(spread(minInterval))
		return DialBack, false
	}
	return DialBack, true
}

// budget bounds what one identity can make probers connect to.
func (p *Prober) budget(id identity.ID) *rate.Limiter {
	l := p.dialBacks[id]
	if l == nil {
		l = rate.NewLimiter(rate.Limit(p.cfg.Limits.DialBackRate), p.cfg.Limits.DialBackBurst)
		p.dialBacks[id] = l
	}
	return l
}

func (p *Prober) queueOf(t *target) *queue {
	if slowOutcome(t.last) {
		return &p.slow
	}
	return &p.prompt
}

func slowOutcome(o Outcome) bool { return o == TimedOut || o == Unreachable }

// untilNext is how long the loop may wait.
func (p *Prober) untilNext(now time.Time) time.Duration {
	wait := heartbeat
	if p.inFlight >= p.room(now) {
		return wait // a result makes room first, or a lag ends
	}
	if t := p.prompt.first(); t != nil {
		wait = min(wait, t.due.Sub(now))
	}
	if t := p.slow.first(); t != nil && p.slowFlight < p.slowRoom(now) {
		wait = min(wait, t.due.Sub(now))
	}
	return max(wait, 0)
}

// take reads the result of a probe, and plans the next one of its target.
func (p *Prober) take(now time.Time, f flight) {
	t, r := f.target, f.result
	p.inFlight--
	if t.slowSlot {
		p.slowFlight--
	}
	p.lag(now, r.At)
	p.excuse(now, &r)
	p.counts.probed(&r)
	if t.gone {
		return
	}
	if r.asked == t.question && r.excuse == 0 { // else it was changed meanwhile, and this speaks of before
		if r.speaks() {
			p.board.put(r, r.Outcome != t.last)
		}
		p.tell(t, r)
		t.last, t.detail = r.Outcome, r.Detail
	}
	t.plan(now, r.Kind == DialBack && r.Outcome == OK)
	p.queueOf(t).add(t)
}

// excuse takes a failure back that this process may have caused: one of a probe
// in flight while it did not run, or a time-out of one while it had no processor
// to read an answer.
func (p *Prober) excuse(now time.Time, r *Result) {
	var gap time.Duration
	switch {
	case r.Outcome != OK && r.started.Before(p.gapEnd):
		gap = p.gapEnd.Sub(r.started)
	case r.Outcome == TimedOut && r.excuse > 0:
		gap = r.excuse
	case r.Outcome == TimedOut && r.started.Before(p.lagEnd):
		gap = onTime
	default:
		return
	}
	r.Outcome, r.Detail, r.excuse = NoWord, "the prober did not run", gap
	p.counts.starved.Add(1)
	if now.Sub(p.pausedTold) > pausedAgain {
		p.paused(now, gap)
	}
}

// pausedAgain is the least time between two words about starved probes.
const pausedAgain = 10 * time.Second

func (p *Prober) paused(now time.Time, gap time.Duration) {
	p.pausedTold = now
	if told := p.cfg.Events.Paused; told != nil {
		told(gap)
	}
}

// tell hands on what differs from the result before.
func (p *Prober) tell(t *target, r Result) {
	if told := p.cfg.Events.Changed; told != nil && (r.Outcome != t.last || r.Detail != t.detail || !t.told) {
		told(r, t.last)
	}
	t.told = true
}
