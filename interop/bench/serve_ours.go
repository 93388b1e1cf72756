package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/svid"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/metrics"
	"github.com/sightlinedev/sightline/server/xds"
	"github.com/sightlinedev/sightline/views"
)

// ours is the real engine behind the real Publisher, with the metrics of a
// server. The registry and the evaluators are left out: the rate of changes is
// the workload's, and a synced write for each would be counted as fan-out.
type ours struct {
	estate    *estate
	publisher *views.Publisher
	server    *xds.Server
	held      []views.Version // by service
	prepared  []views.Candidate
	services  []int
}

func newOurs(e *estate) (*ours, error) {
	o := &ours{estate: e, held: make([]views.Version, len(e.services)),
		publisher: views.NewPublisher(views.PublisherConfig{Epoch: 1, Next: 1, Reserved: 1 << 40})}
	policy := &authz.Policy{Generation: 1, TrustDomain: trustDomain, Default: authz.WholeTrustDomain}
	m := metrics.New("bench", "", func() metrics.Census { return metrics.Census{} })
	o.server = xds.New(xds.Config{
		Snapshot: o.publisher.Snapshot, Policy: func() *authz.Policy { return policy }, Principal: svid.PrincipalFrom,
		Limits: limits.Default().XDS, Identifier: "bench/local",
		Events: xds.Events{
			Streams:     func(kind, protocol string, delta int) { m.Streams(protocol, kind, delta) },
			Push:        func(typ, kind string, _, _, bytes int) { m.Pushed(typ, kind, bytes) },
			Propagation: m.Propagated,
			FanOut:      func(took time.Duration) { o.publisher.FanOut(time.Now(), took) },
			Nack: func(r xds.Rejection) {
				fmt.Fprintf(os.Stderr, "bench: ours: a client refused %s: %s\n", r.Type, r.Detail)
			},
		},
	})
	for s := range e.services {
		if err := o.offer(s, views.Candidate{Name: serviceName(s), View: e.view(s), Revision: 1}); err != nil {
			return nil, err
		}
	}
	o.publisher.Complete()
	return o, nil
}

func (o *ours) options() []grpc.ServerOption {
	return []grpc.ServerOption{xds.ServerOption(), grpc.InTapHandle(xds.Tap)}
}

func (o *ours) register(ctx context.Context, g *grpc.Server) {
	o.server.Register(g)
	go func() {
		if err := o.server.Run(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "bench: ours: %v\n", err)
		}
	}()
}

func (o *ours) prepare(changes []change) error {
	o.prepared, o.services = nil, nil
	for _, c := range changes {
		o.estate.restart(c.Service, c.Number)
		o.prepared = append(o.prepared, views.Candidate{Name: serviceName(c.Service), View: o.estate.view(c.Service), Revision: 1})
		o.services = append(o.services, c.Service)
	}
	return nil
}

func (o *ours) publish(i int) error { return o.offer(o.services[i], o.prepared[i]) }

// offer publishes a candidate and tells the feed, as a shard does.
func (o *ours) offer(s int, c views.Candidate) error {
	c.Base = o.held[s]
	r := o.publisher.Publish(time.Now(), c)
	if r.Outcome != views.Published {
		return fmt.Errorf("%s was not published: %s (%s)", c.Name, r.Outcome, r.Reason)
	}
	o.held[s] = r.Held
	o.server.Feed().Publish(r.Publication)
	return nil
}
