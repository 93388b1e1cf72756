package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

func envoyNode(id string) *corev3.Node {
	return &corev3.Node{Id: id, Cluster: "bench", UserAgentName: "envoy",
		Locality: &corev3.Locality{Region: "local", Zone: "zone-a"}}
}

// subscriber is one client: a connection, a delta stream, and what it is told of
// assignments. Every response is taken apart and acknowledged; one in
// checkEvery is read again with the generated types.
type subscriber struct {
	conn   *grpc.ClientConn
	stream grpc.ClientStream
	read   responseRead
	ack    []byte
	number int
	seen   int
	// on is called for every assignment, with the time of its arrival.
	on func(a *assigned, at time.Time)
}

const checkEvery = 512

// subscribe opens the n-th client's stream for those names.
func subscribe(ctx context.Context, d *dialer, n int, names []string, on func(*assigned, time.Time)) (*subscriber, error) {
	conn, err := d.dial(n, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{})))
	if err != nil {
		return nil, err
	}
	s := &subscriber{conn: conn, number: n, on: on}
	first, err := firstRequest(fmt.Sprintf("node-%d", n), names)
	if err == nil {
		s.stream, err = conn.NewStream(ctx, deltaStream(), deltaMethod)
	}
	if err == nil {
		err = s.stream.SendMsg(mem.BufferSlice{mem.SliceBuffer(first)})
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return s, nil
}

// run receives until the stream ends.
func (s *subscriber) run() error {
	defer s.conn.Close()
	read := func(b []byte) error {
		at := time.Now()
		if err := readResponse(b, &s.read); err != nil {
			return err
		}
		if s.seen++; s.seen%checkEvery == s.number%checkEvery {
			if err := check(b, &s.read); err != nil {
				return err
			}
		}
		s.ack = appendAck(nil, s.read.nonce) // new bytes: the transport may still hold the last
		for i := range s.read.assigned {
			s.on(&s.read.assigned[i], at)
		}
		return nil
	}
	for {
		if err := s.stream.RecvMsg(read); err != nil {
			return err
		}
		if err := s.stream.SendMsg(mem.BufferSlice{mem.SliceBuffer(s.ack)}); err != nil {
			return err
		}
	}
}

// clientsPart is the process of a side's clients.
type clientsPart struct {
	ctx context.Context

	mu       sync.Mutex
	arrived  []delivery
	bytes    int64
	failed   error
	services map[string]int
}

func (c *clientsPart) obey(o order) (reply, error) {
	switch o.Do {
	case doConnect:
		return reply{}, c.connect(o)
	case doCollect:
		return c.collect()
	}
	return reply{}, nil
}

// connecting is how many streams are opened at once.
const connecting = 16

// connect opens the streams and waits until each has its first answer.
func (c *clientsPart) connect(o order) error {
	d, err := newDialer(o.Addr, o.Identities)
	if err != nil {
		return err
	}
	c.services = make(map[string]int, o.Services)
	for s := range o.Services {
		c.services[serviceName(s).Host()] = s
	}
	next := make(chan int)
	var openers sync.WaitGroup
	for range connecting {
		openers.Go(func() {
			for n := range next {
				if err := c.open(d, n, o); err != nil {
					c.fail(fmt.Errorf("stream %d: %w", n, err))
				}
			}
		})
	}
	for n := range o.Streams {
		next <- o.From + n
	}
	close(next)
	openers.Wait()
	_, err = c.collect()
	return err
}

// open opens one stream, and returns when it holds all that it asked for.
func (c *clientsPart) open(d *dialer, n int, o order) error {
	var names []string
	for _, s := range subscriptions(n, o.Each, o.Services) {
		names = append(names, serviceName(s).Host())
	}
	held := 0
	ready := make(chan struct{})
	s, err := subscribe(c.ctx, d, n, names, func(a *assigned, at time.Time) {
		if held++; held == len(names) {
			close(ready)
		}
		c.arrive(n, a, at)
	})
	if err != nil {
		return err
	}
	go func() {
		if err := s.run(); c.ctx.Err() == nil {
			c.fail(fmt.Errorf("stream %d ended: %w", n, err))
		}
	}()
	select {
	case <-ready:
		return nil
	case <-time.After(time.Minute):
		return fmt.Errorf("it has %d of %d assignments after a minute", held, len(names))
	}
}

func (c *clientsPart) arrive(n int, a *assigned, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrived = append(c.arrived, delivery{
		Stream: int32(n), Service: int32(c.services[a.name]), Number: int32(max(a.newest-changeBase, 0)), At: at.UnixNano(),
	})
	c.bytes += int64(a.bytes)
}

func (c *clientsPart) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
}

// collect hands over what arrived since the last time.
func (c *clientsPart) collect() (reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := reply{Deliveries: c.arrived, Bytes: c.bytes}
	c.arrived, c.bytes = nil, 0
	return r, c.failed
}
