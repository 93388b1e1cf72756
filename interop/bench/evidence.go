package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

const (
	ingestInstances = 133
	perReport       = 200 // samples: instances of two services
	ingestEvery     = 2 * time.Second
	// reportersEach is how many reporters speak of a service: 1.2 million samples
	// a second on 60,000 instances, each reporter every 2 s.
	reportersEach = 40
	// targetSamples is the load that cores are given for (DESIGN.md §1).
	targetSamples = 1.2e6
	// callsEach is how many calls a reporter makes to an instance in an interval,
	// on average.
	callsEach = 12
	// faultyEach and faultyShare: in every faultyEach-th service the first instance
	// fails that share of its calls.
	faultyEach  = 10
	faultyShare = 0.6
)

// ingest is one run: an estate, reporters, and what they have sent.
type ingest struct {
	r        *report
	srv      *sightline
	services int
	streams  int
	uids     [][]string // by service
	model    *exactModel
	dial     *dialer
	idle     usedBy

	samples atomic.Int64
	reports atomic.Int64
	mu      sync.Mutex
	failed  error
}

// evidenceIngest measures what callers' outcomes cost the real binary, from the
// socket to the verdict, and compares its verdicts with those of a slow model.
func evidenceIngest(ctx context.Context, s settings, r *report) error {
	m := &ingest{r: r, streams: 3000}
	lasts := time.Minute
	if s.short {
		m.streams, lasts = 300, 12*time.Second
	}
	if s.streams > 0 {
		m.streams = s.streams
	}
	// As many reporters speak of each instance as would in the whole estate, so
	// that the cost of a sample is the same.
	m.services = max(faultyEach, 2*m.streams/reportersEach)
	dir, err := os.MkdirTemp("", "sightline-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if m.srv, err = startSightline(ctx, dir, r); err != nil {
		return err
	}
	defer m.srv.end()
	if err := m.populate(ctx); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	if err := m.selfReports(running, &work); err != nil {
		return err
	}
	if err := m.admitted(ctx); err != nil {
		return err
	}
	if m.idle, err = m.window(ctx, lasts/4); err != nil {
		return err
	}
	m.model = newExactModel(m.services)
	reporting, end := context.WithCancel(running)
	defer end()
	if err := m.connect(reporting, &work); err != nil {
		return err
	}
	if _, err := m.window(ctx, 3*ingestEvery); err != nil { // everybody speaks
		return err
	}
	busy, err := m.window(ctx, lasts)
	if err != nil {
		return err
	}
	if err := m.publish(busy, lasts); err != nil {
		return err
	}
	if err := m.compare(ctx); err != nil {
		return err
	}
	end()
	if err := m.overLRS(ctx, lasts/2); err != nil {
		return err
	}
	return m.decodeAndApply(ctx)
}

// usedBy is what the server used, and was sent, within a window.
type usedBy struct {
	cpu     time.Duration
	samples int64
	reports int64
	took    time.Duration
}

func (m *ingest) window(ctx context.Context, lasts time.Duration) (usedBy, error) {
	cpu, err := processCPU(m.srv.cmd.Process.Pid)
	if err != nil {
		return usedBy{}, err
	}
	before := usedBy{cpu: cpu, samples: m.samples.Load(), reports: m.reports.Load()}
	began := time.Now()
	select {
	case <-time.After(lasts):
	case <-ctx.Done():
		return usedBy{}, ctx.Err()
	}
	took := time.Since(began)
	cpu, err = processCPU(m.srv.cmd.Process.Pid)
	m.mu.Lock()
	defer m.mu.Unlock()
	return usedBy{cpu: cpu - before.cpu, samples: m.samples.Load() - before.samples, reports: m.reports.Load() - before.reports, took: took},
		errors.Join(err, m.failed)
}

// publish prints the cost over the idle server's, scaled to the whole load.
func (m *ingest) publish(busy usedBy, lasts time.Duration) error {
	idle := m.idle
	want := float64(m.streams*perReport) * lasts.Seconds() / ingestEvery.Seconds()
	if float64(busy.samples) < 0.9*want {
		return fmt.Errorf("%d samples were sent in %s, %.0f were meant: the machine is too small for -streams %d", busy.samples, lasts, want, m.streams)
	}
	spent := busy.cpu - time.Duration(float64(idle.cpu)*float64(busy.took)/float64(idle.took))
	each := float64(spent.Nanoseconds()) / float64(busy.samples)
	m.r.say("%d reports and %d samples in %s cost %s over the idle server's %s a second", busy.reports, busy.samples,
		busy.took.Round(time.Millisecond), spent.Round(time.Millisecond), (idle.cpu / time.Duration(idle.took.Seconds()+0.5)).Round(time.Millisecond))
	m.r.alone("samples_per_second", "1", []float64{float64(busy.samples) / busy.took.Seconds()})
	m.r.alone("cpu_per_sample", "ns", []float64{each})
	m.r.alone("cpu_per_report", "us", []float64{float64(spent.Microseconds()) / float64(busy.reports)})
	m.r.alone("cores_at_1.2M", "cores", []float64{each * targetSamples / 1e9})
	return nil
}

// populate makes the estate: a profile that supplies the instance's own word and
// callers, and services whose instances a workload of the bench may speak for.
func (m *ingest) populate(ctx context.Context) error {
	put := []*registryv1.Change{
		{Change: &registryv1.Change_PutProfile{PutProfile: &registryv1.Profile{Namespace: namespace, Name: "callers",
			Supplies: []registryv1.EvidenceClass{registryv1.EvidenceClass_EVIDENCE_CLASS_SELF, registryv1.EvidenceClass_EVIDENCE_CLASS_CALLERS}}}},
		{Change: &registryv1.Change_PutContract{PutContract: &registryv1.Contract{Namespace: namespace, Name: "steady", Ramp: durationpb.New(0)}}},
	}
	for k := range m.services {
		name, contract := serviceName(k), "steady"
		if k%faultyEach == 0 {
			// Callers decide about a ramping member after some calls, about others
			// after a minute of them.
			contract = ""
		}
		put = append(put, &registryv1.Change{Change: &registryv1.Change_PutService{PutService: &registryv1.Service{
			Namespace: name.Namespace, Name: name.Service, Profile: "callers", Contract: contract,
			Ports: []*registryv1.Port{{Name: "http", Number: servicePort, Protocol: registryv1.Protocol_PROTOCOL_HTTP2}},
		}}})
		for number := 1; number <= ingestInstances; number++ {
			i := latencyInstance(number)
			i.Namespace, i.Service = name.Namespace, name.Service
			i.Identity = "spiffe://" + trustDomain + "/ns/" + namespace + "/sa/" + clientName(k%clientIdentities)
			i.Endpoint = &registryv1.Instance_Address{Address: addressOf(k*256 + number).String()}
			put = append(put, &registryv1.Change{Change: &registryv1.Change_PutInstance{PutInstance: i}})
		}
		if _, err := m.srv.api.Apply(ctx, &registryv1.ApplyRequest{Changes: put}); err != nil {
			return fmt.Errorf("service %s: %w", name, err)
		}
		put = put[:0]
		r, err := m.srv.api.ListInstances(ctx, &registryv1.ListInstancesRequest{Namespace: name.Namespace, Service: name.Service, PageSize: ingestInstances})
		if err != nil {
			return err
		}
		uids := make([]string, 0, ingestInstances)
		for _, i := range r.GetInstances() {
			uids = append(uids, i.GetUid())
		}
		m.uids = append(m.uids, uids)
	}
	m.r.say("%d services of %d instances are registered", m.services, ingestInstances)
	var err error
	m.dial, err = newDialer(m.srv.apiAddr, m.srv.identities)
	return err
}

// selfReports keeps every instance's own word fresh: it is part of the idle
// server's cost.
func (m *ingest) selfReports(ctx context.Context, work *sync.WaitGroup) error {
	for id := range min(clientIdentities, m.services) {
		bind := &healthv1.SelfBind{}
		batch := &healthv1.SelfBatch{}
		for k := id; k < m.services; k += clientIdentities {
			for _, uid := range m.uids[k] {
				batch.Instance = append(batch.Instance, uint32(len(bind.Instances))) //nolint:gosec // small
				batch.Status = append(batch.Status, healthv1.SelfStatus_SELF_STATUS_SERVING)
				bind.Instances = append(bind.Instances, uid)
			}
		}
		conn, err := m.dial.dial(id)
		if err != nil {
			return err
		}
		stream, err := healthv1.NewReportServiceClient(conn).ReportSelf(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Bind{Bind: bind}}); err != nil {
			return err
		}
		work.Go(func() {
			defer conn.Close()
			m.repeat(ctx, id, func() error {
				return stream.Send(&healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Batch{Batch: batch}})
			})
		})
	}
	return nil
}

// repeat calls do every interval, each n at its own phase, until the context ends.
func (m *ingest) repeat(ctx context.Context, n int, do func() error) {
	next := time.Now().Add(time.Duration(n%997) * ingestEvery / 997)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(next)):
		}
		if err := do(); err != nil && ctx.Err() == nil {
			m.fail(fmt.Errorf("reporter %d: %w", n, err))
			return
		}
		next = next.Add(ingestEvery)
	}
}

func (m *ingest) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed == nil {
		m.failed = err
	}
}

// admitted waits until every instance is a member.
func (m *ingest) admitted(ctx context.Context) error {
	admin := adminv1.NewAdminServiceClient(m.srv.conn)
	deadline := time.Now().Add(time.Minute)
	for k := 0; k < m.services; {
		name := serviceName(k)
		r, err := admin.Explain(ctx, &adminv1.ExplainRequest{Namespace: name.Namespace, Name: name.Service})
		if err != nil {
			return err
		}
		members := 0
		for _, i := range r.GetService().GetInstances() {
			if i.GetMember() {
				members++
			}
		}
		switch {
		case members == ingestInstances:
			k++
		case time.Now().After(deadline):
			return fmt.Errorf("%d of %d instances of %s are members after a minute", members, ingestInstances, name)
		default:
			time.Sleep(100 * time.Millisecond)
		}
	}
	return nil
}

// connect opens the reporters' streams and lets each report.
func (m *ingest) connect(ctx context.Context, work *sync.WaitGroup) error {
	for n := range m.streams {
		p, err := m.reporter(ctx, n)
		if err != nil {
			return fmt.Errorf("reporter %d: %w", n, err)
		}
		work.Go(func() {
			defer p.conn.Close()
			m.repeat(ctx, n, func() error { return p.send(m) })
		})
	}
	m.r.say("%d reporters are up, %d samples a report", m.streams, perReport)
	return nil
}

// reporter is one workload that calls two services.
type reporter struct {
	n        int
	rng      *rand.Rand
	conn     *grpc.ClientConn
	stream   grpc.ClientStreamingClient[healthv1.ReportOutcomesRequest, healthv1.ReportOutcomesResponse]
	services [2]int
	frame    *healthv1.ReportOutcomesRequest
	batch    *healthv1.OutcomeBatch
}

func (m *ingest) reporter(ctx context.Context, n int) (*reporter, error) {
	p := &reporter{n: n, rng: rand.New(rand.NewPCG(uint64(n), 7)), batch: &healthv1.OutcomeBatch{Interval: durationpb.New(ingestEvery)}} //nolint:gosec // traffic
	p.services = [2]int{2 * n % m.services, (2*n + 1) % m.services}
	p.frame = &healthv1.ReportOutcomesRequest{Frame: &healthv1.ReportOutcomesRequest_Batch{Batch: p.batch}}
	bind := &healthv1.OutcomeBind{}
	bind.Instances = append(append(bind.Instances, m.uids[p.services[0]]...), m.uids[p.services[1]][:perReport-ingestInstances]...)
	for k := range bind.Instances {
		p.batch.Instance = append(p.batch.Instance, uint32(k)) //nolint:gosec // small
	}
	p.batch.Issued, p.batch.Ok, p.batch.Failed = make([]uint32, perReport), make([]uint32, perReport), make([]uint32, perReport)
	var err error
	if p.conn, err = m.dial.dial(clientIdentities + n); err != nil {
		return nil, err
	}
	if p.stream, err = healthv1.NewReportServiceClient(p.conn).ReportOutcomes(ctx); err != nil {
		return nil, err
	}
	return p, p.stream.Send(&healthv1.ReportOutcomesRequest{Frame: &healthv1.ReportOutcomesRequest_Bind{Bind: bind}})
}

// send draws and sends one report, and tells the model.
func (p *reporter) send(m *ingest) error {
	for k := range p.batch.Instance {
		service, instance := p.services[0], k
		if k >= ingestInstances {
			service, instance = p.services[1], k-ingestInstances
		}
		calls := uint32(callsEach/2 + p.rng.IntN(callsEach+1)) //nolint:gosec // small
		failed := uint32(0)
		if service%faultyEach == 0 && instance == 0 {
			for range calls {
				if p.rng.Float64() < faultyShare {
					failed++
				}
			}
		} else if p.rng.IntN(200) == 0 {
			failed = 1
		}
		p.batch.Issued[k], p.batch.Ok[k], p.batch.Failed[k] = calls, calls-failed, failed
	}
	if err := p.stream.Send(p.frame); err != nil {
		if errors.Is(err, io.EOF) {
			_, err = p.stream.CloseAndRecv()
		}
		return err
	}
	m.samples.Add(perReport)
	m.reports.Add(1)
	m.model.hear(time.Now(), p)
	return nil
}

// compare holds the server's verdicts against the model's.
func (m *ingest) compare(ctx context.Context) error {
	differ, out := 0, 0
	for k := range m.services {
		name := serviceName(k)
		r, err := adminv1.NewAdminServiceClient(m.srv.conn).ListTransitions(ctx, &adminv1.ListTransitionsRequest{Namespace: name.Namespace, Name: name.Service, PageSize: 1000})
		if err != nil {
			return err
		}
		theirs := make(map[string]bool)
		for _, t := range r.GetTransitions() {
			if t.GetRule() == "R4" || t.GetFrom() == viewv1.State_STATE_ELIGIBLE && t.GetTo() != viewv1.State_STATE_ELIGIBLE {
				theirs[t.GetUid()] = true
			}
		}
		for i, uid := range m.uids[k] {
			ours := m.model.everOver(k, i)
			if ours {
				out++
			}
			if ours != theirs[uid] {
				differ++
				m.r.say("%s/%s: the model says over the line %t, the server took it out %t", name, uid, ours, theirs[uid])
			}
		}
	}
	m.r.alone("verdicts_out", "1", []float64{float64(out)})
	m.r.alone("verdicts_that_differ", "1", []float64{float64(differ)})
	if differ > 0 || out == 0 {
		return fmt.Errorf("%d verdicts differ from the model's, which took out %d", differ, out)
	}
	return nil
}

// processCPU reads what user and system time a process has used.
func processCPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(b), ") ") // the name may hold spaces
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on Linux
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick, errors.Join(err1, err2)
}
