package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

const (
	// reconnect bounds the pauses between attempts to hold a registration.
	reconnectMin = 250 * time.Millisecond
	reconnectMax = 5 * time.Second
)

type registration struct {
	label, address, host, region, zone, profile, identity string
	ports                                                 []string
	weight                                                uint32
	lease, grace                                          time.Duration
}

func (a *app) registerCommand() *cobra.Command {
	var r registration
	cmd := &cobra.Command{
		Use: "register NS/SVC", Short: "Register an instance and hold its lease until Ctrl-C", Args: cobra.ExactArgs(1),
		Long: "Registers an instance of a service and renews its lease for as long as the command runs.\nWhen it ends the instance is deregistered; when it is killed the lease lapses.\nA control plane that goes away is waited for: clients keep the instance meanwhile.",
		Example: "  sightline instance register shop/checkout --address 10.0.0.7:8443 --zone a\n" +
			"  sightline instance register shop/checkout --address 10.0.0.7 --port grpc=8443 --label checkout-7",
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, service, err := a.splitService(args[0])
			if err != nil {
				return err
			}
			t, err := a.target()
			if err != nil {
				return err
			}
			conn, err := a.dial(t)
			if err != nil {
				return err
			}
			defer conn.Close()
			i, err := r.instance(cmd.Context(), conn, namespace, service)
			if err != nil {
				return a.explain(err, t)
			}
			return a.hold(cmd.Context(), conn, i, r.grace)
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.address, "address", "", "IP, or ip:port for the service's default port (required)")
	f.StringArrayVar(&r.ports, "port", nil, "NAME=NUMBER: the instance's own number of a port (repeatable)")
	f.StringVar(&r.label, "label", "", "name within the service; without one the uid is the name")
	f.StringVar(&r.identity, "identity", "", "SPIFFE ID that the instance serves with (default: the caller's)")
	f.StringVar(&r.region, "region", "", "region label")
	f.StringVar(&r.zone, "zone", "", "zone label")
	f.StringVar(&r.profile, "profile", "", "capability profile (default: the service's)")
	f.Uint32Var(&r.weight, "weight", 100, "base weight, 1..1000")
	f.DurationVar(&r.lease, "lease", 0, "lease, 5s..10m (default: the contract's)")
	f.DurationVar(&r.grace, "grace", 0, "keep the row this long after leaving, as draining")
	_ = cmd.MarkFlagRequired("address")
	return cmd
}

// instance builds the registration. The port of --address belongs to the
// service's default port, whose name only the registry knows.
func (r registration) instance(ctx context.Context, conn *grpc.ClientConn, namespace, service string) (*registryv1.Instance, error) {
	i := &registryv1.Instance{
		Namespace: namespace, Service: service, Label: r.label, Region: r.region, Zone: r.zone,
		Profile: r.profile, Identity: r.identity, Weight: &r.weight,
	}
	if r.lease > 0 {
		i.Lease = durationpb.New(r.lease)
	}
	host, port, err := net.SplitHostPort(r.address)
	if err != nil {
		host, port = r.address, ""
	}
	i.Endpoint = &registryv1.Instance_Address{Address: host}
	for _, p := range r.ports {
		name, number, _ := strings.Cut(p, "=")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || name == "" {
			return nil, usagef("--port %q: write NAME=NUMBER", p)
		}
		i.Ports = append(i.Ports, &registryv1.PortNumber{Name: name, Number: uint32(n)})
	}
	if port == "" {
		return i, nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, usagef("--address %q: the port is not a number from 1 to 65535", r.address)
	}
	svc, err := registryv1.NewRegistryServiceClient(conn).GetService(ctx, &registryv1.GetServiceRequest{Namespace: namespace, Name: service})
	if err != nil {
		return nil, err
	}
	if ports := svc.GetService().GetPorts(); len(ports) > 0 {
		i.Ports = append(i.Ports, &registryv1.PortNumber{Name: ports[0].GetName(), Number: uint32(n)})
	}
	return i, nil
}

// hold keeps the instance registered until the context ends, then deregisters
// it. A refusal ends it at once; a control plane that is away is waited for.
func (a *app) hold(ctx context.Context, conn *grpc.ClientConn, i *registryv1.Instance, grace time.Duration) error {
	pause := reconnectMin
	for {
		began := time.Now()
		err := a.holdOnce(ctx, conn, i, grace)
		switch s := status.Code(err); {
		case ctx.Err() != nil:
			return err
		case s != codes.Unavailable && s != codes.OK && !errors.Is(err, io.EOF):
			return err
		}
		if time.Since(began) > reconnectMax {
			pause = reconnectMin
		}
		fmt.Fprintf(a.err, "the control plane is away (%v); trying again\n", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
		pause = min(2*pause, reconnectMax)
	}
}

// holdOnce is one stream: register, wait, and deregister if we are the one who ends it.
func (a *app) holdOnce(ctx context.Context, conn *grpc.ClientConn, i *registryv1.Instance, grace time.Duration) error {
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stream, err := registryv1.NewRegistryServiceClient(conn).HoldInstance(streamCtx)
	if err != nil {
		return err
	}
	_ = stream.Send(&registryv1.HoldInstanceRequest{Frame: &registryv1.HoldInstanceRequest_Register{Register: i}}) // a failure's reason is in Recv
	first, err := stream.Recv()
	if err != nil {
		if status.Code(err) == codes.NotFound && i.GetUid() != "" {
			i.Uid = "" // that incarnation is gone: the next attempt is a new one
			return status.Error(codes.Unavailable, err.Error())
		}
		return err
	}
	i.Uid = first.GetInstance().GetUid()
	name := instanceName(first.GetInstance())
	fmt.Fprintf(a.out, "%s registered as %s, lease %s\n", name, i.GetUid(), first.GetLease().AsDuration())
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(first.GetLease().AsDuration() / 3):
			_ = stream.Send(&registryv1.HoldInstanceRequest{})
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
	}
	_ = stream.Send(&registryv1.HoldInstanceRequest{Frame: &registryv1.HoldInstanceRequest_Deregister{Deregister: durationpb.New(grace)}})
	leaving := time.AfterFunc(a.timeout, cancel)
	defer leaving.Stop()
	if _, err := stream.Recv(); err != nil {
		return fmt.Errorf("%s could not be deregistered, its lease lapses instead: %w", name, err)
	}
	fmt.Fprintf(a.out, "%s deregistered\n", name)
	return nil
}

// instanceName is the name that commands take and print.
func instanceName(i *registryv1.Instance) string {
	name := i.GetLabel()
	if name == "" {
		name = i.GetUid()
	}
	return "instance/" + i.GetNamespace() + "/" + i.GetService() + "/" + name
}
