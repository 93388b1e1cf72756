package admin

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/status"
)

const (
	// tapQueue bounds what waits for one reader; further samples are lost and
	// counted. tapBatch is how many go into one answer.
	tapQueue = 1024
	tapBatch = 256
)

// Sample is one piece of evidence as it came in, for whoever taps.
type Sample struct {
	At       time.Time
	Name     registry.Name // zero: it is about no service that is known
	UID      registry.UID
	Class    registry.EvidenceClass
	Reporter identity.Principal
	Zone     string // of a prober
	Calls    *Calls // what a caller counted; nil: it is no caller's
	Detail   string // what it says
	Count    uint32 // samples that it stands for
	Refused  string // why it was not taken in; empty: it was
}

// Calls are a caller's counts on one instance.
type Calls struct {
	health.Outcome
	Interval time.Duration
	Kind     health.ReporterKind
}

// Taps hands samples to whoever taps. Offer never waits, and costs one atomic
// read while nobody does.
type Taps struct {
	wanted atomic.Pointer[map[registry.Name]bool] // services that are tapped; nil: none; never changed
	stop   chan struct{}                          // closed by Close

	mu      sync.Mutex
	closed  bool
	readers map[*tap]struct{}
}

// NewTaps returns Taps without readers. Close them before the gRPC server is
// stopped gracefully.
func NewTaps() *Taps {
	return &Taps{stop: make(chan struct{}), readers: make(map[*tap]struct{})}
}

// Close ends every tap with UNAVAILABLE. It may be called twice.
func (t *Taps) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.closed = true
		close(t.stop)
	}
}

// Wanted reports whether anybody taps the service: whoever has to put a Sample
// together asks first, so that one tap does not cost every service's evidence.
func (t *Taps) Wanted(n registry.Name) bool {
	names := t.wanted.Load()
	return names != nil && (*names)[n]
}

// Offer hands samples to the readers that asked for them.
func (t *Taps) Offer(samples ...Sample) {
	if t.wanted.Load() == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := range t.readers {
		r.take(samples)
	}
}

// tap is one reader.
type tap struct {
	who     identity.ID
	name    registry.Name
	uid     registry.UID // 0: every instance
	classes registry.ClassSet
	wake    chan struct{} // room for one

	mu    sync.Mutex
	queue []Sample
	lost  uint64
}

// add opens a tap, or says which limit forbids it.
func (t *Taps) add(r *tap, l *limits.API) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := 0
	for other := range t.readers {
		if other.who == r.who {
			own++
		}
	}
	switch {
	case own >= l.TapsPerCaller:
		return status.Limit("API.TapsPerCaller", fmt.Sprintf("%d open taps of %s", l.TapsPerCaller, r.who))
	case len(t.readers) >= l.Taps:
		return status.Limit("API.Taps", fmt.Sprintf("%d open taps", l.Taps))
	}
	t.readers[r] = struct{}{}
	t.want()
	return nil
}

func (t *Taps) remove(r *tap) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.readers, r)
	t.want()
}

// want brings up to date what Wanted answers by; the caller holds mu.
func (t *Taps) want() {
	if len(t.readers) == 0 {
		t.wanted.Store(nil)
		return
	}
	names := make(map[registry.Name]bool)
	for r := range t.readers {
		names[r.name] = true
	}
	t.wanted.Store(&names)
}

func (r *tap) take(samples []Sample) {
	r.mu.Lock()
	for _, s := range samples {
		switch {
		case s.Name != r.name, r.uid != 0 && s.UID != r.uid, !r.classes.Has(s.Class):
		case len(r.queue) >= tapQueue:
			r.lost++
		default:
			r.queue = append(r.queue, s)
		}
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// next takes what waits; nil: nothing does.
func (r *tap) next() *adminv1.TapResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(r.queue), tapBatch)
	if n == 0 && r.lost == 0 {
		return nil
	}
	out := &adminv1.TapResponse{Lost: r.lost}
	for i := range r.queue[:n] {
		out.Samples = append(out.Samples, sampleOf(&r.queue[i]))
	}
	r.lost = 0
	if r.queue = slices.Delete(r.queue, 0, n); len(r.queue) == 0 {
		r.queue = nil
	}
	return out
}

// Tap streams a service's evidence as it comes in, refused evidence too.
func (s *Server) Tap(req *adminv1.TapRequest, stream grpc.ServerStreamingServer[adminv1.TapResponse]) error {
	who, err := s.caller(stream.Context())
	if err != nil {
		return err
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetName()}
	if svc, serves := s.row(n); !s.mayInspect(who, n, serves) || svc == nil {
		return status.Hidden("service", n.String())
	}
	r := &tap{who: who.ID, name: n, wake: make(chan struct{}, 1)}
	if ref := req.GetInstance(); ref != "" {
		uid, ok := s.find(n, ref)
		if !ok {
			return status.Hidden("instance", n.String()+"/"+ref)
		}
		r.uid = uid
	}
	if r.classes, err = classesOf(req.GetEvidenceClasses()); err != nil {
		return err
	}
	if err := s.cfg.Taps.add(r, &s.cfg.API); err != nil {
		return err
	}
	defer s.cfg.Taps.remove(r)
	for {
		for out := r.next(); out != nil; out = r.next() {
			if err := stream.Send(out); err != nil {
				return err
			}
		}
		select {
		case <-r.wake:
		case <-s.cfg.Taps.stop:
			return status.Errorf(status.Stopping, "the server is stopping")
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		// What the caller may see can change while it reads.
		if !s.maySee(who, n) {
			return status.Hidden("service", n.String())
		}
	}
}

func classesOf(list []registryv1.EvidenceClass) (set registry.ClassSet, err error) {
	for _, c := range list {
		if c < registryv1.EvidenceClass_EVIDENCE_CLASS_PROBE || c > registryv1.EvidenceClass_EVIDENCE_CLASS_CALLERS {
			return 0, status.Field(status.InvalidField, "evidence_classes", "enum", "not one of probe, self, callers")
		}
		set = set.With(registry.EvidenceClass(c - 1))
	}
	if len(list) == 0 {
		set = set.With(registry.ClassProbe).With(registry.ClassSelf).With(registry.ClassCallers)
	}
	return set, nil
}

func sampleOf(s *Sample) *adminv1.Sample {
	out := &adminv1.Sample{
		Time: stamp(s.At), Service: s.Name.String(), EvidenceClass: registryv1.EvidenceClass(s.Class) + 1,
		Reporter: s.Reporter.String(), Detail: s.Detail, Count: max(s.Count, 1),
		Accepted: s.Refused == "", Reason: s.Refused, Zone: s.Zone,
	}
	if c := s.Calls; c != nil {
		out.Outcome = &adminv1.OutcomeSample{Issued: c.Issued, Ok: c.OK, Failed: c.Failed, Refused: c.Refused,
			InProgress: c.InProgress, Interval: durationpb.New(c.Interval), Kind: reporterKindOf(c.Kind)}
	}
	if s.UID != 0 {
		out.Uid = s.UID.String()
	}
	if s.Reporter.Addr.IsValid() {
		out.Address = s.Reporter.Addr.String()
	}
	return out
}
