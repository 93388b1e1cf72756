package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"google.golang.org/grpc"

	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

const (
	// batchEvery is the time from one batch to the next while there are results,
	// at least; up to twice that, by jitter.
	batchEvery = 250 * time.Millisecond
	// newsEvery is the least time between batches when a result is news: a
	// refused connection is published within a second of it (HEALTH.md, R3).
	newsEvery = 100 * time.Millisecond
	// batchAtLeast is when an empty batch is sent: a stream that is silent for
	// 10 s loses its targets (HEALTH.md §2, which asks for one every 2 s).
	batchAtLeast = 1800 * time.Millisecond
	// sendTimeout ends a stream whose peer takes nothing.
	sendTimeout = 5 * time.Second
	// Entries of one frame, so that it stays under the 64 KiB of a report.
	bindEntries, batchEntries = 1500, 3000
)

// report keeps the report stream open until ctx ends.
func (p *Prober) report(ctx context.Context) {
	link := p.newLink(Reports)
	for ctx.Err() == nil {
		err := p.stream(ctx, link)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errReplaced):
			continue
		}
		link.lost(err)
		p.counts.lost(Reports)
		if !sleep(ctx, link.pause(p.cfg.Limits.MaxBackOff)) {
			return
		}
	}
}

// errReplaced ends a stream that has bound too many ids for another one.
var errReplaced = errors.New("the stream has bound as many ids as one may")

// reportStream is one life of the stream. The reporter owns it.
type reportStream struct {
	grpc.ClientStreamingClient[healthv1.ReportProbesRequest, healthv1.ReportProbesResponse]
	cancel context.CancelFunc
	bound  map[string]uint32 // position by uid
}

// stream reports until the stream breaks or is full.
func (p *Prober) stream(ctx context.Context, link *link) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client, err := p.cfg.Client.ReportProbes(ctx)
	if err != nil {
		return err
	}
	s := &reportStream{ClientStreamingClient: client, cancel: cancel, bound: make(map[string]uint32)}
	_, uids := p.board.assignment()
	if err := s.bind(uids, true); err != nil {
		return p.ended(s, err)
	}
	for {
		// Also before the first batch: where the stream is refused that is known
		// by then, and the results are kept for the next one.
		if !p.waitForResults(ctx) {
			return p.ended(s, ctx.Err())
		}
		if err := p.sendBatches(s); err != nil {
			return p.ended(s, err)
		}
		link.works()
		if _, uids := p.board.assignment(); len(s.bound) > max(p.cfg.Limits.Bound/2, 2*len(uids)) {
			return p.ended(s, errReplaced)
		}
	}
}

// waitForResults returns when the next batch is to be sent; false when ctx
// ended first.
func (p *Prober) waitForResults(ctx context.Context) bool {
	if !sleep(ctx, newsEvery) {
		return false
	}
	next := time.NewTimer(batchEvery + jitter(batchEvery) - newsEvery)
	defer next.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-p.board.hurry:
		return true
	case <-next.C:
	}
	idle := time.NewTimer(batchAtLeast - 2*batchEvery - jitter(batchEvery))
	defer idle.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-p.board.woken: // also where one is news
	case <-idle.C:
	}
	return true
}

// sendBatches sends what waits, in one batch or more; at least an empty one.
func (p *Prober) sendBatches(s *reportStream) error {
	generation, results := p.board.takeFresh(time.Now(), p.cfg.Limits.MaxAge)
	for first := true; first || len(results) > 0; first = false {
		part := results[:min(len(results), batchEntries)]
		err := s.bindNew(part)
		if err == nil && len(s.bound) > p.cfg.Limits.Bound {
			err = errReplaced
		}
		if err == nil {
			err = s.send(&healthv1.ReportProbesRequest{Frame: &healthv1.ReportProbesRequest_Batch{
				Batch: s.batch(time.Now(), generation, part)}})
		}
		if err != nil {
			p.board.back(results) // age decides whether they are sent later
			return err
		}
		p.counts.sent.Add(int64(len(part)))
		results = results[len(part):]
	}
	return nil
}

// batch writes results as columns.
func (s *reportStream) batch(now time.Time, generation uint64, results []Result) *healthv1.ProbeBatch {
	b := &healthv1.ProbeBatch{Generation: generation}
	for i := range results {
		r := &results[i]
		at := s.bound[r.UID]
		if r.Kind == DialBack && r.Outcome == OK {
			b.DialedBack = append(b.DialedBack, at) // says who answers, not that it serves
			continue
		}
		b.Instance = append(b.Instance, at)
		b.Result = append(b.Result, outcomes[r.Outcome].wire)
		b.LatencyMicros = append(b.LatencyMicros, clamp(r.Latency.Microseconds()))
		b.AgeMillis = append(b.AgeMillis, clamp(now.Sub(r.At).Milliseconds()))
	}
	return b
}

func clamp(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

// bindNew binds the ids of results that this stream does not know yet.
func (s *reportStream) bindNew(results []Result) error {
	var uids []string
	fresh := make(map[string]bool)
	for i := range results {
		uid := results[i].UID
		if _, ok := s.bound[uid]; !ok && !fresh[uid] {
			fresh[uid] = true
			uids = append(uids, uid)
		}
	}
	return s.bind(uids, false)
}

// bind appends ids. The first frame of a stream is a bind, also an empty one.
func (s *reportStream) bind(uids []string, first bool) error {
	for ; first || len(uids) > 0; first = false {
		part := uids[:min(len(uids), bindEntries)]
		frame := &healthv1.ReportProbesRequest{Frame: &healthv1.ReportProbesRequest_Bind{
			Bind: &healthv1.ProbeBind{Instances: part}}}
		if err := s.send(frame); err != nil {
			return err
		}
		for _, uid := range part {
			s.bound[uid] = uint32(len(s.bound))
		}
		uids = uids[len(part):]
	}
	return nil
}

// send sends a frame, or ends the stream where the peer takes nothing.
func (s *reportStream) send(f *healthv1.ReportProbesRequest) error {
	watchdog := time.AfterFunc(sendTimeout, s.cancel)
	defer watchdog.Stop()
	return s.Send(f)
}

// ended closes a stream and says why it ended: where the control plane ended
// it, that is in its answer.
func (p *Prober) ended(s *reportStream, err error) error {
	watchdog := time.AfterFunc(sendTimeout, s.cancel)
	defer watchdog.Stop()
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, errReplaced) && !errors.Is(err, context.Canceled) {
		return err
	}
	answer, closed := s.CloseAndRecv()
	switch {
	case closed == nil:
		if told := p.cfg.Events.Ended; told != nil {
			told(answer.GetTally())
		}
		if errors.Is(err, io.EOF) {
			return errEnded
		}
	case errors.Is(err, io.EOF):
		return closed
	case errors.Is(err, errReplaced):
		return fmt.Errorf("%w, and it did not end in order: %w", errEnded, closed)
	}
	return err
}
