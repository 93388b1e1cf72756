package registryapi

import (
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/identity"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
	"github.com/sightlinedev/sightline/server/status"
)

// methodHold is HoldInstance in audit records.
const methodHold = "HoldInstance"

type holdStream = grpc.BidiStreamingServer[registryv1.HoldInstanceRequest, registryv1.HoldInstanceResponse]

// HoldInstance registers an instance, or takes up again the one whose uid is
// given, and renews its lease with every frame. A stream that breaks says
// nothing: the lease runs on until it lapses. It is the instance that renews,
// not the open stream: a process that hangs sends no frame.
func (s *Server) HoldInstance(stream holdStream) error {
	who, err := s.caller(stream.Context())
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return ended(err)
	}
	if first.GetRegister() == nil {
		return status.Errorf(status.InvalidRequest, "the first frame of HoldInstance has to be register")
	}
	a := attemptInstance(who, methodHold, "register.", first.GetRegister(), false)
	i, err := s.register(stream.Context(), a, first.GetRegister())
	if err != nil {
		return err
	}
	answer := &registryv1.HoldInstanceResponse{Instance: wire.InstanceToProto(i), Lease: durationpb.New(i.Lease)}
	for {
		if err := stream.Send(answer); err != nil {
			return err
		}
		frame, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		switch frame.GetFrame().(type) {
		case nil:
			if answer, err = s.renewed(who, i.UID); err != nil {
				return err
			}
		case *registryv1.HoldInstanceRequest_Deregister:
			return s.letGo(stream, a, i.UID, frame)
		default:
			return status.Errorf(status.InvalidRequest, "HoldInstance takes one register frame, then empty ones, then deregister at most")
		}
	}
}

// renewed renews the lease of an instance that is still there.
func (s *Server) renewed(who identity.Principal, uid registry.UID) (*registryv1.HoldInstanceResponse, error) {
	i, ok := s.cfg.Writer.Lookup(uid)
	if !ok || s.own(who, i, ok, uid.String()) != nil {
		return nil, gone(uid)
	}
	s.cfg.Renew(i.Service, uid)
	return &registryv1.HoldInstanceResponse{Lease: durationpb.New(i.Lease)}, nil
}

// letGo deregisters the instance and ends the stream with one last answer.
func (s *Server) letGo(stream holdStream, a attempt, uid registry.UID, frame *registryv1.HoldInstanceRequest) error {
	i, ok := s.cfg.Writer.Lookup(uid) // its row may have changed since it registered
	if !ok {
		return gone(uid)
	}
	if _, err := s.remove(stream.Context(), a, i, frame.GetDeregister(), "deregister"); err != nil {
		return err
	}
	return stream.Send(&registryv1.HoldInstanceResponse{})
}

func gone(uid registry.UID) error {
	return status.Errorf(status.LeaseGone, "instance %s was removed: a newer one took its place, or it was deleted", uid)
}

// ended is how a stream whose client is done, or gone, ends.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
