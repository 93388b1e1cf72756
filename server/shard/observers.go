package shard

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// observers is the loop that judges what spans services: blind probers, dead
// zones, the region's brake. Shards hand it what each service tells at every
// tick, and read what it makes of it as one value. Neither waits for the other.
type observers struct {
	// Fixed after newObservers.
	tick   time.Duration
	events *Events

	stance atomic.Pointer[health.Stance] // nil: suspects nobody

	waiting sync.Mutex
	mail    []observed // in the order in which it came

	judging sync.Mutex // also for an operator's word
	judge   *health.Observers
}

// observed is what one shard told: services that are gone, and then what the
// others say.
type observed struct {
	gone    registry.Name
	tallies []health.Tally
}

func newObservers(cfg *Config) *observers {
	return &observers{tick: cfg.Tick, events: &cfg.Events, judge: health.NewObservers()}
}

func (o *observers) tell(tallies []health.Tally) { o.put(observed{tallies: tallies}) }

func (o *observers) forget(n registry.Name) { o.put(observed{gone: n}) }

func (o *observers) put(x observed) {
	o.waiting.Lock()
	defer o.waiting.Unlock()
	o.mail = append(o.mail, x)
}

func (o *observers) take() (mail []observed) {
	o.waiting.Lock()
	defer o.waiting.Unlock()
	mail, o.mail = o.mail, nil
	return mail
}

// run judges at every tick until ctx ends.
func (o *observers) run(ctx context.Context) {
	tick := time.NewTicker(o.tick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		o.step(time.Now())
	}
}

// step takes what was told, judges, and makes the stance known.
func (o *observers) step(now time.Time) {
	mail := o.take()
	o.judging.Lock()
	for _, x := range mail {
		if !x.gone.IsZero() {
			o.judge.Forget(x.gone)
		}
		o.judge.Take(now, x.tallies)
	}
	stance, changed, incidents := o.judge.Judge(now)
	o.judging.Unlock()
	if changed {
		o.stance.Store(stance)
		if o.events.Stance != nil {
			o.events.Stance(stance)
		}
	}
	if o.events.ObserverIncident != nil {
		for _, i := range incidents {
			o.events.ObserverIncident(i)
		}
	}
}

// release is an operator's word that the brake lets go.
func (o *observers) release(now time.Time) bool {
	o.judging.Lock()
	defer o.judging.Unlock()
	return o.judge.ReleaseBrake(now)
}

// Stance is what the region's observers make of themselves now; nil: they
// suspect nobody.
func (s *Set) Stance() *health.Stance { return s.observers.stance.Load() }

// ReleaseBrake lets the withdrawals go that the region's brake holds. It reports
// whether the brake was engaged; it takes effect within two ticks.
func (s *Set) ReleaseBrake() bool { return s.observers.release(time.Now()) }

// stand hands the evaluators a new stance.
func (s *shard) stand(now time.Time) {
	st := s.set.observers.stance.Load()
	if st == s.stance {
		return
	}
	s.stance = st
	for _, svc := range s.services {
		svc.stand(now, st)
	}
}

// tally tells the observers what every service has to say.
func (s *shard) tally(now time.Time) {
	all := make([]health.Tally, 0, len(s.services))
	for _, svc := range s.services {
		all = append(all, svc.evaluator.Tally(now))
	}
	s.set.observers.tell(all)
}
