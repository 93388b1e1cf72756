package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
)

func (a *app) clientCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "client", Short: "Who is connected, and what they hold"}
	var nacked, behind bool
	var service string
	list := &cobra.Command{
		Use: "list", Short: "List connected clients with their sync state", Args: cobra.NoArgs,
		Long: `A column per resource type:
  -          not asked for
  idle       asked for, and there is nothing to send
  wait(3s)   sent 3 s ago and not acknowledged yet
  118        this version is acknowledged
  NACK(2m)   refused 2 minutes ago; the client's words are in -o wide`,
		Example: "  sightline client list\n  sightline client list --nacked -o wide\n  sightline client list --service shop/checkout --behind",
		RunE: func(cmd *cobra.Command, _ []string) error {
			req := &adminv1.ListClientsRequest{Nacked: nacked, Behind: behind}
			if service != "" {
				namespace, name, err := a.splitService(service)
				if err != nil {
					return err
				}
				req.Service = namespace + "/" + name
			}
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				clients, err := listAll(func(token string) ([]*adminv1.Client, string, error) {
					req.PageToken = token
					r, err := adminv1.NewAdminServiceClient(conn).ListClients(ctx, req)
					return r.GetClients(), r.GetNextPageToken(), err
				})
				if err != nil {
					return err
				}
				l := clientListing(clients, time.Now())
				l.empty = noClients(req)
				return a.printer().list(l)
			})
		},
	}
	list.Flags().BoolVar(&nacked, "nacked", false, "only clients that reject what they were sent")
	list.Flags().BoolVar(&behind, "behind", false, "only clients that do not hold the newest views")
	list.Flags().StringVar(&service, "service", "", "only clients that subscribe to this service, NS/SVC")
	cmd.AddCommand(list)
	return cmd
}

// noClients says what an empty list means.
func noClients(req *adminv1.ListClientsRequest) string {
	which := ""
	if req.GetService() != "" {
		which = " of " + req.GetService()
	}
	switch {
	case req.GetNacked() && req.GetBehind():
		return "no client" + which + " both rejects what it was sent and is behind"
	case req.GetNacked():
		return "no client" + which + " rejects what it was sent"
	case req.GetBehind():
		return "no client" + which + " is behind: all hold the newest views"
	case which != "":
		return "no client subscribes to " + req.GetService()
	}
	return "no client is connected: start one with `sightline bootstrap grpc` or `sightline bootstrap envoy`"
}

func clientListing(clients []*adminv1.Client, now time.Time) listing {
	l := listing{
		kind:    "ClientList",
		columns: []string{"NODE", "KIND", "PROTO", "LDS", "RDS", "CDS", "EDS", "VIEW", "AGE"},
		wide:    []string{"PRINCIPAL", "ADDRESS", "NACK"},
	}
	byNode := func(a, b *adminv1.Client) int {
		return cmp.Or(strings.Compare(a.GetNodeId(), b.GetNodeId()), cmp.Compare(a.GetStream(), b.GetStream()))
	}
	for _, c := range slices.SortedFunc(slices.Values(clients), byNode) {
		nack := ""
		sync := map[adminv1.ResourceType]string{}
		for _, t := range c.GetTypes() {
			sync[t.GetType()] = syncWord(t, now)
			nack = cmp.Or(nack, t.GetNackText())
		}
		cells := []string{c.GetNodeId(), c.GetKind(), protocolWord(c.GetProtocol())}
		for _, t := range []adminv1.ResourceType{
			adminv1.ResourceType_RESOURCE_TYPE_LISTENER, adminv1.ResourceType_RESOURCE_TYPE_ROUTE,
			adminv1.ResourceType_RESOURCE_TYPE_CLUSTER, adminv1.ResourceType_RESOURCE_TYPE_ENDPOINT,
			adminv1.ResourceType_RESOURCE_TYPE_VIEW,
		} {
			cells = append(cells, cmp.Or(sync[t], "-"))
		}
		cells = append(cells, age(c.GetConnectedTime().AsTime(), now), c.GetPrincipal(), c.GetAddress(), nack)
		l.rows = append(l.rows, row{name: cmp.Or(c.GetNodeId(), fmt.Sprintf("stream-%d", c.GetStream())), item: c, cells: cells})
	}
	return l
}

func protocolWord(p adminv1.ClientProtocol) string {
	switch p {
	case adminv1.ClientProtocol_CLIENT_PROTOCOL_DELTA:
		return "delta"
	case adminv1.ClientProtocol_CLIENT_PROTOCOL_STATE_OF_THE_WORLD:
		return "sotw"
	case adminv1.ClientProtocol_CLIENT_PROTOCOL_WATCH:
		return "watch"
	}
	return "<unknown>"
}

// syncWord is how far a client is with one type.
func syncWord(t *adminv1.TypeState, now time.Time) string {
	switch t.GetState() {
	case adminv1.SyncState_SYNC_STATE_NOTHING_TO_SEND:
		return "idle"
	case adminv1.SyncState_SYNC_STATE_UNACKED:
		return "wait(" + age(t.GetUnackedSince().AsTime(), now) + ")"
	case adminv1.SyncState_SYNC_STATE_NACKED:
		return "NACK(" + age(t.GetNackTime().AsTime(), now) + ")"
	case adminv1.SyncState_SYNC_STATE_ACKED:
		_, seq, _ := strings.Cut(t.GetAckedVersion(), ".")
		seq, _, _ = strings.Cut(seq, "-") // a delta version ends in what shaped the bytes
		return cmp.Or(seq, "acked")
	}
	return "-"
}
