package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

func (a *app) resolveCommand() *cobra.Command {
	var via string
	cmd := &cobra.Command{
		Use: "resolve NS/SVC", Short: "What callers of a service are given, and why", Args: cobra.ExactArgs(1),
		Long: `Prints every member of a service's current view with its state, its weight and
the rule that decided. LISTED members are given to callers; the guard may list
members that are not eligible.

--via dns asks the DNS server instead, as an anonymous client: it only sees
services that are exposed to DNS, and its answers may be kept for 5 s.`,
		Example: "  sightline resolve shop/checkout\n  sightline resolve shop/checkout -o json\n  sightline resolve shop/checkout --via dns",
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, err := a.splitService(args[0])
			if err != nil {
				return err
			}
			switch via {
			case "dns":
				return a.resolveDNS(cmd.Context(), namespace, name)
			case "api":
				return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
					resp, err := resolvev1.NewResolveServiceClient(conn).Resolve(ctx, &resolvev1.ResolveRequest{Namespace: namespace, Name: name})
					if err != nil {
						return err
					}
					return a.printView(resp.GetView(), resp.GetHeadVersion())
				})
			}
			return usagef("--via %q is not one of api, dns", via)
		},
	}
	cmd.Flags().StringVar(&via, "via", "api", "which surface to ask: api or dns")
	return cmd
}

// printView shows a view: to people member by member, to machines as one item.
func (a *app) printView(v *viewv1.View, head string) error {
	service := v.GetNamespace() + "/" + v.GetName()
	l := memberListing(v)
	switch {
	case a.printer().human():
		fmt.Fprintf(a.out, "%s  view %s  config %s  confidence %s\n", service,
			seqOf(v.GetEndpointVersion(), head), seqOf(v.GetConfigVersion(), head), lower(v.GetConfidence().String(), "CONFIDENCE_"))
	case a.format != "name":
		l.kind, l.rows = "ViewList", []row{{name: service, item: v}}
	}
	return a.printer().list(l)
}

func memberListing(v *viewv1.View) listing {
	service := v.GetNamespace() + "/" + v.GetName()
	l := listing{
		kind:    "MemberList",
		columns: []string{"NAME", "ADDRESS", "ZONE", "STATE", "LISTED", "WEIGHT", "RULE", "SINCE"},
		wide:    []string{"UID", "IDENTITY", "DETAIL"},
		empty:   service + " has no members: nothing is registered for it, or nothing has been admitted yet. See: sightline service describe " + service,
	}
	now := time.Now()
	for _, m := range v.GetMembers() {
		name := shown(m.GetLabel(), m.GetUid())
		state := lower(m.GetState().String(), "STATE_")
		if m.GetDraining() {
			state += ",draining"
		}
		l.rows = append(l.rows, row{name: service + "/" + name, item: m, cells: []string{
			name, memberAddress(m), m.GetZone(), state, yesNo(m.GetListed()), fmt.Sprint(m.GetWeight()), m.GetEvidence().GetRule(),
			age(m.GetEvidence().GetSince().AsTime(), now), m.GetUid(), m.GetIdentity(), m.GetEvidence().GetDetail(),
		}})
	}
	if g := v.GetGuard(); g.GetTripped() {
		l.warnings = append(l.warnings, fmt.Sprintf("fraction guard: %d of %d serving is below %d%%, so all are listed",
			g.GetServing(), g.GetMembers(), g.GetFloorPercent()))
	}
	return l
}

func memberAddress(m *viewv1.Member) string {
	where := m.GetAddress()
	if where == "" {
		where = m.GetHost() + m.GetUrl()
	}
	if ports := m.GetPorts(); len(ports) > 0 && m.GetUrl() == "" {
		return net.JoinHostPort(where, fmt.Sprint(ports[0].GetNumber()))
	}
	return where
}

// resolveDNS asks the server of the context, as any DNS client would.
func (a *app) resolveDNS(ctx context.Context, namespace, name string) error {
	t, err := loadTarget(a.contextArg)
	if err != nil {
		return err
	}
	if t.DNS == "" || t.Zone == "" {
		return usagef("the context names no DNS server and zone: start `sightline dev`, or ask the server itself with dig")
	}
	resolver := net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, t.DNS)
	}}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	host := name + "." + namespace + ".svc." + strings.TrimSuffix(t.Zone, ".") + "."
	addresses, err := resolver.LookupHost(ctx, host)
	if err != nil {
		return dnsFailure(err, t.DNS, host, namespace+"/"+name)
	}
	l := listing{kind: "AddressList", columns: []string{"NAME", "ADDRESS"}}
	type answer struct {
		Name    string `json:"name"`
		Address string `json:"address"`
	}
	for _, address := range addresses {
		l.rows = append(l.rows, row{name: address, cells: []string{host, address}, item: answer{host, address}})
	}
	return a.printer().list(l)
}

// dnsFailure says what no answer means: plain DNS is anonymous, and what it may
// not see does not exist for it.
func dnsFailure(err error, server, host, service string) error {
	var e *net.DNSError
	switch {
	case !errors.As(err, &e):
		return fmt.Errorf("DNS at %s: %w", server, err)
	case e.IsNotFound:
		return &exitError{code: exitFailure, err: fmt.Errorf("DNS at %s has no address for %s", server, host),
			hint: "plain DNS is anonymous: does the service set exposure.dnsAnonymous, and does it have members? See: sightline service describe " + service}
	}
	why := e.Err[strings.LastIndex(e.Err, ": ")+1:]
	return &exitError{code: exitUnreachable, err: fmt.Errorf("DNS at %s does not answer for %s: %s", server, host, strings.TrimSpace(why)),
		hint: "look at: sightline status"}
}
