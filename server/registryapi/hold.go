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
	i, term, err := s.register(stream.Context(), who, "HoldInstance", first.GetRegister(), false)
	if err != nil {
		return err
	}
	answer := &registryv1.HoldInstanceResponse{Instance: wire.InstanceToProto(i), Lease: durationpb.New(term)}
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
			return s.letGo(stream, who, i, frame)
		default:
			return status.Errorf(status.InvalidRequest, "HoldInstance takes one register frame, then empty ones, then deregister at most")
		}
	}
}

// renewed renews the lease of an instance that is still there.
func (s *Server) renewed(who identity.Principal, uid registry.UID) (*registryv1.HoldInstanceResponse, error) {
	i, ok := s.cfg.Writer.Lookup(uid)
	if !ok || s.own(who, i, ok, uid.String()) != nil {
		return nil, status.Errorf(status.LeaseGone, "instance %s was removed: a newer one took its place, or it was deleted", uid)
	}
	s.cfg.Renew(i.Service, uid)
	return &registryv1.HoldInstanceResponse{Lease: durationpb.New(i.Lease)}, nil
}

// letGo deregisters the instance and ends the stream with one last answer.
func (s *Server) letGo(stream holdStream, who identity.Principal, i *registry.Instance, frame *registryv1.HoldInstanceRequest) error {
	grace := frame.GetDeregister().AsDuration()
	if grace < 0 || grace > maxGrace {
		return status.Field(status.InvalidField, "deregister", wire.RuleRange, "0 to "+maxGrace.String())
	}
	if _, err := s.remove(stream.Context(), who, "HoldInstance", i, grace, false); err != nil {
		return err
	}
	return stream.Send(&registryv1.HoldInstanceResponse{})
}

// ended is how a stream whose client is done, or gone, ends.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
