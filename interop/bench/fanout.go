package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// load is the size of a fan-out.
type load struct {
	services  int
	instances int
	streams   int
	each      int // subscriptions of a stream
	every     time.Duration
	rounds    int
	length    time.Duration // of one side's turn in a round
}

const (
	estateEvery = 24 * time.Millisecond // 2,500 changes a minute (DESIGN.md §1)
	// lateAfter is the time that a publication may take (DESIGN.md §1, detection).
	lateAfter = time.Second
	// lostAfter is how long arrivals are waited for when a turn is over.
	lostAfter = 10 * time.Second
	// enough is the share of a target load that must be reached.
	enough = 0.9
	// shortBudget is what -short may take in all, leaving some of its minute.
	shortBudget = 50 * time.Second
	// warmUp is the number of changes before the first round.
	warmUp = 40
	// turnOverhead is what a turn takes beside its load.
	turnOverhead = 400 * time.Millisecond
)

func estateLoad(s settings) load {
	// Many short turns rather than a few long ones: what else the machine does
	// then meets all sides.
	l := load{services: 450, instances: 133, streams: 5000, each: 10, every: estateEvery, rounds: 15, length: 4 * time.Second}
	if s.short {
		l.streams, l.rounds, l.length = 1500, 5, 1500*time.Millisecond
	}
	if s.streams > 0 {
		l.streams = s.streams
	}
	if s.rounds > 0 {
		l.rounds = s.rounds
	}
	return l
}

// pair is a side's two processes.
type pair struct {
	name            string
	server, clients *part
	rssPerStream    float64 // KB
	turns           []turn
}

// turn is what one side did in one round.
type turn struct {
	expected, delivered int
	late, lost          int
	cpu                 time.Duration
	latencies           []time.Duration // sorted
	published           time.Duration   // from the first change to the last
}

// perDelivery is the server's CPU for one delivered and acknowledged update.
func (t *turn) perDelivery() float64 {
	return float64(t.cpu) / float64(time.Microsecond) / float64(max(t.delivered, 1))
}

func fanoutEstate(ctx context.Context, s settings, r *report) error {
	l := estateLoad(s)
	dir, err := os.MkdirTemp("", "sightline-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := writeIdentities(dir); err != nil {
		return err
	}
	if s.profile != "" {
		if err := os.MkdirAll(s.profile, 0o755); err != nil {
			return err
		}
	}
	var pairs []*pair
	defer func() {
		for _, p := range slices.Backward(pairs) {
			p.clients.end()
			p.server.end()
		}
	}()
	for _, name := range []string{sideOurs, sideRaw, sideLinear} {
		p, err := startPair(name, l, dir, s.profile, r)
		if err != nil {
			return err
		}
		pairs = append(pairs, p)
	}
	if s.short { // what connecting took on this machine comes off the turns
		left := (shortBudget - time.Since(r.began)) / time.Duration(l.rounds*len(pairs))
		l.length = min(max(left-turnOverhead, time.Second), l.length)
	}
	if err := takeTurns(ctx, pairs, l, r); err != nil {
		return err
	}
	reportFanout(pairs, r)
	return shortfall(pairs)
}

// startPair starts a side and connects its clients.
func startPair(name string, l load, dir, profile string, r *report) (*pair, error) {
	p := &pair{name: name}
	var err error
	if p.server, err = startPart(name, r.progress); err != nil {
		return nil, err
	}
	if p.clients, err = startPart("clients", r.progress); err != nil {
		p.server.end()
		return nil, err
	}
	if err := p.open(l, dir, profile); err != nil {
		p.clients.end()
		p.server.end()
		return nil, err
	}
	r.say("%s: %d streams of %d subscriptions are up, %.0f KB resident a stream", name, l.streams, l.each, p.rssPerStream)
	return p, nil
}

func (p *pair) open(l load, dir, profile string) error {
	if profile != "" {
		profile = filepath.Join(profile, p.name+".pprof")
	}
	up, err := p.server.tell(order{Do: doStart, Identities: dir, Services: l.services, Instances: l.instances, Profile: profile})
	if err != nil {
		return err
	}
	connect := order{Do: doConnect, Addr: up.Addr, Identities: dir, Services: l.services, Each: l.each}
	// The first few streams bring in what all streams share.
	connect.Streams = min(l.streams/2, 2*l.services/l.each)
	before, err := p.connect(connect)
	if err != nil {
		return err
	}
	connect.From, connect.Streams = connect.Streams, l.streams-connect.Streams
	after, err := p.connect(connect)
	p.rssPerStream = float64(after.RSS-before.RSS) / 1024 / float64(connect.Streams)
	return err
}

// connect opens streams, and returns what the server holds then.
func (p *pair) connect(o order) (reply, error) {
	if _, err := p.clients.tell(o); err != nil {
		return reply{}, err
	}
	return p.server.tell(order{Do: doMemory})
}

// takeTurns runs the rounds. The order of the sides changes from round to round.
func takeTurns(ctx context.Context, pairs []*pair, l load, r *report) error {
	next := make(map[string]int) // number of a side's next change
	for _, p := range pairs {
		// A first turn, not counted: heaps and pools come to their sizes.
		next[p.name] = warmUp
		if _, err := p.turn(schedule(1, warmUp, l.services), l); err != nil {
			return err
		}
	}
	for round := range l.rounds {
		for i := range pairs {
			if err := ctx.Err(); err != nil {
				return err
			}
			p := pairs[(i+round)%len(pairs)]
			count := int(l.length / l.every)
			t, err := p.turn(schedule(next[p.name]+1, count, l.services), l)
			if err != nil {
				return err
			}
			next[p.name] += count
			p.turns = append(p.turns, t)
			r.say("round %d %-6s %d of %d delivered, %.1f us each, p50 %.1f ms, p99 %.1f ms", round+1, p.name,
				t.delivered, t.expected, t.perDelivery(), milliseconds(percentile(t.latencies, 50)), milliseconds(percentile(t.latencies, 99)))
		}
	}
	return nil
}

// turn puts the load on a side once. Its CPU is counted until the last
// acknowledgement has been taken in.
func (p *pair) turn(changes []change, l load) (turn, error) {
	loaded, err := p.server.tell(order{Do: doLoad, Changes: changes, Every: l.every})
	if err != nil {
		return turn{}, err
	}
	expected := expectedDeliveries(changes, l)
	var all []delivery
	for deadline := time.Now().Add(lostAfter); ; {
		got, err := p.clients.tell(order{Do: doCollect})
		if err != nil {
			return turn{}, err
		}
		all = append(all, got.Deliveries...)
		if len(all) >= expected || time.Now().After(deadline) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond) // the last acknowledgements are on their way
	after, err := p.server.tell(order{Do: doUsage})
	if err != nil {
		return turn{}, err
	}
	t := account(changes, loaded.At, all, l)
	t.cpu = after.CPU - loaded.CPU
	return t, nil
}

// expectedDeliveries is how many updates the changes are to the streams.
func expectedDeliveries(changes []change, l load) int {
	subscribers := subscribersOf(l)
	n := 0
	for _, c := range changes {
		n += len(subscribers[c.Service])
	}
	return n
}

// subscribersOf lists the streams of each service.
func subscribersOf(l load) [][]int32 {
	all := make([][]int32, l.services)
	for stream := range l.streams {
		for _, s := range subscriptions(stream, l.each, l.services) {
			all[s] = append(all[s], int32(stream))
		}
	}
	return all
}

// account compares what was published with what arrived.
func account(changes []change, at []int64, all []delivery, l load) turn {
	t := turn{expected: expectedDeliveries(changes, l)}
	published := make(map[int32]int64, len(changes))
	last := make(map[int32]int32, len(changes)) // newest change of a service
	for i, c := range changes {
		published[int32(c.Number)] = at[i]
		last[int32(c.Service)] = int32(c.Number)
	}
	type key struct{ stream, service int32 }
	holds := make(map[key]int32, len(all))
	for _, d := range all {
		when, ok := published[d.Number]
		if !ok {
			continue // of the turn before: it was counted as lost
		}
		t.delivered++
		took := time.Duration(d.At - when)
		t.latencies = append(t.latencies, took)
		if took > lateAfter {
			t.late++
		}
		k := key{d.Stream, d.Service}
		holds[k] = max(holds[k], d.Number)
	}
	subscribers := subscribersOf(l)
	for service, number := range last {
		for _, stream := range subscribers[service] {
			if holds[key{stream, service}] < number {
				t.lost++
			}
		}
	}
	slices.Sort(t.latencies)
	t.published = time.Duration(at[len(at)-1] - at[0])
	return t
}

// of gathers one figure of each of a side's turns.
func (p *pair) of(figure func(*turn) float64) []float64 {
	var values []float64
	for i := range p.turns {
		values = append(values, figure(&p.turns[i]))
	}
	return values
}

func reportFanout(pairs []*pair, r *report) {
	latency := func(p float64) func(*turn) float64 {
		return func(t *turn) float64 { return milliseconds(percentile(t.latencies, p)) }
	}
	for _, base := range pairs[1:] {
		for _, m := range []struct {
			metric, unit string
			figure       func(*turn) float64
		}{
			{"cpu_per_delivery", "us", (*turn).perDelivery},
			{"p50", "ms", latency(50)}, {"p99", "ms", latency(99)}, {"p99.9", "ms", latency(99.9)},
			{"late", "count", func(t *turn) float64 { return float64(t.late) }},
			{"lost", "count", func(t *turn) float64 { return float64(t.lost) }},
		} {
			r.against(m.metric, m.unit, pairs[0].of(m.figure), base.name, base.of(m.figure))
		}
		r.against("rss_per_stream", "KB", []float64{pairs[0].rssPerStream}, base.name, []float64{base.rssPerStream})
	}
}

// shortfall is an error if a side's load stayed below its target: too few
// deliveries, or changes that were published too slowly.
func shortfall(pairs []*pair) error {
	var errs []error
	for _, p := range pairs {
		for i, t := range p.turns {
			if float64(t.delivered) < enough*float64(t.expected) {
				errs = append(errs, fmt.Errorf("%s, round %d: %d of %d updates were delivered, less than %.0f %%", p.name, i+1, t.delivered, t.expected, 100*enough))
			}
		}
	}
	return errors.Join(errs...)
}
