package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// Pauses between attempts to hold a registration, doubling from the first to
// the last, each with jitter.
const (
	reconnectMin = 250 * time.Millisecond
	reconnectMax = 5 * time.Second
)

// renewAtMost is the shortest time between two renewals.
const renewAtMost = time.Second

// errAway is a control plane that went away while an instance was held.
var errAway = errors.New("the control plane went away")

// holder keeps one instance registered.
type holder struct {
	app      *app
	conn     *grpc.ClientConn
	grace    time.Duration // after leaving, as draining
	instance *registryv1.Instance
	held     bool // it has been registered once
}

// hold keeps the instance registered until the context ends, then deregisters
// it. A refusal ends it at once, and so does a first attempt that fails; after
// that a control plane that is away is waited for.
func (h *holder) hold(ctx context.Context) error {
	pause := reconnectMin
	for {
		began := time.Now()
		err := h.once(ctx)
		switch {
		case err == nil:
			return nil
		case !h.held, !errors.Is(err, errAway):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%s could not be deregistered, its lease lapses instead: %w", instanceName(h.instance), err)
		}
		if time.Since(began) > reconnectMax {
			pause = reconnectMin
		}
		fmt.Fprintf(h.app.err, "%v; trying again\n", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
		pause = min(2*pause, reconnectMax)
	}
}

// once is one stream: register, renew, and deregister when the context ends.
func (h *holder) once(ctx context.Context) error {
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	// An answer that does not come is waited for no longer than any other.
	watch := time.AfterFunc(h.app.timeout, cancel)
	defer watch.Stop()
	stream, err := registryv1.NewRegistryServiceClient(h.conn).HoldInstance(streamCtx)
	if err != nil {
		return h.away(err)
	}
	ask := func(frame *registryv1.HoldInstanceRequest) (*registryv1.HoldInstanceResponse, error) {
		watch.Reset(h.app.timeout)
		_ = stream.Send(frame) // a failure's reason is in Recv
		answer, err := stream.Recv()
		watch.Stop()
		return answer, err
	}
	first, err := ask(&registryv1.HoldInstanceRequest{Frame: &registryv1.HoldInstanceRequest_Register{Register: h.instance}})
	if err != nil {
		return h.refused(err)
	}
	h.registered(first)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(max(first.GetLease().AsDuration()/3, renewAtMost)):
			if _, err := ask(&registryv1.HoldInstanceRequest{}); err != nil {
				return h.away(err)
			}
		}
	}
	if _, err := ask(&registryv1.HoldInstanceRequest{Frame: &registryv1.HoldInstanceRequest_Deregister{Deregister: durationpb.New(h.grace)}}); err != nil {
		return fmt.Errorf("%s could not be deregistered, its lease lapses instead: %w", instanceName(h.instance), err)
	}
	fmt.Fprintf(h.app.out, "%s deregistered\n", instanceName(h.instance))
	return nil
}

func (h *holder) registered(first *registryv1.HoldInstanceResponse) {
	uid := first.GetInstance().GetUid()
	word := "registered"
	if h.held && uid == h.instance.GetUid() {
		word = "held again"
	}
	h.held, h.instance.Uid = true, uid
	fmt.Fprintf(h.app.out, "%s %s as %s, lease %s\n", instanceName(h.instance), word, uid, first.GetLease().AsDuration())
}

// refused judges the answer to a registration. An incarnation that is gone
// makes place for a new one.
func (h *holder) refused(err error) error {
	if code := status.Code(err); h.instance.GetUid() != "" && code == codes.NotFound {
		err = fmt.Errorf("%w: %s is gone, its lease lapsed", errAway, h.instance.GetUid())
		h.instance.Uid = ""
		return err
	}
	return h.away(err)
}

// away tells a control plane that is not there from one that refuses.
func (h *holder) away(err error) error {
	code := status.Code(err)
	if !errors.Is(err, io.EOF) && code != codes.Unavailable && code != codes.Canceled {
		return err
	}
	if !h.held {
		if code == codes.Canceled { // by the watch
			return status.Errorf(codes.DeadlineExceeded, "no answer within %s", h.app.timeout)
		}
		return err
	}
	return fmt.Errorf("%w: %s", errAway, dialFailure(status.Convert(err).Message()))
}
