package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/sightlinedev/sightline/identity"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/paging"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// nackTextBytes is what is shown of a client's words.
const nackTextBytes = 4096

// clients lists the open streams that the caller may see: its own, those of
// namespaces whose whole it may look at, or all.
func (s *Server) clients(who identity.Principal) []Client {
	all := s.cfg.Clients()
	if s.seesAll(who) {
		return all
	}
	return slices.DeleteFunc(all, func(c Client) bool { return !s.mayList(who, c.Who.ID) })
}

func (s *Server) mayList(who identity.Principal, client identity.ID) bool {
	if client == who.ID {
		return true
	}
	ns, _, ok := client.Workload()
	return ok && who.Class() != identity.Workload && s.mayInspect(who, registry.Name{Namespace: ns}, nil)
}

func (s *Server) countClients(who identity.Principal) *adminv1.ClientCounts {
	return count(s.clients(who))
}

// holders counts the clients that know the service, of those that the caller
// may see.
func (s *Server) holders(who identity.Principal, n registry.Name) *adminv1.ClientCounts {
	knows := s.knowing(n)
	return count(slices.DeleteFunc(s.clients(who), func(c Client) bool { return !knows(c.Stream) }))
}

// knowing says of a stream whether it knows the service.
func (s *Server) knowing(n registry.Name) func(stream uint64) bool {
	set := make(map[uint64]bool)
	for _, stream := range s.cfg.Holders(n) {
		set[stream] = true
	}
	return func(stream uint64) bool { return set[stream] }
}

func count(clients []Client) *adminv1.ClientCounts {
	out := &adminv1.ClientCounts{}
	for _, c := range clients {
		out.Connected++
		switch {
		case nacked(&c):
			out.Nacked++
		case behind(&c):
			out.Behind++
		default:
			out.AtHead++
		}
		if c.Parked {
			out.Parked++
		}
	}
	return out
}

func nacked(c *Client) bool {
	return slices.ContainsFunc(c.Types, func(t ClientType) bool { return t.Nacked })
}

func behind(c *Client) bool {
	return c.Parked || slices.ContainsFunc(c.Types, func(t ClientType) bool { return t.Unacked > 0 || t.Waiting > 0 })
}

// ListClients returns a page of the streams that the caller may see.
func (s *Server) ListClients(ctx context.Context, req *adminv1.ListClientsRequest) (*adminv1.ListClientsResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	var service registry.Name
	if req.GetService() != "" {
		if service, err = views.ParseName(req.GetService()); err != nil {
			return nil, status.Field(status.InvalidField, "service", "service-name", err.Error())
		}
		if svc, serves := s.row(service); svc == nil || !s.mayInspect(who, service, serves) {
			return nil, status.Hidden("service", req.GetService())
		}
	}
	var rows []paging.Keyed[Client]
	knows := func(uint64) bool { return true }
	if !service.IsZero() {
		knows = s.knowing(service)
	}
	for _, c := range s.clients(who) {
		if wanted(&c, req) && knows(c.Stream) {
			rows = append(rows, paging.Keyed[Client]{Key: fmt.Sprintf("%020d", c.Stream), Row: c})
		}
	}
	list := fmt.Sprintf("clients/%d/%t/%t/%s", req.GetProtocol(), req.GetNacked(), req.GetBehind(), req.GetService())
	page, next, err := paging.Cut(rows, list, req.GetPageToken(), s.sizes.Of(req.GetPageSize()))
	if err != nil {
		return nil, err
	}
	resp := &adminv1.ListClientsResponse{NextPageToken: next}
	for i := range page {
		resp.Clients = append(resp.Clients, clientOf(&page[i]))
	}
	return resp, nil
}

func wanted(c *Client, req *adminv1.ListClientsRequest) bool {
	p := req.GetProtocol()
	return (p == adminv1.ClientProtocol_CLIENT_PROTOCOL_UNSPECIFIED || p == protocolOf(c.Protocol)) &&
		(!req.GetNacked() || nacked(c)) && (!req.GetBehind() || behind(c))
}

// DescribeClient returns the streams of one node with every name on them that
// the caller may see.
func (s *Server) DescribeClient(ctx context.Context, req *adminv1.DescribeClientRequest) (*adminv1.DescribeClientResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(s.clients(who), func(c Client) bool { return c.Node != req.GetNodeId() })
	if len(found) == 0 {
		return nil, status.Hidden("client", req.GetNodeId())
	}
	slices.SortFunc(found, func(a, b Client) int { return cmp.Compare(a.Stream, b.Stream) })
	resp := &adminv1.DescribeClientResponse{}
	all := s.seesAll(who)
	for i := range found {
		c := &found[i]
		list, open := s.cfg.Resources(c.Stream)
		if !open {
			continue // it ended meanwhile
		}
		d := &adminv1.ClientDescription{Client: clientOf(c)}
		slices.SortFunc(list, func(a, b Resource) int {
			return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
		})
		for _, r := range list {
			if all || c.Who.ID == who.ID || !r.Service.IsZero() && s.maySee(who, r.Service) {
				d.Resources = append(d.Resources, &adminv1.ResourceState{
					Type: typeOf(r.Type), Name: r.Name, Held: r.Held, Pending: r.Pending, Isolated: r.Isolated,
					NackText: shortened(r.NackText),
				})
			}
		}
		resp.Clients = append(resp.Clients, d)
	}
	return resp, nil
}

func clientOf(c *Client) *adminv1.Client {
	out := &adminv1.Client{
		Stream: c.Stream, NodeId: c.Node, Principal: c.Who.String(), Kind: c.Kind, Protocol: protocolOf(c.Protocol),
		Address: c.Address, ConnectedTime: stamp(c.Since), Parked: c.Parked,
	}
	for t := range resourceTypes {
		if (t == Views) != (c.Protocol == Watch) {
			continue // the protocol has no such type
		}
		at := slices.IndexFunc(c.Types, func(ct ClientType) bool { return ct.Type == t })
		if at < 0 {
			out.Types = append(out.Types, &adminv1.TypeState{Type: typeOf(t), State: adminv1.SyncState_SYNC_STATE_NOT_ASKED})
			continue
		}
		out.Types = append(out.Types, typeState(&c.Types[at]))
	}
	return out
}

func typeState(t *ClientType) *adminv1.TypeState {
	return &adminv1.TypeState{
		Type: typeOf(t.Type), State: syncState(t), Names: uint32(t.Names), Wildcard: t.Wildcard,
		AckedVersion: versionOf(t.Acked), AckedTime: stamp(t.AckedAt), SentVersion: versionOf(t.Sent),
		UnackedSince: stamp(t.UnackedSince), NackText: shortened(t.NackText), NackTime: stamp(t.NackedAt),
	}
}

// syncState is how far a client is with a type that it asked for.
func syncState(t *ClientType) adminv1.SyncState {
	switch {
	case t.Nacked:
		return adminv1.SyncState_SYNC_STATE_NACKED
	case t.Unacked > 0:
		return adminv1.SyncState_SYNC_STATE_UNACKED
	case t.Held == 0 && t.Acked.IsZero():
		return adminv1.SyncState_SYNC_STATE_NOTHING_TO_SEND
	}
	return adminv1.SyncState_SYNC_STATE_ACKED
}

func protocolOf(p Protocol) adminv1.ClientProtocol { return adminv1.ClientProtocol(p) + 1 }

func typeOf(t ResourceType) adminv1.ResourceType { return adminv1.ResourceType(t) + 1 }

func versionOf(v views.Version) string {
	if v.IsZero() {
		return ""
	}
	return v.String()
}

// shortened cuts a client's words between two characters.
func shortened(text string) string {
	if len(text) <= nackTextBytes {
		return text
	}
	end := nackTextBytes
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}
