package views

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// BenchmarkPublish is one publication into a region of 3,000 services.
func BenchmarkPublish(b *testing.B) {
	p := NewPublisher(PublisherConfig{Epoch: 1})
	for n := range 3000 {
		p.Publish(time.Time{}, candidate(p, Name{Namespace: "shop", Service: fmt.Sprintf("s%d", n)}, 100))
	}
	n := Name{Namespace: "shop", Service: "s7"}
	pair := [2]Candidate{candidate(p, n, 101), candidate(p, n, 102)}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		c := pair[i%2]
		c.Base = p.Snapshot().Get(n).Version()
		p.Publish(time.Time{}, c)
	}
}

// BenchmarkApply is one verdict on one of a service's members.
func BenchmarkApply(b *testing.B) {
	for _, members := range []int{133, 10000} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			n := Name{Namespace: "shop", Service: "checkout"}
			s := &registry.Service{Name: n, Ports: []Port{{Name: "grpc", Number: 8080}, {Name: "http", Number: 80}}}
			in := Input{Change: &registry.Change{Name: n, Service: s, Contract: registry.Contract{GuardPercent: 50}}}
			for uid := range UID(members) {
				m := sampleView().Members[0]
				row := &registry.Instance{UID: uid + 1, Service: n, Identity: m.Identity, Endpoint: m.Endpoint, Weight: 100, Zone: fmt.Sprint(uid % 3)}
				in.Change.Instances = append(in.Change.Instances, registry.InstanceChange{UID: uid + 1, Row: row})
				in.Verdicts = append(in.Verdicts, health.Verdict{UID: uid + 1, State: Eligible, Member: true, Weight: 100})
			}
			a := NewAssembler(n, Memory{})
			a.Apply(time.Time{}, in)
			flip := [2]Input{{Verdicts: []health.Verdict{{UID: 7, State: Ineligible, Member: true, Weight: 100}}}, {Verdicts: in.Verdicts[6:7]}}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				a.Apply(time.Time{}, flip[i%2])
			}
		})
	}
}
