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
	sh := s.of(n)
	answer := make(chan *Inspection, 1) // the shard never waits for the asker
	sh.inbox.putAsk(func() {
		svc := sh.services[n]
		if svc == nil || svc.deleted {
			answer <- nil
			return
		}
		answer <- svc.inspect(time.Now())
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

func (s *service) inspect(now time.Time) *Inspection {
	return &Inspection{
		Name: s.name, Instances: s.evaluator.Explain(now), Published: s.held,
		Wanted: s.assembler.Candidate().View, Until: s.publishAt, Why: s.why,
	}
}
