package health

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// watchedRegion is a region of 60,000 instances in 450 services and three
// zones, each probed by two of 30 probers; two of a hundred are down.
func watchedRegion() (all []*Evaluator, hear func(now time.Time)) {
	const services, each, zones, probers = 450, 134, 3, 30
	who := make([]Prober, probers)
	for k := range who {
		who[k] = Prober{Name: fmt.Sprintf("prober-%d", k), Zone: fmt.Sprintf("z%d", k%zones)}
	}
	var byService [][]*instance
	for s := range services {
		name := registry.Name{Namespace: "shop", Service: fmt.Sprintf("svc-%d", s)}
		e := New(name, epoch, Memory{})
		c := registry.Change{Name: name, Service: &registry.Service{Name: name}}
		for k := range each {
			uid := registry.UID(s*each + k + 1)
			c.Instances = append(c.Instances, registry.InstanceChange{
				UID:     uid,
				Row:     &registry.Instance{UID: uid, Service: name, Zone: fmt.Sprintf("z%d", k%zones), Proof: registry.ByAuthority},
				Profile: registry.Profile{Supplies: registry.ClassSet(0).With(registry.ClassProbe)},
			})
		}
		e.Load(c)
		all = append(all, e)
		byService = append(byService, e.sorted())
	}
	return all, func(now time.Time) {
		for s, e := range all {
			for _, i := range byService[s] {
				u := int(i.row.UID)
				for _, p := range [...]Prober{who[u%probers], who[(u+1)%probers]} {
					r := ProbeOK
					if u%50 == 0 {
						r = ProbeTimeout
					}
					e.hearProbe(i, &Sample{UID: i.row.UID, Class: registry.ClassProbe, At: now, Prober: p, Result: r})
				}
			}
		}
	}
}

// BenchmarkTally is a second of a region's tallies: four ticks. In calm nothing
// turns; in turmoil a result of every service turns at every tick.
func BenchmarkTally(b *testing.B) {
	for _, turmoil := range []bool{false, true} {
		b.Run(fmt.Sprintf("turmoil=%v", turmoil), func(b *testing.B) {
			all, hear := watchedRegion()
			now := epoch
			hear(now)
			for b.Loop() {
				for range 4 {
					now = now.Add(tick)
					for _, e := range all {
						e.tally.turned = e.tally.turned || turmoil
						e.Tally(now)
					}
				}
				if now.Sub(epoch) > 5*time.Second {
					b.StopTimer()
					now = epoch
					hear(now)
					b.StartTimer()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/s")
		})
	}
}

// BenchmarkObservers is a second of a region's judgements: four, of all tallies.
func BenchmarkObservers(b *testing.B) {
	for _, turmoil := range []bool{false, true} {
		b.Run(fmt.Sprintf("turmoil=%v", turmoil), func(b *testing.B) {
			all, hear := watchedRegion()
			now := epoch
			hear(now)
			var tallies []Tally
			for _, e := range all {
				tallies = append(tallies, e.Tally(now))
			}
			o := NewObservers()
			for b.Loop() {
				for range 4 {
					now = now.Add(tick)
					if turmoil {
						for k := range tallies {
							tallies[k].Counted = now
						}
					}
					o.Take(now, tallies)
					o.Judge(now)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/s")
		})
	}
}
