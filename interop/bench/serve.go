package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"google.golang.org/grpc"
)

// The sides of a fan-out.
const (
	sideOurs   = "ours"
	sideRaw    = "raw"
	sideLinear = "linear"
)

// side is one way to serve the estate.
type side interface {
	// options are its gRPC server's, beside those of the transport.
	options() []grpc.ServerOption
	// register adds its service, and starts what it runs until ctx ends.
	register(ctx context.Context, g *grpc.Server)
	// prepare makes what publishing the changes needs that is not the fan-out:
	// it is not measured.
	prepare(changes []change) error
	// publish publishes the i-th change that was prepared.
	publish(i int) error
}

// serverPart is the process of a side's server.
type serverPart struct {
	ctx       context.Context
	name      string
	side      side
	profileTo string   // file name; empty: none
	profile   *os.File // nil until the first load
}

func (p *serverPart) obey(o order) (reply, error) {
	switch o.Do {
	case doStart:
		return p.start(o)
	case doLoad:
		return p.load(o)
	case doUsage:
		return usage()
	case doMemory:
		return memory()
	case doEnd:
		if p.profile != nil {
			pprof.StopCPUProfile()
			return reply{}, p.profile.Close()
		}
	}
	return reply{}, nil
}

func (p *serverPart) start(o order) (reply, error) {
	s, err := source(o.Identities, serverIdentity)
	if err != nil {
		return reply{}, err
	}
	e := newEstate(o.Services, o.Instances)
	switch p.name {
	case sideOurs:
		p.side, err = newOurs(e)
	case sideRaw:
		p.side, err = newRaw(e)
	default:
		p.side, err = newLinear(e)
	}
	if err != nil {
		return reply{}, err
	}
	g := grpc.NewServer(append(transportOptions(s), p.side.options()...)...)
	p.side.register(p.ctx, g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return reply{}, err
	}
	go func() {
		if err := g.Serve(l); p.ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "bench: %s: serving ended: %v\n", p.name, err)
		}
	}()
	p.profileTo = o.Profile
	return reply{Addr: l.Addr().String()}, nil
}

// startProfile begins the CPU profile with the first load: connecting is another
// matter.
func (p *serverPart) startProfile() error {
	if p.profileTo == "" || p.profile != nil {
		return nil
	}
	var err error
	if p.profile, err = os.Create(p.profileTo); err != nil {
		return err
	}
	return pprof.StartCPUProfile(p.profile)
}

// load publishes the changes at their times, whatever becomes of them.
func (p *serverPart) load(o order) (reply, error) {
	if err := p.side.prepare(o.Changes); err != nil {
		return reply{}, err
	}
	runtime.GC() // of what preparing left behind
	if err := p.startProfile(); err != nil {
		return reply{}, err
	}
	before, err := cpuTime()
	if err != nil {
		return reply{}, err
	}
	r := reply{CPU: before, At: make([]int64, len(o.Changes))}
	tick := time.NewTimer(0)
	defer tick.Stop()
	<-tick.C
	began := time.Now()
	for i := range o.Changes {
		if wait := time.Until(began.Add(time.Duration(i) * o.Every)); wait > 0 {
			tick.Reset(wait)
			select {
			case <-tick.C:
			case <-p.ctx.Done():
				return r, errors.New("interrupted")
			}
		}
		r.At[i] = time.Now().UnixNano()
		if err := p.side.publish(i); err != nil {
			return r, err
		}
	}
	return r, nil
}
