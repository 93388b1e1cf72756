package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
)

// floor is what delivering alone costs on this machine: the raw baseline's
// server, which hands encoded bytes to grpc-go and does nothing else, sends the
// same assignment to as many subscribers over the same transport. Where it
// needs longer than a goal, no control plane on grpc-go can meet it there.
type floor struct {
	server *part
	waits  *withdrawals
	change int // number of the last one published
	cancel context.CancelFunc
	dir    string
}

func startFloor(ctx context.Context, streams int, r *report) (*floor, error) {
	dir, err := os.MkdirTemp("", "sightline-bench-raw-")
	if err != nil {
		return nil, err
	}
	f := &floor{dir: dir, waits: &withdrawals{arrived: make(map[int]*arrivals), streams: streams}}
	ctx, f.cancel = context.WithCancel(ctx)
	if err := writeIdentities(dir); err != nil {
		return f, err
	}
	if f.server, err = startPart(sideRaw, r.progress); err != nil {
		return f, err
	}
	started, err := f.server.tell(order{Do: doStart, Identities: dir, Services: 1, Instances: latencyInstances})
	if err != nil {
		return f, err
	}
	d, err := newDialer(started.Addr, dir)
	if err != nil {
		return f, err
	}
	all := f.waits.expect(0, latencyInstances)
	for n := range streams {
		s, err := subscribe(ctx, d, n, []string{serviceName(0).Host()}, func(a *assigned, at time.Time) { f.waits.arrive(n, a, at) })
		if err != nil {
			return f, fmt.Errorf("raw stream %d: %w", n, err)
		}
		go func() {
			if err := s.run(); ctx.Err() == nil {
				f.waits.fail(fmt.Errorf("raw stream %d ended: %w", n, err))
			}
		}()
	}
	_, err = f.waits.await(ctx, all)
	return f, err
}

// round publishes that many changes, each when nothing else happens, and returns
// the times to the last subscriber, sorted.
func (f *floor) round(ctx context.Context, samples int) (last []time.Duration, err error) {
	for range samples {
		f.change++
		a := f.waits.expect(0, changeBase+f.change)
		sent, err := f.server.tell(order{Do: doLoad, Changes: []change{{Service: 0, Number: f.change}}})
		if err != nil {
			return nil, err
		}
		at, err := f.waits.await(ctx, a)
		if err != nil {
			return nil, err
		}
		last = append(last, at.Sub(time.Unix(0, sent.At[0])))
		select {
		case <-time.After(settled):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	slices.Sort(last)
	return last, nil
}

func (f *floor) end() {
	f.cancel()
	if f.server != nil {
		f.server.end()
	}
	_ = os.RemoveAll(f.dir)
}
