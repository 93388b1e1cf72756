package report

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
)

// selfStream is one stream of self-reports; owned by its handler.
type selfStream struct {
	service      *Service
	who          identity.Principal
	bound        []registry.UID          // 0: an id that no sample counts for
	foreign      map[uint32]registry.UID // of those: what was asked for, by position
	dependencies []string
	budget       *rate.Limiter
	// pressed is what each position said against its instance since the stream
	// was last within its rate: beyond that only news pass.
	pressed map[uint32]said
	tally   *healthv1.Tally
}

// said is a set of statuses, by bit.
type said uint8

func (s said) has(st health.SelfStatus) bool { return s&(1<<st) != 0 }

// ReportSelf takes an instance's word about itself until the stream ends, and
// answers with what became of the samples.
func (s *Service) ReportSelf(conn grpc.ClientStreamingServer[healthv1.ReportSelfRequest, healthv1.ReportSelfResponse]) error {
	who, leave, err := s.admit(conn.Context())
	if err != nil {
		return err
	}
	defer leave()
	st := &selfStream{service: s, who: who, tally: &healthv1.Tally{},
		budget: rate.NewLimiter(rate.Limit(s.cfg.Limits.Rate), s.cfg.Limits.Burst)}
	if err := receive(s.cfg.Limits.MaxMessageBytes, conn.Recv, st.take); err != nil {
		return err
	}
	return conn.SendAndClose(&healthv1.ReportSelfResponse{Tally: st.tally})
}

func (st *selfStream) take(now time.Time, frame *healthv1.ReportSelfRequest, first bool) error {
	switch {
	case frame.GetBind() != nil:
		return st.bind(frame.GetBind())
	case frame.GetBatch() == nil:
		return noFrame()
	case first:
		return bindFirst()
	}
	return st.batch(now, frame.GetBatch())
}

// bind appends ids. One that cannot be read is the reporter's fault and ends
// the stream; one that it may not speak of stays bound to nothing.
func (st *selfStream) bind(b *healthv1.SelfBind) error {
	l := &st.service.cfg.Limits
	switch {
	case len(st.bound)+len(b.GetInstances()) > l.Instances:
		return status.Limit("Reports.Instances", fmt.Sprintf("%d ids on one stream", l.Instances))
	case len(st.dependencies)+len(b.GetDependencies()) > l.Dependencies:
		return status.Limit("Reports.Dependencies", fmt.Sprintf("%d dependencies on one stream", l.Dependencies))
	}
	for i, name := range b.GetDependencies() {
		if why := registry.CheckDependencyName(name); why != "" {
			return status.Field(status.InvalidField, fmt.Sprintf("bind.dependencies[%d]", i), "dependency-name", why)
		}
	}
	told := false
	for i, text := range b.GetInstances() {
		uid, err := registry.ParseUID(text)
		if err != nil {
			return status.Field(status.InvalidField, fmt.Sprintf("bind.instances[%d]", i), "uid", err.Error())
		}
		d := st.attribute(uid)
		if !d.Allowed {
			if st.foreign == nil {
				st.foreign = make(map[uint32]registry.UID)
			}
			st.foreign[uint32(len(st.bound))], uid = uid, 0
			if !told {
				told = true
				st.service.unattributed(st.who, d.Rule)
			}
		}
		st.bound = append(st.bound, uid)
	}
	st.dependencies = append(st.dependencies, b.GetDependencies()...)
	return nil
}

func (st *selfStream) attribute(uid registry.UID) authz.Decision {
	i, ok := st.service.cfg.Lookup(uid)
	if !ok {
		return authz.Decision{Rule: "the instance is not known"}
	}
	return authz.CanReport(st.who, i.Identity)
}

// batch turns one batch into samples for the shards.
func (st *selfStream) batch(now time.Time, b *healthv1.SelfBatch) error {
	if err := checkBatch(b); err != nil {
		return err
	}
	const class = registry.ClassSelf
	age := b.GetAge().AsDuration()
	if age > staleAfter {
		st.service.count(st.tally, class, Stale, len(b.GetInstance()))
		return nil
	}
	degraded, err := st.degraded(b)
	if err != nil {
		return err
	}
	full := !st.budget.AllowN(now, 1)
	if !full {
		clear(st.pressed)
	}
	var unattributed, limited int
	byService := make(map[registry.Name][]health.Sample)
	for i, at := range b.GetInstance() {
		row, ok := st.row(at)
		sample := health.Sample{Class: class, At: now.Add(-age), Status: selfStatus(b.GetStatus()[i]), Degraded: degraded[at]}
		if !ok {
			unattributed++
			if !full {
				st.showForeign(at, &sample)
			}
			continue
		}
		sample.UID = row.UID
		if full && !st.news(at, &sample) {
			limited++
			st.show(row.Service, &sample, Limited)
			continue
		}
		st.show(row.Service, &sample, Accepted)
		byService[row.Service] = append(byService[row.Service], sample)
	}
	st.service.count(st.tally, class, Unattributed, unattributed)
	st.service.count(st.tally, class, Limited, limited)
	for name, samples := range byService {
		st.service.cfg.Submit(name, samples)
		st.service.count(st.tally, class, Accepted, len(samples))
	}
	return nil
}

// news reports whether a sample must not be lost though the stream is too fast:
// it speaks against its instance, and did not in the same words a moment ago.
// Each wakes the shard, so repeating them would keep it awake.
func (st *selfStream) news(at uint32, s *health.Sample) bool {
	if !s.Urgent() || st.pressed[at].has(s.Status) {
		return false
	}
	if st.pressed == nil {
		st.pressed = make(map[uint32]said)
	}
	st.pressed[at] |= 1 << s.Status
	return true
}

func (st *selfStream) show(n registry.Name, s *health.Sample, r Result) {
	if tell := st.service.cfg.Events.Sample; tell != nil {
		tell(st.who, n, s, r)
	}
}

// showForeign shows a word about an instance that is another identity's: it
// counts for nothing, and whoever looks for it has to see why.
func (st *selfStream) showForeign(at uint32, s *health.Sample) {
	if row, ok := st.service.cfg.Lookup(st.foreign[at]); ok {
		s.UID = row.UID
		st.show(row.Service, s, Unattributed)
	}
}

// row finds the instance at a bound position, if it still lives: a late word
// about an id that is gone has no effect.
func (st *selfStream) row(at uint32) (*registry.Instance, bool) {
	if int(at) >= len(st.bound) || st.bound[at] == 0 {
		return nil, false
	}
	return st.service.cfg.Lookup(st.bound[at])
}

func checkBatch(b *healthv1.SelfBatch) error {
	switch {
	case len(b.GetInstance()) != len(b.GetStatus()):
		return unequal("batch.status", len(b.GetInstance()), len(b.GetStatus()))
	case len(b.GetDegradedInstance()) != len(b.GetDegradedDependency()):
		return unequal("batch.degraded_dependency", len(b.GetDegradedInstance()), len(b.GetDegradedDependency()))
	case b.GetAge() != nil && (b.GetAge().CheckValid() != nil || b.GetAge().AsDuration() < 0):
		return status.Field(status.InvalidField, "batch.age", "duration", "an age is zero or more")
	}
	for i, s := range b.GetStatus() {
		if selfStatus(s) == health.NoStatus {
			return status.Field(status.InvalidField, fmt.Sprintf("batch.status[%d]", i), "known-status", "not one of SERVING, NOT_SERVING, DRAINING")
		}
	}
	return nil
}

// degraded gathers the names of the degraded dependencies by position of the instance.
func (st *selfStream) degraded(b *healthv1.SelfBatch) (map[uint32][]string, error) {
	if len(b.GetDegradedInstance()) == 0 {
		return nil, nil
	}
	names := make(map[uint32][]string)
	for i, at := range b.GetDegradedInstance() {
		dep := b.GetDegradedDependency()[i]
		if int(dep) >= len(st.dependencies) {
			return nil, status.Field(status.InvalidField, fmt.Sprintf("batch.degraded_dependency[%d]", i), "bound",
				fmt.Sprintf("position %d, and %d dependencies are bound", dep, len(st.dependencies)))
		}
		names[at] = append(names[at], st.dependencies[dep])
	}
	for at, list := range names {
		slices.Sort(list)
		names[at] = slices.Compact(list)
	}
	return names, nil
}

func selfStatus(s healthv1.SelfStatus) health.SelfStatus {
	switch s {
	case healthv1.SelfStatus_SELF_STATUS_SERVING:
		return health.Serving
	case healthv1.SelfStatus_SELF_STATUS_NOT_SERVING:
		return health.NotServing
	case healthv1.SelfStatus_SELF_STATUS_DRAINING:
		return health.Draining
	}
	return health.NoStatus
}
