package shard

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// BenchmarkRebuild is a start with the estate of DESIGN.md §1: from rows in
// memory to every view published.
func BenchmarkRebuild(b *testing.B) {
	const services, each = 450, 134
	var boot Boot
	for k := range services {
		name := registry.Name{Namespace: "ns", Service: fmt.Sprintf("s%d", k)}
		var uids []registry.UID
		for i := range each {
			uids = append(uids, registry.UID(k*each+i+1))
		}
		boot.Services = append(boot.Services, rows(name, 1, 25*time.Second, self, uids...))
	}
	for b.Loop() {
		p := views.NewPublisher(views.PublisherConfig{Epoch: 1, Next: 1})
		ctx, cancel := context.WithCancel(b.Context())
		set := New(Config{Shards: 2, Publish: p.Publish, Complete: func() { p.Complete(); cancel() }})
		if err := set.Run(ctx, boot); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(services*each, "instances/op")
}

// BenchmarkWithdrawal is one instance's NOT_SERVING from Submit to the feed, in
// a service of the given size, and its SERVING back in a fresh one each time.
func BenchmarkWithdrawal(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := views.NewPublisher(views.PublisherConfig{Epoch: 1, Next: 1})
			told := make(chan struct{}, 1)
			ready := make(chan struct{})
			set := New(Config{
				Publish:  func(now time.Time, c views.Candidate) views.Result { return p.Publish(now, c) },
				Complete: func() { close(ready) }, // not the Publisher's: so that no lane holds a change back
				Feeds:    []func(views.Publication){func(views.Publication) { told <- struct{}{} }},
			})
			ctx, cancel := context.WithCancel(b.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); _ = set.Run(ctx, Boot{}) }()
			<-ready
			k := 0
			for b.Loop() {
				b.StopTimer()
				name := registry.Name{Namespace: "ns", Service: fmt.Sprintf("s%d", k)}
				k++
				uids := make([]registry.UID, n)
				for i := range uids {
					uids[i] = registry.UID(i + 1)
				}
				set.SubmitChange(rows(name, uint64(k), 0, 0, uids...))
				<-told
				b.StartTimer()
				set.Submit(name, []health.Sample{{UID: 1, Class: registry.ClassSelf, Status: health.NotServing, At: time.Now()}})
				<-told
				b.StopTimer()
				set.SubmitChange(registry.Change{Name: name, Revision: uint64(k), Removal: registry.ServiceDeleted})
				<-told
				b.StartTimer()
			}
			cancel()
			<-ended
		})
	}
}

// BenchmarkOutcomes is a tick's part of evidence-ingest for one service: 133
// instances, 45 reporters every two seconds, taken in and judged.
func BenchmarkOutcomes(b *testing.B) {
	const instances, reporters, ticks = 133, 45, 8
	name := registry.Name{Namespace: "ns", Service: "s"}
	zones := make(map[registry.UID]string)
	var uids []registry.UID
	for uid := registry.UID(1); uid <= instances; uid++ {
		zones[uid] = fmt.Sprintf("z%d", uid%3)
		uids = append(uids, uid)
	}
	var reports []*health.Outcomes
	for k := range reporters {
		reports = append(reports, callerReport(fmt.Sprintf("r%d", k), nil, uids...))
	}
	p := views.NewPublisher(views.PublisherConfig{Epoch: 1, Next: 1})
	set := New(Config{Publish: p.Publish, Complete: func() { p.Complete() }})
	sh := set.shards[0]
	now := time.Now()
	sh.loadService(zoned(name, 1, counted, zones), nil, nil)
	counts, k := 0, 0
	tick := func() {
		now = now.Add(250 * time.Millisecond)
		for range (reporters + ticks - 1) / ticks {
			o := reports[k%reporters]
			o.At = now
			set.SubmitOutcomes(name, o)
			counts += len(o.Entries)
			k++
		}
		sh.wake(now)
	}
	for range 400 {
		tick() // callers are primary
	}
	counts = 0
	b.ReportAllocs()
	for b.Loop() {
		tick()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(counts), "ns/sample")
}
