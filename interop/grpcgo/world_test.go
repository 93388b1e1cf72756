package grpcgo

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/interop/harness"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
)

const (
	firstCall = time.Second      // of a channel to a service that exists (C05, C45)
	recovery  = 5 * time.Second  // of a channel once its service exists (C45) [J]
	starts    = 20 * time.Second // what a test needs before it begins
	ownTimer  = 15 * time.Second // a state-of-the-world client waits so long for a name, and nobody can shorten it
)

// world is a server, an operator, and a workload that calls.
type world struct {
	*testing.T
	s   *harness.Server
	api *harness.API
	web *harness.SVID
}

func start(t *testing.T) *world {
	t.Helper()
	s := harness.StartServer(t, harness.ServerConfig{})
	return &world{T: t, s: s, api: s.DialAPI(t, s.Operator(t)), web: s.CA.Mint(t, "/ns/shop/sa/web")}
}

// dial opens a channel, with a node id that says the target.
func (w *world) dial(target string, opts ...grpc.DialOption) *harness.Caller {
	w.Helper()
	return harness.Dial(w, harness.Bootstrap{Server: w.s.XDS, SVID: w.web, NodeID: "go:" + target, Region: "local", Zone: "a"}, target, opts...)
}

// serve registers a service without a ramp, with one backend of the same name, and waits until
// callers are given it.
func (w *world) serve(host, name string) *harness.Backend {
	w.Helper()
	b := harness.StartBackend(w, name)
	w.api.Apply(w, harness.WithoutRamp(host), harness.PutService(host), harness.PutBackend(host, b))
	harness.Eventually(w, starts, host+" is published", func() error {
		v, err := w.api.View(host)
		if err == nil && len(harness.Listed(v, 0)) == 0 {
			err = context.DeadlineExceeded
		}
		return err
	})
	return b
}

// answers makes one call and reports who answered and how long that took.
func answers(c *harness.Caller, limit time.Duration) (name string, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	name, err = c.Call(ctx)
	return name, time.Since(began), err
}

// asked reports whether the client of that node id has asked for a Listener.
func (w *world) asked(node string) bool {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), starts)
	defer cancel()
	r, err := adminv1.NewAdminServiceClient(w.api.Conn).ListClients(ctx, &adminv1.ListClientsRequest{})
	if err != nil {
		w.Fatal(err)
	}
	for _, c := range r.GetClients() {
		for _, s := range c.GetTypes() {
			if c.GetNodeId() == node && s.GetType() == adminv1.ResourceType_RESOURCE_TYPE_LISTENER && s.GetState() != adminv1.SyncState_SYNC_STATE_NOT_ASKED {
				return true
			}
		}
	}
	return false
}
