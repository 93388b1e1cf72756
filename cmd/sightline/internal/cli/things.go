package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

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
					l := serviceListing(services)
					if a.namespace != "" {
						l.empty = "no services in namespace " + a.namespace + " (or none that you may see)"
					}
					return a.printer().list(l)
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
		empty:   "no services: declare some with `sightline apply -f FILE`, or start `sightline demo`",
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
				l := instanceListing(instances)
				if service != "" {
					l.empty = "no instances of " + namespace + "/" + service + ": none is registered, or there is no such service that you may see"
				} else if namespace != "" {
					l.empty = "no instances in namespace " + namespace + " (or none that you may see)"
				}
				return a.printer().list(l)
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
		empty:   "no instances: declare some with `sightline apply -f FILE`, or hold one with `sightline instance register`",
	}
	for _, i := range instances {
		name := instanceName(i)
		full := strings.TrimPrefix(name, "instance/")
		l.rows = append(l.rows, row{name: name, item: i, cells: []string{
			full, i.GetUid(), instanceAddress(i), i.GetZone(), fmt.Sprint(i.GetWeight()), leaseOf(i),
			lower(i.GetProof().String(), "PROOF_KIND_"), i.GetSource(), i.GetIdentity(), i.GetProfile(), fmt.Sprint(i.GetRevision()),
		}})
	}
	return l
}

// leaseOf is the lease that keeps an instance; declared ones have none.
func leaseOf(i *registryv1.Instance) string {
	if d := i.GetLease().AsDuration(); d > 0 {
		return d.String()
	}
	return "none"
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
