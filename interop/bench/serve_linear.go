package main

import (
	"context"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
)

// linear is go-control-plane's LinearCache behind its own delta server.
type linear struct {
	estate   *estate
	cache    *cachev3.LinearCache
	prepared []*endpointv3.ClusterLoadAssignment
}

func newLinear(e *estate) (*linear, error) {
	first := make(map[string]types.Resource, len(e.services))
	for s := range e.services {
		first[serviceName(s).Host()] = assignment(e.view(s))
	}
	return &linear{estate: e, cache: cachev3.NewLinearCache(endpointType, cachev3.WithInitialResources(first))}, nil
}

func (l *linear) options() []grpc.ServerOption { return nil }

func (l *linear) register(ctx context.Context, g *grpc.Server) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, serverv3.NewServer(ctx, l.cache, nil))
}

func (l *linear) prepare(changes []change) error {
	l.prepared = nil
	for _, c := range changes {
		l.estate.restart(c.Service, c.Number)
		l.prepared = append(l.prepared, assignment(l.estate.view(c.Service)))
	}
	return nil
}

func (l *linear) publish(i int) error {
	return l.cache.UpdateResource(l.prepared[i].ClusterName, l.prepared[i])
}
