package report

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/status"
)

// Config is what a Service is made of. Lookup and Submit are required.
type Config struct {
	// Lookup finds a live instance, unadmitted ones included, without waiting.
	Lookup func(registry.UID) (*registry.Instance, bool)
	// Submit hands samples on one service's instances to its shard.
	Submit func(registry.Name, []health.Sample)
	Limits limits.Reports // zero: the limits that ship
	Events Events
}

// Events report what happens; each may be nil.
type Events struct {
	// Samples: so many of a class became of this (accepted, unattributed, …).
	Samples func(class registry.EvidenceClass, r Result, n int)
	// Sample is told of each sample that has an instance, for whoever taps. It is
	// called on the stream's path and keeps none of it.
	Sample func(who identity.Principal, n registry.Name, s *health.Sample, r Result)
	// Unattributed: a stream bound an id that its reporter may not speak of, by
	// the rule given. At most once per stream and bind.
	Unattributed func(who identity.Principal, rule string)
}

// Result is what became of a sample.
type Result uint8

// The results.
const (
	Accepted     Result = iota
	Unattributed        // about an id that is not known, or not the reporter's
	OutOfScope          // about what the reporter may not speak on
	Stale               // too old to count
	Limited             // over the stream's rate
	results
)

var resultNames = [results]string{"accepted", "unattributed", "out_of_scope", "stale", "limited"}

// String is the result's name as a metric label.
func (r Result) String() string { return resultNames[r] }

// Service implements healthv1.ReportServiceServer.
type Service struct {
	healthv1.UnimplementedReportServiceServer
	cfg Config

	mu      sync.Mutex
	streams map[identity.Principal]int // open, by reporter
}

// New returns the Service.
func New(cfg Config) *Service {
	if cfg.Limits == (limits.Reports{}) {
		cfg.Limits = limits.Default().Reports
	}
	return &Service{cfg: cfg, streams: make(map[identity.Principal]int)}
}

// ReportProbes belongs to the prober, which this release does not have.
func (s *Service) ReportProbes(grpc.ClientStreamingServer[healthv1.ReportProbesRequest, healthv1.ReportProbesResponse]) error {
	return notOffered("ReportProbes")
}

// ReportOutcomes belongs to the evidence of callers, which this release does not take.
func (s *Service) ReportOutcomes(grpc.ClientStreamingServer[healthv1.ReportOutcomesRequest, healthv1.ReportOutcomesResponse]) error {
	return notOffered("ReportOutcomes")
}

// WatchAssignment belongs to the prober, which this release does not have.
func (s *Service) WatchAssignment(*healthv1.WatchAssignmentRequest, grpc.ServerStreamingServer[healthv1.WatchAssignmentResponse]) error {
	return notOffered("WatchAssignment")
}

func notOffered(method string) error {
	return status.Errorf(status.NotOffered, "%s is not part of this release: evidence is what instances say of themselves, and leases", method)
}

// admit counts a reporter's stream, or refuses it.
func (s *Service) admit(ctx context.Context) (who identity.Principal, leave func(), err error) {
	who, ok := svid.PrincipalFrom(ctx)
	if !ok {
		return who, nil, status.Errorf(status.NoIdentity, "a report needs a verified reporter")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[who] >= s.cfg.Limits.Streams {
		return who, nil, status.New(status.LimitExceeded, "%d report streams of %s from %s are open, the limit is %d",
			s.streams[who], who, who.Addr, s.cfg.Limits.Streams).With("limit", "Reports.Streams").Err()
	}
	s.streams[who]++
	return who, func() { s.leave(who) }, nil
}

func (s *Service) leave(who identity.Principal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[who]--; s.streams[who] == 0 {
		delete(s.streams, who)
	}
}

// count adds to a tally and tells the metrics.
func (s *Service) count(t *healthv1.Tally, class registry.EvidenceClass, r Result, n int) {
	if n == 0 {
		return
	}
	switch r {
	case Accepted:
		t.Accepted += uint64(n)
	case Unattributed:
		t.Unattributed += uint64(n)
	case OutOfScope:
		t.OutOfScope += uint64(n)
	case Stale:
		t.Stale += uint64(n)
	case Limited:
		t.Limited += uint64(n)
	}
	if s.cfg.Events.Samples != nil {
		s.cfg.Events.Samples(class, r, n)
	}
}

// staleAfter is the age from which a sample counts for nothing: every class is
// silent by then, and what a reporter saved up over an outage must not speak
// (HEALTH.md §1, §2).
const staleAfter = 30 * time.Second
