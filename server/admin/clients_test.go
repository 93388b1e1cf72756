package admin

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sightlinedev/sightline/identity"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

func (w *world) fleet() {
	w.put(checkoutName, checkout, "10.0.0.1")
	w.put(ledgerName, ledger, "10.1.0.1")
	since := time.Now()
	who := func(id string) identity.Principal { return identity.Principal{ID: identity.MustParse(id)} }
	w.clients = []Client{
		{Stream: 12, Node: "watcher", Who: who("spiffe://example.org/sightline/replica/b"), Protocol: Watch, Since: since,
			Types: []ClientType{{Type: Views, Wildcard: true, Held: 2, Acked: views.Version{Epoch: 7, Seq: 9}, Sent: views.Version{Epoch: 7, Seq: 9}}}},
		{Stream: 3, Node: "node-b", Who: who(ledger), Protocol: StateOfTheWorld, Since: since, Kind: "gRPC Go", Parked: true},
		{Stream: 1, Node: "node-a", Who: who(checkout), Protocol: Delta, Since: since, Kind: "envoy 1.40", Address: "10.0.0.1:4711", Types: []ClientType{
			{Type: Clusters, Wildcard: true, Held: 2, Acked: views.Version{Epoch: 7, Seq: 4}},
			{Type: Endpoints, Names: 2, Held: 2, Nacked: true, NackText: strings.Repeat("é", 3000), NackedAt: since},
			{Type: Listeners, Names: 1},
		}},
		{Stream: 2, Node: "node-a", Who: who(checkout), Protocol: Delta, Since: since, Types: []ClientType{{Type: Endpoints, Names: 1, Held: 1, Unacked: 1, UnackedSince: since}}},
	}
	w.resources = map[uint64][]Resource{
		1:  {{Type: Endpoints, Name: "ledger.bank", Service: ledgerName, Isolated: true, NackText: "no"}, {Type: Clusters, Name: "checkout.shop", Service: checkoutName, Held: true}, {Type: Endpoints, Name: "checkout.shop", Service: checkoutName, Held: true}},
		2:  {{Type: Endpoints, Name: "checkout.shop:9090", Service: checkoutName, Pending: true}, {Type: Endpoints, Name: "NOBODY"}},
		3:  {{Type: Endpoints, Name: "ledger.bank", Service: ledgerName}},
		12: nil,
	}
}

func (w *world) list(id string, req *adminv1.ListClientsRequest) (streams []uint64) {
	w.t.Helper()
	for n := 0; n == 0 || req.PageToken != ""; n++ {
		resp, err := w.ListClients(as(id), req)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, c := range resp.GetClients() {
			streams = append(streams, c.GetStream())
		}
		req.PageToken = resp.GetNextPageToken()
	}
	return streams
}

// TestClientsAreListed with how far each is, by pages, filtered, and only to
// those who may see them.
func TestClientsAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fleet()
		for _, c := range []struct {
			who  string
			req  *adminv1.ListClientsRequest
			want []uint64
		}{
			{operator, &adminv1.ListClientsRequest{}, []uint64{1, 2, 3, 12}},
			{operator, &adminv1.ListClientsRequest{PageSize: 1}, []uint64{1, 2, 3, 12}},
			{operator, &adminv1.ListClientsRequest{Protocol: adminv1.ClientProtocol_CLIENT_PROTOCOL_DELTA}, []uint64{1, 2}},
			{operator, &adminv1.ListClientsRequest{Protocol: adminv1.ClientProtocol_CLIENT_PROTOCOL_WATCH}, []uint64{12}},
			{operator, &adminv1.ListClientsRequest{Nacked: true}, []uint64{1}},
			{operator, &adminv1.ListClientsRequest{Behind: true}, []uint64{2, 3}},
			{operator, &adminv1.ListClientsRequest{Service: "bank/ledger"}, []uint64{1, 3}},
			{checkout, &adminv1.ListClientsRequest{}, []uint64{1, 2}},
			{reader, &adminv1.ListClientsRequest{}, []uint64{1, 2}},
			{ledger, &adminv1.ListClientsRequest{PageSize: 1}, []uint64{3}},
			{stranger, &adminv1.ListClientsRequest{}, nil},
		} {
			if got := w.list(c.who, c.req); !slices.Equal(got, c.want) {
				t.Errorf("%s, %v: %v, want %v", c.who, c.req, got, c.want)
			}
		}
		resp, err := w.ListClients(as(operator), &adminv1.ListClientsRequest{Nacked: true})
		if err != nil {
			t.Fatal(err)
		}
		c := resp.GetClients()[0]
		var states []adminv1.SyncState
		for i, ts := range c.GetTypes() {
			states = append(states, ts.GetState())
			if int(ts.GetType()) != i+1 {
				t.Errorf("types out of order: %v", c.GetTypes())
			}
		}
		if want := []adminv1.SyncState{
			adminv1.SyncState_SYNC_STATE_NOTHING_TO_SEND, adminv1.SyncState_SYNC_STATE_NOT_ASKED,
			adminv1.SyncState_SYNC_STATE_ACKED, adminv1.SyncState_SYNC_STATE_NACKED,
		}; !slices.Equal(states, want) {
			t.Errorf("states %v", states)
		}
		if c.GetPrincipal() != checkout || c.GetAddress() != "10.0.0.1:4711" || c.GetTypes()[2].GetAckedVersion() != "7.4" ||
			c.GetTypes()[3].GetNackTime() == nil || c.GetTypes()[3].GetNackText() != strings.Repeat("é", 2048) {
			t.Errorf("client %v", c)
		}
		if n := w.status(operator).GetClients(); n.GetConnected() != 4 || n.GetNacked() != 1 || n.GetBehind() != 2 || n.GetAtHead() != 1 || n.GetParked() != 1 {
			t.Errorf("counted %v", n)
		}
		if n := w.status(ledger).GetClients(); n.GetConnected() != 1 {
			t.Errorf("ledger counts %v", n)
		}
		_, err = w.ListClients(as(checkout), &adminv1.ListClientsRequest{Service: "bank/ledger"})
		wants(t, err, codes.NotFound, status.NotFound)
		_, err = w.ListClients(as(operator), &adminv1.ListClientsRequest{Service: "Bank"})
		wants(t, err, codes.InvalidArgument, status.InvalidField)
		_, err = w.ListClients(as(operator), &adminv1.ListClientsRequest{PageToken: "x"})
		wants(t, err, codes.InvalidArgument, status.InvalidPageToken)
	})
}

// TestANodeIsDescribed: each name is checked; unknown and forbidden are alike.
func TestANodeIsDescribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fleet()
		for who, want := range map[string]string{
			operator: "checkout.shop checkout.shop ledger.bank! NOBODY checkout.shop:9090",
			checkout: "checkout.shop checkout.shop ledger.bank! NOBODY checkout.shop:9090", // its own node
			reader:   "checkout.shop checkout.shop checkout.shop:9090",
		} {
			resp, err := w.DescribeClient(as(who), &adminv1.DescribeClientRequest{NodeId: "node-a"})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, c := range resp.GetClients() {
				for _, r := range c.GetResources() {
					name := r.GetName()
					if r.GetIsolated() && r.GetNackText() != "" {
						name += "!"
					}
					names = append(names, name)
				}
			}
			if got := strings.Join(names, " "); len(resp.GetClients()) != 2 || got != want {
				t.Errorf("%s: %q, want %q", who, got, want)
			}
		}
		_, forbidden := w.DescribeClient(as(checkout), &adminv1.DescribeClientRequest{NodeId: "node-b"})
		wants(t, forbidden, codes.NotFound, status.NotFound)
		_, missing := w.DescribeClient(as(checkout), &adminv1.DescribeClientRequest{NodeId: "node-c"})
		if strings.ReplaceAll(forbidden.Error(), "node-b", "node-c") != missing.Error() {
			t.Errorf("%v and %v differ", forbidden, missing)
		}
		delete(w.resources, 1) // that stream ends between the two
		if resp, err := w.DescribeClient(as(operator), &adminv1.DescribeClientRequest{NodeId: "node-a"}); err != nil || len(resp.GetClients()) != 1 {
			t.Errorf("%v, %v", resp, err)
		}
	})
}
