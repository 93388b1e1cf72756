package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/status"
)

// Config is what a Service is made of. Lookup, Submit, SubmitOutcomes and Policy
// are required.
type Config struct {
	// Lookup finds a live instance, unadmitted ones included, without waiting.
	Lookup func(registry.UID) (*registry.Instance, bool)
	// Submit hands samples on one service's instances to its shard, SubmitOutcomes
	// one report of callers. Neither keeps what it is given.
	Submit         func(registry.Name, []health.Sample)
	SubmitOutcomes func(registry.Name, *health.Outcomes)
	// Policy is the resolution policy in force: who may resolve a service may
	// report how it fares with it.
	Policy func() *authz.Policy
	// Attested finds the identity of an instance for which an agent may speak.
	// Nil: agents have attested nobody.
	Attested func(agent identity.Principal, uid registry.UID) (identity.ID, bool)
	// Proved is told that a prober met an instance's registered identity at its
	// address. It must not wait. Nil: addresses are not proved this way.
	Proved func(registry.UID)
	// Member reports whether an instance is among the members that callers are
	// given. Nil: nobody is.
	Member func(registry.Name, registry.UID) bool

	// Epoch is that of this start (DESIGN.md §8): generations of assignments
	// grow over restarts by it.
	Epoch uint64
	// AnyAddress: targets on loopback, link-local and metadata addresses are
	// probed too (dev, demo).
	AnyAddress bool

	Limits limits.Reports // zero: the limits that ship
	Events Events
}

// Events report what happens; each may be nil.
type Events struct {
	// Samples: so many of a class became of this (accepted, unattributed, …).
	Samples func(class registry.EvidenceClass, r Result, n int)
	// Sample is told of each sample that has an instance, Outcomes of each part of
	// a report that is about one service, for whoever taps. They are called on
	// the stream's path; what they are given is the stream's again when they
	// return.
	Sample   func(who identity.Principal, n registry.Name, s *health.Sample, r Result)
	Outcomes func(who identity.Principal, n registry.Name, o *health.Outcomes, r Result)
	// Unattributed: a stream bound an id that its reporter may not speak of, or
	// for, by the rule given.
	Unattributed func(who identity.Principal, rule string)
	// OutOfScope: a caller reported on a service that it may not resolve.
	OutOfScope func(who identity.Principal, n registry.Name, rule string)
	// ProberCame and ProberWent say who is at work; probers is how many are.
	ProberCame func(p registry.Prober, probers int)
	ProberWent func(p registry.Prober, probers int)
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
	cfg        Config
	assignment *assignment

	mu      sync.Mutex
	streams map[identity.Principal]int // open, by reporter
}

// New returns the Service.
func New(cfg Config) *Service {
	if cfg.Limits == (limits.Reports{}) {
		cfg.Limits = limits.Default().Reports
	}
	return &Service{cfg: cfg, assignment: newAssignment(cfg), streams: make(map[identity.Principal]int)}
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

// unattributed tells that a reporter may not speak of, or for, what it bound.
func (s *Service) unattributed(who identity.Principal, rule string) {
	if s.cfg.Events.Unattributed != nil {
		s.cfg.Events.Unattributed(who, rule)
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
	s.tell(class, r, n)
}

// hide tells the metrics what became of samples, and the reporter only that
// they are out of its scope: it must not learn which ids exist.
func (s *Service) hide(t *healthv1.Tally, class registry.EvidenceClass, r Result, n int) {
	t.OutOfScope += uint64(n)
	s.tell(class, r, n)
}

func (s *Service) tell(class registry.EvidenceClass, r Result, n int) {
	if n > 0 && s.cfg.Events.Samples != nil {
		s.cfg.Events.Samples(class, r, n)
	}
}

// What is wrong with a frame, alike on every stream.

func tooLarge(limit, size int) error {
	return status.Limit("Reports.MaxMessageBytes", fmt.Sprintf("%d bytes: this frame has %d, split it", limit, size))
}

func noFrame() error {
	return status.Field(status.InvalidRequest, "frame", "oneof", "neither bind nor batch is given")
}

func bindFirst() error {
	return status.Field(status.InvalidRequest, "frame", "bind-first", "the first frame of a stream must bind ids")
}

func unequal(field string, instances, entries int) error {
	return status.Field(status.InvalidRequest, field, "equal-lengths", fmt.Sprintf("%d instances and %d entries", instances, entries))
}

// staleAfter is the age from which a sample counts for nothing: every class is
// silent by then, and what a reporter saved up over an outage must not speak
// (HEALTH.md §1, §2).
const staleAfter = 30 * time.Second

// receive hands a stream's frames to take, of which the first is told apart. It
// returns nil at the reporter's end of the stream, else what ended it.
func receive[F proto.Message](limit int, recv func() (F, error), take func(now time.Time, frame F, first bool) error) error {
	for first := true; ; first = false {
		frame, err := recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if size := proto.Size(frame); size > limit {
			return tooLarge(limit, size)
		}
		if err := take(time.Now(), frame, first); err != nil {
			return err
		}
	}
}
