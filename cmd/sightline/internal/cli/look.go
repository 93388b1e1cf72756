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

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "How the control plane is, on one screen", Args: cobra.NoArgs,
		Long: "Prints readiness, views, clients, guards and the store on one screen.\n\nExit code 0: all well; 3: nobody answered; 6: degraded (a guard holds, the store is read-only, clients reject views).",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, t target) error {
				resp, err := adminv1.NewAdminServiceClient(conn).GetStatus(ctx, &adminv1.GetStatusRequest{})
				if err != nil {
					return err
				}
				return a.printStatus(resp.GetStatus(), t)
			})
		},
	}
}

func (a *app) printStatus(s *adminv1.Status, t target) error {
	problems := problemsOf(s)
	if a.format != "table" && a.format != "wide" {
		if err := a.printer().list(listing{kind: "StatusList", rows: []row{{name: "status", item: s}}, warnings: problems}); err != nil {
			return err
		}
	} else {
		state := "ready"
		if !s.GetReady() {
			state = "NOT READY"
		}
		line := func(label, format string, args ...any) {
			fmt.Fprintf(a.out, "%-10s "+format+"\n", append([]any{label}, args...)...)
		}
		line("server", "%s  %s  version %s  up %s", t.API, state, s.GetVersion(), age(s.GetStartTime().AsTime(), time.Now()))
		line("region", "%s  zone %s", s.GetRegion(), cell(s.GetZone()))
		line("views", "%d services at view %s", s.GetServices(), seqOf(s.GetHeadVersion(), s.GetHeadVersion()))
		i := s.GetInstances()
		line("instances", "%d eligible, %d degraded, %d unknown, %d ineligible, %d draining, %d not admitted",
			i.GetEligible(), i.GetDegraded(), i.GetUnknown(), i.GetIneligible(), i.GetDraining(), i.GetUnadmitted())
		c := s.GetClients()
		line("clients", "%d connected, %d at head, %d behind, %d rejecting", c.GetConnected(), c.GetAtHead(), c.GetBehind(), c.GetNacked())
		line("store", "%s", lower(s.GetStore().GetState().String(), "STORE_STATE_"))
		for _, p := range problems {
			line("!", "%s", p)
		}
	}
	if len(problems) > 0 {
		return &exitError{code: exitDegraded, err: errors.New("")}
	}
	return nil
}

// problemsOf lists what makes a status degraded, each as a sentence that says where to look.
func problemsOf(s *adminv1.Status) (out []string) {
	for _, c := range s.GetChecks() {
		if !c.GetOk() {
			out = append(out, fmt.Sprintf("check %s: %s", c.GetName(), c.GetReason()))
		}
	}
	for _, g := range s.GetGuards() {
		out = append(out, fmt.Sprintf("guard: %s has %d of %d serving, below %d%%: all are listed. See: sightline resolve %s",
			g.GetService(), g.GetServing(), g.GetMembers(), g.GetFloorPercent(), g.GetService()))
	}
	if st := s.GetStore(); st.GetState() != adminv1.StoreState_STORE_STATE_OK {
		out = append(out, fmt.Sprintf("store is read-only since %s: %s. Views go on; registrations are refused", age(st.GetSince().AsTime(), time.Now()), st.GetReason()))
	}
	if n := s.GetClients().GetNacked(); n > 0 {
		out = append(out, fmt.Sprintf("%d clients reject what they were sent. See: sightline client list --nacked", n))
	}
	if sh := s.GetShed(); sh.GetActive() {
		out = append(out, "additions are being delayed: "+sh.GetReason())
	}
	return append(out, s.GetAlarms()...)
}

func (a *app) resolveCommand() *cobra.Command {
	var via string
	cmd := &cobra.Command{
		Use: "resolve NS/SVC", Short: "What callers of a service are given, and why", Args: cobra.ExactArgs(1),
		Long:    "Prints every member of a service's current view with its state, its weight and the rule that decided.\nLISTED members are given to callers; the guard may list members that are not eligible.\n\n--via dns asks the DNS server instead, as an anonymous client: it has a TTL of 5 s, and only sees services that are exposed to DNS.",
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

func (a *app) printView(v *viewv1.View, head string) error {
	l := listing{
		kind:    "MemberList",
		columns: []string{"NAME", "ADDRESS", "ZONE", "STATE", "LISTED", "WEIGHT", "RULE", "SINCE"},
		wide:    []string{"UID", "IDENTITY", "DETAIL"},
		empty:   fmt.Sprintf("%s/%s has no members: nothing is registered for it, or nothing has been admitted yet", v.GetNamespace(), v.GetName()),
	}
	now := time.Now()
	for _, m := range v.GetMembers() {
		name := m.GetLabel()
		if name == "" {
			name = m.GetUid()
		}
		listed := "no"
		if m.GetListed() {
			listed = "yes"
		}
		state := lower(m.GetState().String(), "STATE_")
		if m.GetDraining() {
			state += ",draining"
		}
		l.rows = append(l.rows, row{
			name: v.GetNamespace() + "/" + v.GetName() + "/" + name,
			item: m,
			cells: []string{
				name, memberAddress(m), m.GetZone(), state, listed, fmt.Sprint(m.GetWeight()), m.GetEvidence().GetRule(),
				age(m.GetEvidence().GetSince().AsTime(), now), m.GetUid(), m.GetIdentity(), m.GetEvidence().GetDetail(),
			},
		})
	}
	if g := v.GetGuard(); g.GetTripped() {
		l.warnings = append(l.warnings, fmt.Sprintf("fraction guard: %d of %d serving is below %d%%, so all are listed", g.GetServing(), g.GetMembers(), g.GetFloorPercent()))
	}
	switch a.format {
	case "table", "wide":
		fmt.Fprintf(a.out, "%s/%s  view %s  config %s  confidence %s\n", v.GetNamespace(), v.GetName(),
			seqOf(v.GetEndpointVersion(), head), seqOf(v.GetConfigVersion(), head), lower(v.GetConfidence().String(), "CONFIDENCE_"))
	case "json", "yaml":
		l.kind = "ViewList"
		l.rows = []row{{name: v.GetNamespace() + "/" + v.GetName(), item: v}}
	}
	return a.printer().list(l)
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
	t, err := a.target()
	if err != nil {
		return err
	}
	if t.DNS == "" || t.Zone == "" {
		return usagef("the context names no DNS server and zone")
	}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, t.DNS)
	}}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	host := name + "." + namespace + ".svc." + strings.TrimSuffix(t.Zone, ".") + "."
	addrs, err := resolver.LookupHost(ctx, host)
	if err != nil {
		return fmt.Errorf("DNS at %s: %w (plain DNS is anonymous: does the service set exposure.dnsAnonymous?)", t.DNS, err)
	}
	for _, addr := range addrs {
		fmt.Fprintln(a.out, addr)
	}
	return nil
}

func (a *app) clientCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "client", Short: "Who is connected, and what they hold"}
	var nacked, behind bool
	list := &cobra.Command{
		Use: "list", Short: "List connected clients with their sync state", Args: cobra.NoArgs,
		Long: "A column per resource type: - not asked, idle nothing to send, wait sent and unacknowledged, a version acknowledged, NACK rejected (the text is in -o wide).",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				resp, err := adminv1.NewAdminServiceClient(conn).ListClients(ctx, &adminv1.ListClientsRequest{Nacked: nacked, Behind: behind})
				if err != nil {
					return err
				}
				return a.printer().list(clientListing(resp.GetClients(), time.Now()))
			})
		},
	}
	list.Flags().BoolVar(&nacked, "nacked", false, "only clients that reject what they were sent")
	list.Flags().BoolVar(&behind, "behind", false, "only clients that do not hold the newest views")
	cmd.AddCommand(list)
	return cmd
}

func clientListing(clients []*adminv1.Client, now time.Time) listing {
	l := listing{
		kind:    "ClientList",
		columns: []string{"NODE", "KIND", "PROTO", "LDS", "RDS", "CDS", "EDS", "AGE"},
		wide:    []string{"PRINCIPAL", "ADDRESS", "NACK"},
		empty:   "no client is connected (or none that the flags ask for)",
	}
	protos := map[adminv1.ClientProtocol]string{
		adminv1.ClientProtocol_CLIENT_PROTOCOL_DELTA:              "delta",
		adminv1.ClientProtocol_CLIENT_PROTOCOL_STATE_OF_THE_WORLD: "sotw",
		adminv1.ClientProtocol_CLIENT_PROTOCOL_WATCH:              "watch",
	}
	for _, c := range clients {
		byType := map[adminv1.ResourceType]string{}
		nack := ""
		for _, ts := range c.GetTypes() {
			byType[ts.GetType()] = syncWord(ts)
			if ts.GetNackText() != "" {
				nack = ts.GetNackText()
			}
		}
		col := func(t adminv1.ResourceType) string {
			if s := byType[t]; s != "" {
				return s
			}
			return "-"
		}
		l.rows = append(l.rows, row{name: c.GetNodeId(), item: c, cells: []string{
			c.GetNodeId(), c.GetKind(), protos[c.GetProtocol()],
			col(adminv1.ResourceType_RESOURCE_TYPE_LISTENER), col(adminv1.ResourceType_RESOURCE_TYPE_ROUTE),
			col(adminv1.ResourceType_RESOURCE_TYPE_CLUSTER), col(adminv1.ResourceType_RESOURCE_TYPE_ENDPOINT),
			age(c.GetConnectedTime().AsTime(), now), c.GetPrincipal(), c.GetAddress(), nack,
		}})
	}
	return l
}

func syncWord(t *adminv1.TypeState) string {
	switch t.GetState() {
	case adminv1.SyncState_SYNC_STATE_NOTHING_TO_SEND:
		return "idle"
	case adminv1.SyncState_SYNC_STATE_UNACKED:
		return "wait"
	case adminv1.SyncState_SYNC_STATE_NACKED:
		return "NACK"
	case adminv1.SyncState_SYNC_STATE_ACKED:
		_, seq, _ := strings.Cut(t.GetAckedVersion(), ".")
		seq, _, _ = strings.Cut(seq, "-")
		return seq
	}
	return "-"
}
