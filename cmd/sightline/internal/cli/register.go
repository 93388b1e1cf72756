package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

type registration struct {
	label, address, region, zone, profile, identity string
	ports                                           []string
	weight                                          uint32
	lease, grace                                    time.Duration
}

func (a *app) registerCommand() *cobra.Command {
	var r registration
	cmd := &cobra.Command{
		Use: "register NS/SVC", Short: "Register an instance and hold its lease until Ctrl-C", Args: cobra.ExactArgs(1),
		Long: `Registers an instance of a service and renews its lease for as long as the command
runs. When it ends the instance is deregistered; when it is killed the lease
lapses. The first contact has to succeed within --timeout; a control plane that
goes away later is waited for, and clients keep the instance meanwhile.`,
		Example: "  sightline instance register shop/checkout --address 10.0.0.7:8443 --zone a \\\n" +
			"    --identity spiffe://sightline.test/ns/shop/sa/checkout\n" +
			"  sightline instance register shop/checkout --address 10.0.0.7 --port grpc=8443 --label checkout-7",
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, service, err := a.splitService(args[0])
			if err != nil {
				return err
			}
			if r.address == "" {
				return usagef("where is the instance? Give --address IP, or --address IP:PORT")
			}
			return a.register(cmd.Context(), r, namespace, service)
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
	return cmd
}

// register makes the first contact within the timeout, and then holds.
func (a *app) register(ctx context.Context, r registration, namespace, service string) error {
	t, err := a.target()
	if err != nil {
		return err
	}
	conn, err := a.dial(t)
	if err != nil {
		return err
	}
	defer conn.Close()
	h := holder{app: a, conn: conn, grace: r.grace}
	first, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if h.instance, err = r.instance(first, conn, namespace, service); err != nil {
		return a.explain(err, conn, t)
	}
	if err := h.hold(ctx); err != nil {
		return a.explain(flagged(err, t.TrustDomain, h.instance), conn, t)
	}
	return nil
}

// flagged names the flag of a field that the server refused.
func flagged(err error, trustDomain string, i *registryv1.Instance) error {
	s, ok := status.FromError(err)
	if !ok || len(violations(s)) == 0 {
		return err
	}
	var problems []error
	hint := "see: sightline instance register --help"
	for _, v := range violations(s) {
		field, _, _ := strings.Cut(strings.TrimPrefix(v.GetField(), "register."), "[")
		if field == "ports" {
			field = "port" // a flag for each
		}
		problems = append(problems, fmt.Errorf("--%s: %s", field, v.GetDescription()))
		if field == "identity" && trustDomain != "" {
			hint = fmt.Sprintf("for example: --identity spiffe://%s/ns/%s/sa/%s", trustDomain, i.GetNamespace(), i.GetService())
		}
	}
	return &exitError{code: exitFailure, err: errors.Join(problems...), hint: hint}
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

// instanceName is the name that commands take and print.
func instanceName(i *registryv1.Instance) string {
	name := i.GetLabel()
	if name == "" {
		name = i.GetUid()
	}
	return "instance/" + i.GetNamespace() + "/" + i.GetService() + "/" + name
}
