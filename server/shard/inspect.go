package shard

import (
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
	// Verdicts on every instance, by UID; unadmitted ones have Member false.
	Verdicts []health.Verdict
	// Published is the version that callers are given now, Wanted the view that
	// they should be given; Until and Why are set while it waits for its lane.
	Published views.Version
	Wanted    *views.View
	Until     time.Time
	Why       string
}

// Verdict returns the verdict on one instance.
func (i *Inspection) Verdict(uid registry.UID) (health.Verdict, bool) {
	k, ok := slices.BinarySearchFunc(i.Verdicts, uid, func(v health.Verdict, uid registry.UID) int {
		switch {
		case v.UID < uid:
			return -1
		case v.UID > uid:
			return 1
		}
		return 0
	})
	if !ok {
		return health.Verdict{}, false
	}
	return i.Verdicts[k], true
}

// Inspect asks the service's shard, after everything that was submitted before.
// It is not ok for a service that the shard does not hold. The error is ctx's,
// or ErrStopped.
func (s *Set) Inspect(ctx context.Context, n registry.Name) (i Inspection, ok bool, err error) {
	sh := s.of(n)
	answer := make(chan *Inspection, 1) // the shard never waits for the asker
	sh.inbox.putAsk(func() {
		svc := sh.services[n]
		if svc == nil || svc.deleted {
			answer <- nil
			return
		}
		answer <- svc.inspect()
	})
	select {
	case found := <-answer:
		if found == nil {
			return Inspection{}, false, nil
		}
		return *found, true, nil
	case <-ctx.Done():
		return Inspection{}, false, ctx.Err()
	case <-s.stopped:
		return Inspection{}, false, ErrStopped
	}
}

func (s *service) inspect() *Inspection {
	return &Inspection{
		Name: s.name, Verdicts: s.evaluator.Verdicts(), Published: s.held,
		Wanted: s.assembler.Candidate().View, Until: s.publishAt, Why: s.why,
	}
}
