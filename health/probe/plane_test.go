package probe_test

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

// WatchAssignment answers with the assignment as it is, and then with changes.
func (p *plane) WatchAssignment(r *healthv1.WatchAssignmentRequest, s grpc.ServerStreamingServer[healthv1.WatchAssignmentResponse]) error {
	p.mu.Lock()
	p.asked = append(p.asked, r)
	answer, down, cut := p.answer, p.down, p.cut
	for len(p.changed) > 0 {
		<-p.changed
	}
	p.mu.Unlock()
	if down {
		return status.Error(codes.Unavailable, "the plane is away")
	}
	if answer != nil {
		if err := s.Send(answer); err != nil {
			return err
		}
	}
	for {
		select {
		case <-s.Context().Done():
			return nil
		case <-cut:
			return status.Error(codes.Unavailable, "the plane went away")
		case c := <-p.changed:
			if err := s.Send(c); err != nil {
				return err
			}
		}
	}
}

// ReportProbes keeps every frame with its time.
func (p *plane) ReportProbes(s grpc.ClientStreamingServer[healthv1.ReportProbesRequest, healthv1.ReportProbesResponse]) error {
	p.mu.Lock()
	down, cut := p.down, p.cut
	n := len(p.streams)
	if !down {
		p.streams = append(p.streams, nil)
	}
	p.mu.Unlock()
	if down {
		return status.Error(codes.Unavailable, "the plane is away")
	}
	ended := make(chan error, 1)
	go func() {
		for {
			m, err := s.Recv()
			if err != nil {
				ended <- err
				return
			}
			p.mu.Lock()
			p.streams[n] = append(p.streams[n], frame{time.Now(), m})
			p.mu.Unlock()
		}
	}()
	select {
	case <-cut:
		return status.Error(codes.Unavailable, "the plane went away")
	case err := <-ended:
		if errors.Is(err, io.EOF) {
			return s.SendAndClose(&healthv1.ReportProbesResponse{Tally: &healthv1.Tally{Accepted: 7}})
		}
		return err
	}
}

// goAway ends every stream; away: and refuses new ones until comeBack.
func (p *plane) goAway(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = away
	close(p.cut)
	p.cut = make(chan struct{})
}

func (p *plane) comeBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

func (p *plane) watches() []*healthv1.WatchAssignmentRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*healthv1.WatchAssignmentRequest(nil), p.asked...)
}

// frames are those of every stream so far.
func (p *plane) frames() [][]frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([][]frame, len(p.streams))
	for i := range p.streams {
		out[i] = append([]frame(nil), p.streams[i]...)
	}
	return out
}

// heard is one result as the control plane reads it.
type heard struct {
	uid    string
	result healthv1.ProbeResult
	at     time.Time // of the outcome
	took   time.Duration
	stream int
}

// heard are all results, and dialled the uids whose dial-back worked; bad says
// what broke the rules of the stream.
func (p *plane) heard() (results []heard, dialled []string, bad []string) {
	for n, frames := range p.frames() {
		var bound []string
		for i, f := range frames {
			if b := f.m.GetBind(); b != nil {
				bound = append(bound, b.GetInstances()...)
				continue
			}
			b := f.m.GetBatch()
			k := len(b.GetInstance())
			if i == 0 || len(b.GetResult()) != k || len(b.GetLatencyMicros()) != k || len(b.GetAgeMillis()) != k {
				bad = append(bad, "a batch before the bind, or with columns of different lengths")
				continue
			}
			for j, at := range b.GetInstance() {
				if int(at) >= len(bound) {
					bad = append(bad, "a result about an id that is not bound")
					continue
				}
				results = append(results, heard{bound[at], b.GetResult()[j], f.at.Add(-time.Duration(b.GetAgeMillis()[j]) * time.Millisecond),
					time.Duration(b.GetLatencyMicros()[j]) * time.Microsecond, n})
			}
			for _, at := range b.GetDialedBack() {
				if int(at) >= len(bound) {
					bad = append(bad, "a dial-back of an id that is not bound")
					continue
				}
				dialled = append(dialled, bound[at])
			}
		}
	}
	return results, dialled, bad
}

func sizeOf(m proto.Message) int { return proto.Size(m) }
