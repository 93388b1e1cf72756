package demo

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	sampleEvery  = 250 * time.Millisecond
	callDeadline = time.Second
	// callerHeader names the caller in each call: what tells traffic from probes.
	callerHeader = "sightline-demo-caller"
)

// caller is one way of reaching services.
type caller interface {
	// call makes one call to the service.
	call(ctx context.Context, service string) error
	// held reads what the caller holds now, from the caller's own mouth.
	held(ctx context.Context) map[string]Held
	close()
}

// runCaller calls every service at a steady pace and reports each interval.
func runCaller(ctx context.Context, p Part, out io.Writer, build func(Part) (caller, error)) error {
	c, err := build(p)
	if err != nil {
		return err
	}
	defer c.close()
	var t tally
	var calls sync.WaitGroup
	defer calls.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for k := range len(p.Services) * max(p.Workers, 1) {
		service := p.Services[k%len(p.Services)]
		calls.Go(func() {
			for pace := time.NewTicker(p.Every); ; {
				select {
				case <-ctx.Done():
					pace.Stop()
					return
				case <-pace.C:
				}
				callCtx, done := context.WithTimeout(ctx, callDeadline)
				began := time.Now()
				err := c.call(metadata.AppendToOutgoingContext(callCtx, callerHeader, p.Name), service)
				done()
				if ctx.Err() == nil {
					t.add(err, time.Since(began))
				}
			}
		})
	}
	enc := json.NewEncoder(out)
	for tick := time.NewTicker(sampleEvery); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return nil
		case <-tick.C:
		}
		s := t.take()
		s.Caller, s.Held = p.Name, c.held(ctx)
		if err := enc.Encode(s); err != nil {
			return nil // the parent has gone
		}
	}
}

// tally counts outcomes between two samples.
type tally struct {
	mu      sync.Mutex
	ok      int
	errors  map[string]int
	latency []time.Duration
}

func (t *tally) add(err error, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.ok++
		t.latency = append(t.latency, took)
		return
	}
	if t.errors == nil {
		t.errors = make(map[string]int)
	}
	s := status.Convert(err)
	t.errors[s.Code().String()+": "+s.Message()]++
}

func (t *tally) take() Sample {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Sample{OK: t.ok, Errors: t.errors}
	for _, n := range t.errors {
		s.Failed += n
	}
	if n := len(t.latency); n > 0 {
		slices.Sort(t.latency)
		s.P99 = float64(t.latency[n*99/100]) / float64(time.Millisecond)
	}
	t.ok, t.errors, t.latency = 0, nil, t.latency[:0]
	return s
}

// check is the call that all callers make: the instances' own health service.
func check(ctx context.Context, conn grpc.ClientConnInterface) error {
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}
