package report_test

import (
	"context"
	"io"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

// codec is the one that the server's option sets; a test stream decodes with it
// what a client encoded with the ordinary one.
type codec interface {
	Unmarshal(mem.BufferSlice, any) error
}

func encoded(m proto.Message) mem.BufferSlice {
	b, err := encoding.GetCodecV2(grpcproto.Name).Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

func caller(who identity.ID, addr string) context.Context {
	return svid.WithPrincipal(context.Background(), identity.Principal{ID: who, Addr: netip.MustParseAddr(addr)})
}

// outcomeStream feeds frames to ReportOutcomes; a func frame runs between two.
type outcomeStream struct {
	grpc.ServerStream
	ctx    context.Context
	codec  codec
	frames []any
	tally  *healthv1.Tally
}

func (s *outcomeStream) Context() context.Context { return s.ctx }

func (s *outcomeStream) Recv() (*healthv1.ReportOutcomesRequest, error) { panic("not the way in") }

func (s *outcomeStream) RecvMsg(m any) error {
	for len(s.frames) > 0 {
		f := s.frames[0]
		s.frames = s.frames[1:]
		req := &healthv1.ReportOutcomesRequest{}
		switch f := f.(type) {
		case func():
			f()
			continue
		case *healthv1.OutcomeBind:
			req.Frame = &healthv1.ReportOutcomesRequest_Bind{Bind: f}
		case *healthv1.OutcomeBatch:
			req.Frame = &healthv1.ReportOutcomesRequest_Batch{Batch: f}
		}
		return s.codec.Unmarshal(encoded(req), m)
	}
	return io.EOF
}

func (s *outcomeStream) SendAndClose(r *healthv1.ReportOutcomesResponse) error {
	s.tally = r.GetTally()
	return nil
}

// probeStream feeds frames to ReportProbes.
type probeStream struct {
	grpc.ServerStream
	ctx    context.Context
	frames []any
	tally  *healthv1.Tally
}

func (s *probeStream) Context() context.Context { return s.ctx }

func (s *probeStream) Recv() (*healthv1.ReportProbesRequest, error) {
	for len(s.frames) > 0 {
		f := s.frames[0]
		s.frames = s.frames[1:]
		switch f := f.(type) {
		case func():
			f()
		case *healthv1.ProbeBind:
			return &healthv1.ReportProbesRequest{Frame: &healthv1.ReportProbesRequest_Bind{Bind: f}}, nil
		case *healthv1.ProbeBatch:
			return &healthv1.ReportProbesRequest{Frame: &healthv1.ReportProbesRequest_Batch{Batch: f}}, nil
		case nil:
			return &healthv1.ReportProbesRequest{}, nil
		}
	}
	return nil, io.EOF
}

func (s *probeStream) SendAndClose(r *healthv1.ReportProbesResponse) error {
	s.tally = r.GetTally()
	return nil
}

// assignmentStream collects what a prober is told.
type assignmentStream struct {
	grpc.ServerStream
	ctx  context.Context
	send func(*healthv1.WatchAssignmentResponse)
}

func (s *assignmentStream) Context() context.Context { return s.ctx }

func (s *assignmentStream) Send(r *healthv1.WatchAssignmentResponse) error {
	s.send(r)
	return nil
}
