package main

import (
	"context"
	"runtime"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// raw is the least that a server on grpc-go can do: one encoded response of
// each change, made before the clock starts and shared by all streams, nonce
// included; acknowledgements are received and not looked at.
type raw struct {
	estate   *estate
	names    map[string]int
	workers  []chan rawSend
	prepared []rawSend

	mu      sync.Mutex
	streams [][]*rawStream // by service
	current []mem.Buffer   // by service: the response that shows it as it is
}

type rawStream struct{ stream grpc.ServerStream }

// rawSend is one response and those who are sent it.
type rawSend struct {
	service int
	msg     mem.Buffer
	to      []*rawStream
}

func newRaw(e *estate) (*raw, error) {
	r := &raw{estate: e, names: make(map[string]int), streams: make([][]*rawStream, len(e.services)), current: make([]mem.Buffer, len(e.services))}
	for s := range e.services {
		r.names[serviceName(s).Host()] = s
		b, err := rawResponse(e, s)
		if err != nil {
			return nil, err
		}
		r.current[s] = b
	}
	return r, nil
}

func rawResponse(e *estate, s int) (mem.Buffer, error) {
	v := e.view(s)
	value, err := encodeAssignment(v)
	if err != nil {
		return nil, err
	}
	b, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: endpointType, Nonce: "1000-12345678",
		Resources: []*discoveryv3.Resource{{Name: v.Name.Host(), Version: "1.100000-a1b2c3d4", Resource: &anypb.Any{TypeUrl: endpointType, Value: value}}},
	})
	return mem.SliceBuffer(b), err
}

func (r *raw) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(bytesCodec{})}
}

// register adds the one method, without generated code: that would decode.
func (r *raw) register(ctx context.Context, g *grpc.Server) {
	// As many senders as ours has workers per core; each owns its streams.
	for range runtime.GOMAXPROCS(0) {
		queue := make(chan rawSend, 1024)
		r.workers = append(r.workers, queue)
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case s := <-queue:
					for _, to := range s.to {
						_ = to.stream.SendMsg(mem.BufferSlice{s.msg}) // a stream that ended is found by its handler
					}
				}
			}
		}()
	}
	d := deltaStream()
	d.Handler = func(_ any, ss grpc.ServerStream) error { return r.serve(ss) }
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.discovery.v3.AggregatedDiscoveryService", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{*d},
	}, nil)
}

// serve answers the first request and takes in acknowledgements. Streams are
// opened while nothing is published, so the first answers meet no other sender.
func (r *raw) serve(ss grpc.ServerStream) error {
	var first discoveryv3.DeltaDiscoveryRequest
	if err := ss.RecvMsg(func(b []byte) error { return proto.Unmarshal(b, &first) }); err != nil {
		return err
	}
	st := &rawStream{ss}
	for _, name := range first.ResourceNamesSubscribe {
		s := r.names[name]
		r.mu.Lock()
		msg := r.current[s]
		r.streams[s] = append(r.streams[s], st)
		r.mu.Unlock()
		if err := ss.SendMsg(mem.BufferSlice{msg}); err != nil {
			return err
		}
	}
	ignore := func([]byte) error { return nil }
	for {
		if err := ss.RecvMsg(ignore); err != nil {
			return err
		}
	}
}

func (r *raw) prepare(changes []change) error {
	r.prepared = nil
	for _, c := range changes {
		r.estate.restart(c.Service, c.Number)
		b, err := rawResponse(r.estate, c.Service)
		if err != nil {
			return err
		}
		r.prepared = append(r.prepared, rawSend{service: c.Service, msg: b})
	}
	return nil
}

// publish splits a service's streams between the senders.
func (r *raw) publish(i int) error {
	s := r.prepared[i]
	r.mu.Lock()
	r.current[s.service] = s.msg
	all := r.streams[s.service]
	r.mu.Unlock()
	n := len(r.workers)
	for w, queue := range r.workers {
		queue <- rawSend{s.service, s.msg, all[len(all)*w/n : len(all)*(w+1)/n]}
	}
	return nil
}
