package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

const (
	reportEvery = time.Second
	retryEvery  = 300 * time.Millisecond
)

// instance is one running copy of a demo service: it answers health checks,
// holds its registration, and reports on itself.
type instance struct {
	part Part
	conn *grpc.ClientConn
	is   *behaviour
	uid  string // of the registration held; owned by keep

	mu  sync.Mutex
	enc *json.Encoder
}

// runInstance serves until standard input ends; its lines are commands to its
// behaviour. What it says about itself is a claim to the control plane: the
// calls are answered all the same.
func runInstance(ctx context.Context, p Part, in io.Reader, out io.Writer) error {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.Port))
	if err != nil {
		return fmt.Errorf("instance %s: %w", p.Label, err)
	}
	src, err := svid.FromFiles(p.Files, 0, svid.Events{})
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(p.API, grpc.WithTransportCredentials(src.ClientCredentials(svid.OurServer(src.TrustDomain()))))
	if err != nil {
		return err
	}
	defer conn.Close()
	i := &instance{part: p, conn: conn, is: newBehaviour(), enc: json.NewEncoder(out)}
	if p.State != "" {
		if err := i.is.obey(p.State); err != nil {
			return err
		}
	}

	srv := grpc.NewServer(grpc.UnaryInterceptor(i.is.intercept(p.Label)), grpc.StatsHandler(i.is))
	healthpb.RegisterHealthServer(srv, i.is.probes)
	reflection.Register(srv)
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work.Go(func() { _ = srv.Serve(l) })
	defer srv.Stop()
	work.Go(func() { i.keep(ctx) })
	work.Go(func() { i.is.count(ctx, p.Label, i.enc, &i.mu) })
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if err := i.is.obey(lines.Text()); err != nil {
			i.say("refused", err.Error())
		}
	}
	return nil
}

// keep holds the registration, over every absence of the control plane.
func (i *instance) keep(ctx context.Context) {
	for ctx.Err() == nil {
		if err := i.register(ctx); err != nil && ctx.Err() == nil {
			i.say("away", err.Error())
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryEvery):
		}
	}
}

// register opens the stream that holds the lease, renews it, and reports under
// the uid that it was given for as long as the stream lives. A stream that
// broke is followed by one for the same uid.
func (i *instance) register(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	term := i.part.Lease
	stream, err := registryv1.NewRegistryServiceClient(i.conn).HoldInstance(ctx)
	if err != nil {
		return err
	}
	_ = stream.Send(i.hold(term)) // a failure's reason is in Recv
	first, err := stream.Recv()
	if err != nil {
		if status.Code(err) == codes.NotFound {
			i.uid = "" // that incarnation is gone
		}
		return err
	}
	i.uid = first.GetInstance().GetUid()
	i.say("registered", i.uid)
	var reporting sync.WaitGroup
	defer reporting.Wait()
	defer cancel()
	uid := i.uid
	reporting.Go(func() { i.report(ctx, uid) })
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(term / 3):
		}
		_ = stream.Send(&registryv1.HoldInstanceRequest{})
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

// hold is the first frame of a stream.
func (i *instance) hold(term time.Duration) *registryv1.HoldInstanceRequest {
	return &registryv1.HoldInstanceRequest{Frame: &registryv1.HoldInstanceRequest_Register{Register: &registryv1.Instance{
		Uid: i.uid, Namespace: namespace, Service: i.part.Service, Label: i.part.Label, Zone: i.part.Zone,
		Endpoint: &registryv1.Instance_Address{Address: "127.0.0.1"},
		Ports:    []*registryv1.PortNumber{{Name: "grpc", Number: uint32(i.part.Port)}}, //nolint:gosec // a port
		Lease:    durationpb.New(term),
	}}}
}

// report says every second how the instance is, by its own word.
func (i *instance) report(ctx context.Context, uid string) {
	for ctx.Err() == nil {
		if err := i.reportStream(ctx, uid); err != nil && ctx.Err() == nil {
			i.say("report", err.Error())
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryEvery):
		}
	}
}

func (i *instance) reportStream(ctx context.Context, uid string) error {
	stream, err := healthv1.NewReportServiceClient(i.conn).ReportSelf(ctx)
	if err != nil {
		return err
	}
	frame := &healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Bind{Bind: &healthv1.SelfBind{Instances: []string{uid}, Dependencies: []string{database}}}}
	said := i.is.word()
	next := time.Now()
	poll := time.NewTicker(50 * time.Millisecond) // a changed mind is reported at once
	defer poll.Stop()
	for {
		if err := stream.Send(frame); err != nil {
			_, err = stream.CloseAndRecv()
			return err
		}
		for {
			if now := i.is.word(); now != said || time.Now().After(next) {
				said = now
				break
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-poll.C:
			}
		}
		next = time.Now().Add(reportEvery)
		batch := &healthv1.SelfBatch{Instance: []uint32{0}, Status: []healthv1.SelfStatus{said.status}}
		if said.degraded {
			batch.DegradedInstance, batch.DegradedDependency = []uint32{0}, []uint32{0}
		}
		frame = &healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Batch{Batch: batch}}
	}
}

func (i *instance) say(event, detail string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	_ = i.enc.Encode(Event{Instance: i.part.Label, Event: event, Detail: detail})
}
