package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

const (
	latencyInstances = 133
	latencyStreams   = 333 // subscribers of one service of the estate at 15,000 streams
	// settled is how long nothing happens before each call.
	settled = 120 * time.Millisecond
	// withdrawalLimit is how long one withdrawal is waited for.
	withdrawalLimit = 15 * time.Second
)

// publishLatency measures, on the real binary, how long a deregistration takes
// to be durable and with its last subscriber.
func publishLatency(ctx context.Context, s settings, r *report) error {
	streams, rounds, samples := latencyStreams, 5, 200
	if s.short {
		rounds, samples = 3, 40
	}
	if s.streams > 0 {
		streams = s.streams
	}
	if s.rounds > 0 {
		rounds = s.rounds
	}
	dir, err := os.MkdirTemp("", "sightline-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	srv, err := startSightline(ctx, dir, r)
	if err != nil {
		return err
	}
	defer srv.end()
	m := &withdrawals{api: srv.api, arrived: make(map[int]*arrivals)}
	if err := m.populate(ctx); err != nil {
		return err
	}
	streaming, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := m.subscribe(streaming, srv, streams); err != nil {
		return err
	}
	r.say("%d subscribers of a service of %d instances are up", streams, latencyInstances)
	raw, err := startFloor(ctx, streams, r)
	if raw != nil {
		defer raw.end()
	}
	if err != nil {
		return err
	}
	figures := make(map[string][]float64)
	for round := range rounds {
		floor, err := raw.round(ctx, samples/2)
		if err != nil {
			return err
		}
		figures["raw"] = append(figures["raw"], milliseconds(percentile(floor, 50)))
		whole, durable, last, err := m.round(ctx, samples)
		if err != nil {
			return err
		}
		figures["p50"] = append(figures["p50"], milliseconds(percentile(whole, 50)))
		figures["p99"] = append(figures["p99"], milliseconds(percentile(whole, 99)))
		figures["durable_p50"] = append(figures["durable_p50"], milliseconds(percentile(durable, 50)))
		figures["delivered_p50"] = append(figures["delivered_p50"], milliseconds(percentile(last, 50)))
		r.say("round %d: p50 %.1f ms, p99 %.1f ms (acknowledged %.1f ms, last subscriber %.1f ms)", round+1, milliseconds(percentile(whole, 50)),
			milliseconds(percentile(whole, 99)), milliseconds(percentile(durable, 50)), milliseconds(percentile(last, 50)))
	}
	for _, metric := range []string{"p50", "p99", "durable_p50"} {
		r.alone(metric, "ms", figures[metric])
	}
	r.against("delivered_p50", "ms", figures["delivered_p50"], sideRaw, figures["raw"])
	return nil
}

// withdrawals deregisters the instances of one service, oldest first, and
// registers a new one for each.
type withdrawals struct {
	api            registryv1.RegistryServiceClient
	oldest, newest int // address numbers of the instances that are registered

	mu      sync.Mutex
	streams int
	failed  error
	arrived map[int]*arrivals // by the state that is waited for
}

// arrivals counts the subscribers that have seen the service without any
// instance below from, and with to.
type arrivals struct {
	from, to int
	seen     []bool // by stream
	left     int
	last     time.Time
	done     chan struct{}
}

func label(number int) string { return fmt.Sprintf("n%d", number) }

func latencyInstance(number int) *registryv1.Instance {
	name := serviceName(0)
	return &registryv1.Instance{
		Namespace: name.Namespace, Service: name.Service, Label: label(number),
		Identity: serviceIdentity(0).String(), Endpoint: &registryv1.Instance_Address{Address: addressOf(number).String()},
		Region: "local", Zone: "zone-" + string(rune('a'+number%3)),
	}
}

// populate creates the service and its instances in one batch.
func (m *withdrawals) populate(ctx context.Context) error {
	name := serviceName(0)
	changes := []*registryv1.Change{{Change: &registryv1.Change_PutService{PutService: &registryv1.Service{
		Namespace: name.Namespace, Name: name.Service,
		Ports: []*registryv1.Port{{Name: "http", Number: servicePort, Protocol: registryv1.Protocol_PROTOCOL_HTTP2}},
	}}}}
	m.oldest, m.newest = 1, latencyInstances
	for number := m.oldest; number <= m.newest; number++ {
		changes = append(changes, &registryv1.Change{Change: &registryv1.Change_PutInstance{PutInstance: latencyInstance(number)}})
	}
	_, err := m.api.Apply(ctx, &registryv1.ApplyRequest{Changes: changes})
	return err
}

// subscribe opens the streams and waits until all show the whole service.
func (m *withdrawals) subscribe(ctx context.Context, srv *sightline, streams int) error {
	d, err := newDialer(srv.xds, srv.identities)
	if err != nil {
		return err
	}
	m.streams = streams
	all := m.expect(m.oldest, m.newest)
	for n := range streams {
		s, err := subscribe(ctx, d, n, []string{serviceName(0).Host()}, func(a *assigned, at time.Time) { m.arrive(n, a, at) })
		if err != nil {
			return fmt.Errorf("stream %d: %w", n, err)
		}
		go func() {
			if err := s.run(); ctx.Err() == nil {
				m.fail(fmt.Errorf("stream %d ended: %w", n, err))
			}
		}()
	}
	_, err = m.await(ctx, all)
	return err
}

// expect begins to wait for a state of the service.
func (m *withdrawals) expect(from, to int) *arrivals {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := &arrivals{from: from, to: to, seen: make([]bool, m.streams), left: m.streams, done: make(chan struct{})}
	m.arrived[from*1_000_000+to] = a
	return a
}

func (m *withdrawals) arrive(stream int, got *assigned, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, a := range m.arrived {
		if a.seen[stream] || got.oldest < a.from || got.newest < a.to {
			continue
		}
		a.seen[stream] = true
		if a.last.Before(at) {
			a.last = at
		}
		if a.left--; a.left == 0 {
			delete(m.arrived, key)
			close(a.done)
		}
	}
}

func (m *withdrawals) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = errors.Join(m.failed, err)
}

// await returns when the last subscriber saw the state.
func (m *withdrawals) await(ctx context.Context, a *arrivals) (time.Time, error) {
	limit := time.NewTimer(withdrawalLimit)
	defer limit.Stop()
	select {
	case <-a.done:
		return a.last, nil
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	case <-limit.C:
		m.mu.Lock()
		defer m.mu.Unlock()
		return time.Time{}, errors.Join(fmt.Errorf("%d of %d subscribers have not seen a change after %s", a.left, m.streams, withdrawalLimit), m.failed)
	}
}

// round measures that many withdrawals. What it returns is sorted.
func (m *withdrawals) round(ctx context.Context, samples int) (whole, durable, last []time.Duration, err error) {
	for range samples {
		w, d, l, err := m.withdraw(ctx)
		if err != nil {
			return nil, nil, nil, err
		}
		whole, durable, last = append(whole, w), append(durable, d), append(last, l)
		if err := m.admit(ctx); err != nil {
			return nil, nil, nil, err
		}
		select {
		case <-time.After(settled):
		case <-ctx.Done():
			return nil, nil, nil, ctx.Err()
		}
	}
	slices.Sort(whole)
	slices.Sort(durable)
	slices.Sort(last)
	return whole, durable, last, nil
}

// withdraw deregisters the oldest instance. The times are from the call on: to
// the later of both, to the acknowledgement, to the last subscriber.
func (m *withdrawals) withdraw(ctx context.Context) (whole, durable, last time.Duration, err error) {
	gone := m.oldest
	m.oldest++
	a := m.expect(m.oldest, m.newest)
	name := serviceName(0)
	began := time.Now()
	if _, err = m.api.DeregisterInstance(ctx, &registryv1.DeregisterInstanceRequest{
		Namespace: name.Namespace, Service: name.Service, Instance: label(gone),
	}); err != nil {
		return 0, 0, 0, err
	}
	durable = time.Since(began)
	at, err := m.await(ctx, a)
	last = at.Sub(began)
	return max(durable, last), durable, last, err
}

// admit registers an instance for the one that left, and waits until everybody
// knows.
func (m *withdrawals) admit(ctx context.Context) error {
	m.newest++
	a := m.expect(m.oldest, m.newest)
	if _, err := m.api.RegisterInstance(ctx, &registryv1.RegisterInstanceRequest{Instance: latencyInstance(m.newest)}); err != nil {
		return err
	}
	_, err := m.await(ctx, a)
	return err
}
