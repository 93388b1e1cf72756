package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

func (a *app) serviceCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "service", Short: "Services of the registry"}
	cmd.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List services", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
					services, err := listAll(func(token string) ([]*registryv1.Service, string, error) {
						r, err := registryv1.NewRegistryServiceClient(conn).ListServices(ctx, &registryv1.ListServicesRequest{Namespace: a.namespace, PageToken: token})
						return r.GetServices(), r.GetNextPageToken(), err
					})
					if err != nil {
						return err
					}
					return a.printer().list(serviceListing(services))
				})
			},
		},
		&cobra.Command{
			Use: "describe NS/SVC", Short: "A service with its instances and their verdicts", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				namespace, name, err := a.splitService(args[0])
				if err != nil {
					return err
				}
				return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
					return a.describeService(ctx, conn, namespace, name)
				})
			},
		},
	)
	return cmd
}

// listAll follows page tokens to the end.
func listAll[T any](page func(token string) ([]T, string, error)) (all []T, err error) {
	for token := ""; ; {
		items, next, err := page(token)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if next == "" {
			return all, nil
		}
		token = next
	}
}

func serviceListing(services []*registryv1.Service) listing {
	l := listing{
		kind:    "ServiceList",
		columns: []string{"NAME", "PORTS", "DNS", "CONTRACT", "PROFILE", "SOURCE"},
		wide:    []string{"CONSUMES", "REVISION"},
		empty:   "no services: register some with `sightline apply -f FILE`, or start `sightline demo`",
	}
	for _, s := range services {
		name := s.GetNamespace() + "/" + s.GetName()
		exposed := "no"
		if s.GetExposure().GetDnsAnonymous() {
			exposed = "anonymous"
		}
		l.rows = append(l.rows, row{name: "service/" + name, item: s, cells: []string{
			name, portList(s.GetPorts()), exposed, s.GetContract(), s.GetProfile(), s.GetSource(),
			strings.Join(s.GetConsumes(), ","), fmt.Sprint(s.GetRevision()),
		}})
	}
	return l
}

func portList(ports []*registryv1.Port) string {
	var out []string
	for _, p := range ports {
		out = append(out, fmt.Sprintf("%s:%d/%s", p.GetName(), p.GetNumber(), lower(p.GetProtocol().String(), "PROTOCOL_")))
	}
	return strings.Join(out, ",")
}

func (a *app) describeService(ctx context.Context, conn *grpc.ClientConn, namespace, name string) error {
	svc, err := registryv1.NewRegistryServiceClient(conn).GetService(ctx, &registryv1.GetServiceRequest{Namespace: namespace, Name: name})
	if err != nil {
		return err
	}
	if a.format != "table" && a.format != "wide" {
		return a.printer().list(serviceListing([]*registryv1.Service{svc.GetService()}))
	}
	why, err := adminv1.NewAdminServiceClient(conn).Explain(ctx, &adminv1.ExplainRequest{Namespace: namespace, Name: name})
	if err != nil {
		return err
	}
	s, e := svc.GetService(), why.GetService()
	for _, l := range [][2]string{
		{"name", s.GetNamespace() + "/" + s.GetName()},
		{"host", s.GetName() + "." + s.GetNamespace()},
		{"ports", portList(s.GetPorts())},
		{"source", s.GetSource()},
		{"contract", cell(e.GetContract())},
		{"view", seqOf(e.GetEndpointVersion(), e.GetEndpointVersion())},
		{"confidence", lower(e.GetConfidence().String(), "CONFIDENCE_")},
		{"guard", guardLine(e)},
	} {
		fmt.Fprintf(a.out, "%-11s %s\n", l[0], l[1])
	}
	fmt.Fprintln(a.out)
	return a.printer().list(explanationListing(e))
}

func guardLine(e *adminv1.ServiceExplanation) string {
	g := e.GetGuard()
	state := "not tripped"
	if g.GetTripped() {
		state = "TRIPPED"
	}
	return fmt.Sprintf("%s: %d of %d serving, floor %d%%", state, g.GetServing(), g.GetMembers(), g.GetFloorPercent())
}

func explanationListing(e *adminv1.ServiceExplanation) listing {
	l := listing{
		kind:    "InstanceExplanationList",
		columns: []string{"NAME", "STATE", "MEMBER", "LISTED", "WEIGHT", "RULE", "DETAIL"},
		wide:    []string{"UID"},
		empty:   "no instances: nothing is registered for this service",
	}
	for _, i := range e.GetInstances() {
		name := i.GetLabel()
		if name == "" {
			name = i.GetUid()
		}
		l.rows = append(l.rows, row{name: e.GetNamespace() + "/" + e.GetName() + "/" + name, item: i, cells: []string{
			name, lower(i.GetState().String(), "STATE_"), fmt.Sprint(i.GetMember()), fmt.Sprint(i.GetListed()),
			fmt.Sprint(i.GetWeight()), i.GetRule(), i.GetDetail(), i.GetUid(),
		}})
	}
	return l
}

func (a *app) instanceCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "instance", Short: "Instances of the registry"}
	list := &cobra.Command{
		Use: "list [NS/SVC]", Short: "List instances", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, service := a.namespace, ""
			if len(args) == 1 {
				var err error
				if namespace, service, err = a.splitService(args[0]); err != nil {
					return err
				}
			}
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				instances, err := listAll(func(token string) ([]*registryv1.Instance, string, error) {
					r, err := registryv1.NewRegistryServiceClient(conn).ListInstances(ctx, &registryv1.ListInstancesRequest{Namespace: namespace, Service: service, PageToken: token})
					return r.GetInstances(), r.GetNextPageToken(), err
				})
				if err != nil {
					return err
				}
				return a.printer().list(instanceListing(instances))
			})
		},
	}
	describe := &cobra.Command{
		Use: "describe NS/SVC/INST", Short: "One instance: what is registered, the verdict, and why", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, service, instance, err := a.splitInstance(args[0])
			if err != nil {
				return err
			}
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				return a.describeInstance(ctx, conn, namespace, service, instance)
			})
		},
	}
	cmd.AddCommand(list, describe, a.registerCommand())
	return cmd
}

func instanceListing(instances []*registryv1.Instance) listing {
	l := listing{
		kind:    "InstanceList",
		columns: []string{"NAME", "UID", "ADDRESS", "ZONE", "WEIGHT", "LEASE", "PROOF", "SOURCE"},
		wide:    []string{"IDENTITY", "PROFILE", "REVISION"},
		empty:   "no instances: register some with `sightline apply -f FILE` or `sightline instance register`",
	}
	for _, i := range instances {
		name := instanceName(i)
		full := strings.TrimPrefix(name, "instance/")
		lease := "none"
		if d := i.GetLease(); d != nil && d.AsDuration() > 0 {
			lease = d.AsDuration().String()
		}
		l.rows = append(l.rows, row{name: name, item: i, cells: []string{
			full, i.GetUid(), instanceAddress(i), i.GetZone(), fmt.Sprint(i.GetWeight()), lease,
			lower(i.GetProof().String(), "PROOF_KIND_"), i.GetSource(), i.GetIdentity(), i.GetProfile(), fmt.Sprint(i.GetRevision()),
		}})
	}
	return l
}

func instanceAddress(i *registryv1.Instance) string {
	where := i.GetAddress() + i.GetHost() + i.GetUrl()
	var ports []string
	for _, p := range i.GetPorts() {
		ports = append(ports, p.GetName()+":"+strconv.Itoa(int(p.GetNumber())))
	}
	slices.Sort(ports)
	if len(ports) > 0 {
		where += "(" + strings.Join(ports, ",") + ")"
	}
	return where
}

func (a *app) describeInstance(ctx context.Context, conn *grpc.ClientConn, namespace, service, instance string) error {
	got, err := registryv1.NewRegistryServiceClient(conn).GetInstance(ctx, &registryv1.GetInstanceRequest{Namespace: namespace, Service: service, Instance: instance})
	if err != nil {
		return err
	}
	if a.format != "table" && a.format != "wide" {
		return a.printer().list(instanceListing([]*registryv1.Instance{got.GetInstance()}))
	}
	why, err := adminv1.NewAdminServiceClient(conn).Explain(ctx, &adminv1.ExplainRequest{Namespace: namespace, Name: service, Instance: got.GetInstance().GetUid()})
	if err != nil {
		return err
	}
	if err := a.printer().list(instanceListing([]*registryv1.Instance{got.GetInstance()})); err != nil {
		return err
	}
	for _, e := range why.GetService().GetInstances() {
		fmt.Fprintf(a.out, "\nverdict   %s by %s: %s\nguard     %s\n", lower(e.GetState().String(), "STATE_"), e.GetRule(), e.GetDetail(), guardLine(why.GetService()))
		for _, d := range e.GetDampers() {
			fmt.Fprintf(a.out, "held by   %s until %s: %s\n", lower(d.GetKind().String(), "DAMPER_KIND_"), d.GetEndTime().AsTime().Local().Format("15:04:05"), d.GetDetail())
		}
	}
	return nil
}
