package report

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
)

// probeStream is one stream of a prober's results; owned by its handler.
type probeStream struct {
	service *Service
	who     identity.Principal
	name    string // of the prober
	bound   []registry.UID
	budget  *rate.Limiter
	tally   *healthv1.Tally
	// Of the batch at hand; their memory is used again.
	judged    []judged
	byService map[registry.Name][]health.Sample
}

// proberName is the name that a prober's identity gives it.
func proberName(id identity.ID) (string, bool) {
	if id.Class() != identity.Prober {
		return "", false
	}
	return id.Path()[strings.LastIndexByte(id.Path(), '/')+1:], true
}

func notAProber(who identity.Principal) error {
	return status.New(status.ClassDenied, "%s is not a prober: its identity is not /sightline/prober/<name>", who).With("caller", who.String()).Err()
}

// ReportProbes takes a prober's results until the stream ends, and answers with
// what became of them. Every frame, an empty batch too, says that the prober is
// at work.
func (s *Service) ReportProbes(conn grpc.ClientStreamingServer[healthv1.ReportProbesRequest, healthv1.ReportProbesResponse]) error {
	who, leave, err := s.admit(conn.Context())
	if err != nil {
		return err
	}
	defer leave()
	name, ok := proberName(who.ID)
	if !ok {
		return notAProber(who)
	}
	st := &probeStream{service: s, who: who, name: name, tally: &healthv1.Tally{}, byService: make(map[registry.Name][]health.Sample),
		budget: rate.NewLimiter(rate.Limit(s.cfg.Limits.Rate), s.cfg.Limits.Burst)}
	if err := receive(s.cfg.Limits.MaxMessageBytes, conn.Recv, st.take); err != nil {
		return err
	}
	return conn.SendAndClose(&healthv1.ReportProbesResponse{Tally: st.tally})
}

func (st *probeStream) take(now time.Time, frame *healthv1.ReportProbesRequest, first bool) error {
	switch {
	case frame.GetBind() != nil:
		st.service.assignment.heard(now, st.name)
		return st.bind(frame.GetBind())
	case frame.GetBatch() == nil:
		return noFrame()
	case first:
		return bindFirst()
	}
	st.service.assignment.heard(now, st.name)
	return st.batch(now, frame.GetBatch())
}

// bind appends ids. Which of them the prober may speak of is asked at every
// result: assignments change.
func (st *probeStream) bind(b *healthv1.ProbeBind) error {
	limit := st.service.cfg.Limits.Targets
	if len(st.bound)+len(b.GetInstances()) > limit {
		return status.Limit("Reports.Targets", fmt.Sprintf("%d ids on one stream", limit))
	}
	for i, text := range b.GetInstances() {
		uid, err := registry.ParseUID(text)
		if err != nil {
			return status.Field(status.InvalidField, fmt.Sprintf("bind.instances[%d]", i), "uid", err.Error())
		}
		st.bound = append(st.bound, uid)
	}
	return nil
}

func (st *probeStream) batch(now time.Time, b *healthv1.ProbeBatch) error {
	if err := checkProbes(b); err != nil {
		return err
	}
	full := !st.budget.AllowN(now, 1)
	var prober health.Prober
	prober, st.judged = st.service.assignment.judge(now, st.name, st.bound, b.GetInstance(), st.judged[:0])
	var became [results]int
	for i := range b.GetInstance() {
		s := health.Sample{Class: registry.ClassProbe, Result: probeResult(b.GetResult()[i]), At: now, Prober: prober}
		var age time.Duration
		if len(b.GetAgeMillis()) > 0 {
			age = time.Duration(b.GetAgeMillis()[i]) * time.Millisecond
			s.At = now.Add(-age)
		}
		r, name := st.judged[i].result, st.judged[i].service
		s.UID = st.judged[i].uid
		switch {
		case st.judged[i].dialed && s.Result == health.ProbeWrongIdentity:
			// It is no evidence: it says why the address is not proved.
			r = Accepted
			st.service.assignment.meets(prober, s.UID, s.At)
		case r != Accepted:
		case age > staleAfter:
			r = Stale
		case full && !s.Urgent():
			r = Limited
		default:
			st.byService[name] = append(st.byService[name], s)
		}
		became[r]++
		st.show(name, &s, r)
	}
	for r, n := range became {
		if Result(r) == Unattributed { // which ids exist is not said
			st.service.hide(st.tally, registry.ClassProbe, Unattributed, n)
			continue
		}
		st.service.count(st.tally, registry.ClassProbe, Result(r), n)
	}
	for name, samples := range st.byService {
		if len(samples) > 0 {
			st.service.cfg.Submit(name, samples)
		}
		st.byService[name] = samples[:0]
	}
	st.dialedBack(b)
	return nil
}

func (st *probeStream) show(n registry.Name, s *health.Sample, r Result) {
	if tell := st.service.cfg.Events.Sample; tell != nil && s.UID != 0 {
		tell(st.who, n, s, r)
	}
}

// dialedBack tells of the addresses at which the registered identity was met.
func (st *probeStream) dialedBack(b *healthv1.ProbeBatch) {
	if st.service.cfg.Proved == nil {
		return
	}
	for _, at := range b.GetDialedBack() {
		if int(at) < len(st.bound) && st.service.assignment.dialsBack(st.name, st.bound[at]) {
			st.service.cfg.Proved(st.bound[at])
		}
	}
}

func checkProbes(b *healthv1.ProbeBatch) error {
	n := len(b.GetInstance())
	switch {
	case len(b.GetResult()) != n:
		return unequal("batch.result", n, len(b.GetResult()))
	case len(b.GetLatencyMicros()) != n && len(b.GetLatencyMicros()) > 0:
		return unequal("batch.latency_micros", n, len(b.GetLatencyMicros()))
	case len(b.GetAgeMillis()) != n && len(b.GetAgeMillis()) > 0:
		return unequal("batch.age_millis", n, len(b.GetAgeMillis()))
	}
	for i, r := range b.GetResult() {
		if probeResult(r) == health.NoResult {
			return status.Field(status.InvalidField, fmt.Sprintf("batch.result[%d]", i), "known-result",
				"not one of OK, FAILED, REFUSED, TIMEOUT, UNREACHABLE, WRONG_IDENTITY")
		}
	}
	return nil
}

func probeResult(r healthv1.ProbeResult) health.ProbeResult {
	switch r {
	case healthv1.ProbeResult_PROBE_RESULT_OK:
		return health.ProbeOK
	case healthv1.ProbeResult_PROBE_RESULT_FAILED:
		return health.ProbeFailed
	case healthv1.ProbeResult_PROBE_RESULT_REFUSED:
		return health.ProbeRefused
	case healthv1.ProbeResult_PROBE_RESULT_TIMEOUT:
		return health.ProbeTimeout
	case healthv1.ProbeResult_PROBE_RESULT_UNREACHABLE:
		return health.ProbeUnreachable
	case healthv1.ProbeResult_PROBE_RESULT_WRONG_IDENTITY:
		return health.ProbeWrongIdentity
	}
	return health.NoResult
}
