package shard

import (
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// registryOf keeps the rows of a service as the registry has them.
type registryOf struct {
	*region
	full registry.Change
}

func (r *registryOf) submit(c registry.Change) {
	r.full.Revision, r.full.Service, r.full.Contract = c.Revision, c.Service, c.Contract
	for _, i := range c.Instances {
		kept := r.full.Instances[:0:0]
		for _, have := range r.full.Instances {
			if have.UID != i.UID {
				kept = append(kept, have)
			}
		}
		if i.Row != nil {
			kept = append(kept, i)
		}
		r.full.Instances = kept
	}
	r.set.SubmitChange(c)
}

// differs looks three times, as whoever alarms does.
func (r *registryOf) differs() (why string, compared int) {
	for range 3 {
		got, err := r.set.Rebuild(r.t.Context(), r.full)
		if err != nil {
			r.t.Fatal(err)
		}
		switch {
		case got.Skipped != "":
			return "", compared
		case got.Same:
			return "", compared + 1
		}
		why = got.Detail
		compared++
		time.Sleep(time.Second)
	}
	return why, compared
}

// TestARebuiltViewIsTheSame: through any history of words, silence, rows and
// leases, a start at any moment would publish what is published.
func TestARebuiltViewIsTheSame(t *testing.T) {
	compared := 0
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			r := &registryOf{region: newRegion(t, nil), full: threeZones(1, nil)}
			random := rand.New(rand.NewPCG(seed, 1))
			lease := time.Duration(seed%2) * 10 * time.Second
			for k := range r.full.Instances {
				r.full.Instances[k].Row.Lease = lease
			}
			first := r.full
			r.start(Boot{Services: []registry.Change{first}})
			speaking := map[registry.UID]bool{}
			for round := range 60 {
				for uid := registry.UID(1); uid <= 14; uid++ {
					if random.IntN(6) == 0 {
						speaking[uid] = random.IntN(3) > 0
					}
				}
				switch random.IntN(6) {
				case 0:
					r.say(health.NotServing, registry.UID(1+random.IntN(12)))
				case 1:
					r.say(health.Draining, registry.UID(1+random.IntN(12)))
				case 2:
					c := rows(checkout, uint64(round+2), lease, self, registry.UID(1+random.IntN(14)))
					c.Contract = c.Contract.WithDefaults()
					c.Instances[0].Row.Zone, c.Instances[0].Row.Weight = "b", uint32(50+random.IntN(100))
					r.submit(c)
				case 3:
					c := removal(checkout, uint64(round+2), registry.Deregistered, registry.UID(1+random.IntN(14)))
					c.Contract = c.Contract.WithDefaults()
					r.submit(c)
				}
				var renewing []registry.UID
				for uid, speaks := range speaking {
					if speaks {
						renewing = append(renewing, uid)
					}
				}
				r.run(time.Duration(1+random.IntN(12))*time.Second, renewing...)
				why, n := r.differs()
				compared += n
				if why != "" {
					t.Fatalf("seed %d, round %d: %s", seed, round, why)
				}
			}
			r.stop()
		})
	}
	if compared < 200 {
		t.Errorf("only %d views were compared", compared)
	}
}

// TestADifferenceIsFound: a row that the shard never heard of, a member that is
// not as the registry has it, and what is not compared.
func TestADifferenceIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaged(t)
		rows := threeZones(1, nil)
		s.start(Boot{Services: []registry.Change{rows}})
		s.run(30*time.Second, all()...)
		look := func(c registry.Change) Rebuilt {
			got, err := s.set.Rebuild(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		if got := look(rows); !got.Same {
			t.Errorf("as it is: %+v", got)
		}
		missing := rows
		missing.Instances = rows.Instances[1:]
		if got := look(missing); got.Same || !strings.Contains(got.Detail, "member i1") {
			t.Errorf("without a row: %+v", got)
		}
		moved := rows
		moved.Instances = append([]registry.InstanceChange{}, rows.Instances...)
		row := *moved.Instances[4].Row
		row.Zone = "elsewhere"
		moved.Instances[4].Row = &row
		if got := look(moved); got.Same || !strings.Contains(got.Detail, "member i5 is") || !strings.Contains(got.Detail, "elsewhere") {
			t.Errorf("in another zone: %+v", got)
		}
		exposed := rows
		service := *rows.Service
		service.DNSAnonymous = true
		exposed.Service = &service
		if got := look(exposed); got.Same || !strings.Contains(got.Detail, "config hash") {
			t.Errorf("exposed: %+v", got)
		}
		for want, c := range map[string]registry.Change{
			"on its way": {Name: checkout, Revision: 9, Service: rows.Service}, "cannot be read": {Name: checkout, Revision: 1, DamagedRows: 1},
			"not evaluated": {Name: registry.Name{Namespace: "no", Service: "body"}},
		} {
			if got := look(c); got.Same || !strings.Contains(got.Skipped, want) {
				t.Errorf("%q: %+v", want, got)
			}
		}
		newer := contract(rows, silenceCounts)
		newer.Revision = 2
		s.set.SubmitChange(newer)
		s.run(10*time.Second, all()...)
		if got := look(newer); !got.Same {
			t.Errorf("while a contract is in its shadow: %+v", got)
		}
		s.run(60*time.Second, all()...)
		if got := look(newer); !strings.Contains(got.Skipped, "some zones") {
			t.Errorf("while a contract is in effect in some zones: %+v", got)
		}
		s.stop()
	})
}
