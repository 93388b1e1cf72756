package shard

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// Inspection is what the evaluation holds of one service at one moment.
type Inspection struct {
	Name registry.Name
	// Instances are the verdicts with their evidence, by UID; unadmitted
	// instances are those whose verdict has Member false.
	Instances []health.Explanation
	// Published is the version that callers are given now, Wanted the view that
	// they should be given; Until and Why are set while it waits for its lane.
	Published views.Version
	Wanted    *views.View
	Until     time.Time
	Why       string
	// Rollout is a changed contract that is not in effect everywhere; nil: the
	// newest is.
	Rollout *Rollout
	// Third is how much of the service callers' word alone holds out.
	Third health.Third
}

// Instance returns what is known of one instance.
func (i *Inspection) Instance(uid registry.UID) (x health.Explanation, ok bool) {
	k, ok := slices.BinarySearchFunc(i.Instances, uid, func(x health.Explanation, uid registry.UID) int {
		return cmp.Compare(x.Verdict.UID, uid)
	})
	if !ok {
		return health.Explanation{}, false
	}
	return i.Instances[k], true
}

// Inspect asks the service's shard, after everything that was submitted before.
// It is not ok for a service that the shard does not hold. The error is ctx's,
// or ErrStopped.
func (s *Set) Inspect(ctx context.Context, n registry.Name) (i Inspection, ok bool, err error) {
	found, err := ask(ctx, s, n, func(svc *service) *Inspection {
		if svc == nil {
			return nil
		}
		return svc.inspect(time.Now())
	})
	if found == nil {
		return Inspection{}, false, err
	}
	return *found, true, nil
}

// ReleaseQuarantine is an operator's word that an instance's quarantine ends. It
// is not ok where none runs.
func (s *Set) ReleaseQuarantine(ctx context.Context, n registry.Name, uid registry.UID) (ok bool, err error) {
	return ask(ctx, s, n, func(svc *service) bool {
		now := time.Now()
		if svc == nil || !svc.evaluator.ReleaseQuarantine(now, uid) {
			return false
		}
		if r := svc.contracts.rollout; r != nil && r.beside != nil {
			r.beside.ReleaseQuarantine(now, uid)
		}
		svc.step(now)
		return true
	})
}

// ask runs f on the goroutine of the service's shard, after everything that was
// submitted before, with nil for a service that the shard does not hold. When
// it returns an error f may run later, or never.
func ask[T any](ctx context.Context, s *Set, n registry.Name, f func(*service) T) (none T, err error) {
	sh := s.of(n)
	answer := make(chan T, 1) // the shard never waits for the asker
	sh.inbox.putAsk(func() {
		svc := sh.services[n]
		if svc != nil && svc.deleted {
			svc = nil
		}
		answer <- f(svc)
	})
	select {
	case found := <-answer:
		return found, nil
	case <-ctx.Done():
		return none, ctx.Err()
	case <-s.stopped:
		return none, ErrStopped
	}
}

func (s *service) inspect(now time.Time) *Inspection {
	return &Inspection{
		Name: s.name, Instances: s.evaluator.Explain(now), Published: s.held,
		Wanted: s.assembler.Candidate().View, Until: s.publishAt, Why: s.why, Rollout: s.inspectRollout(), Third: s.evaluator.CallersThird(),
	}
}
