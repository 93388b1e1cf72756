package shard

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// Random histories of one service: contracts change within rollouts, instances come,
// go and change their zone, the service is deleted and made anew between two ticks,
// the server restarts. Nothing ends the process, no set is empty while anybody is
// there, and in the end the newest contract is in effect and everybody serves.
func TestOddHistoriesOfAService(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { oddHistory(t, seed) })
		})
	}
}

func oddHistory(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 11))
	s := newStaged(t)
	revision := uint64(1)
	live := map[registry.UID]string{}
	nextUID := registry.UID(1)
	adjust := func(*registry.Contract) {}
	var history []string
	zone := func() string { return []string{"a", "b", "c", ""}[r.IntN(4)] }
	whole := func() registry.Change {
		c := rows(checkout, revision, 0, self)
		for uid, z := range live {
			one := rows(checkout, revision, 0, self, uid).Instances[0]
			one.Row.Zone = z
			c.Instances = append(c.Instances, one)
		}
		return contract(c, adjust)
	}
	spoken := func() (uids []registry.UID) {
		for uid := range live {
			uids = append(uids, uid)
		}
		return uids
	}
	come := func() {
		live[nextUID] = zone()
		nextUID++
	}
	for range 8 {
		come()
	}
	s.start(Boot{Services: []registry.Change{whole()}})
	do := func(what string) { history = append(history, what) }
	for range 40 {
		revision++
		switch r.IntN(9) {
		case 0, 1:
			policy, hold, guard := registry.SilencePolicy(r.IntN(2)), time.Duration(15+r.IntN(30))*time.Second, uint32(1+r.IntN(100))
			adjust = func(c *registry.Contract) { c.Silence, c.ReturnHold, c.GuardPercent = policy, hold, guard }
			do(fmt.Sprintf("contract %v %v %d", policy, hold, guard))
			s.set.SubmitChange(contract(rows(checkout, revision, 0, self), adjust))
		case 2:
			come()
			do("one comes")
			s.set.SubmitChange(whole())
		case 3, 4:
			gone := spoken()
			if r.IntN(3) > 0 {
				gone = gone[:min(len(gone), 1)]
			}
			do(fmt.Sprintf("%v go", gone))
			c := removal(checkout, revision, registry.Deregistered, gone...)
			for _, uid := range gone {
				delete(live, uid)
			}
			s.set.SubmitChange(contract(c, adjust))
		case 5:
			do("deleted and made anew")
			s.set.SubmitChange(registry.Change{Name: checkout, Revision: revision, Removal: registry.ServiceDeleted})
			clear(live)
			for range 1 + r.IntN(5) {
				come()
			}
			revision++
			s.set.SubmitChange(whole())
		case 6:
			do("zones change")
			for uid := range live {
				live[uid] = zone()
			}
			s.set.SubmitChange(whole())
		case 7:
			do("restart")
			s.stop()
			memories := maps.Clone(s.memories)
			s = newStaged(t)
			s.start(Boot{Services: []registry.Change{whole()}, Memories: memories})
		case 8:
			for _, uid := range spoken() {
				if r.IntN(2) == 0 {
					s.say(health.NotServing, uid)
				}
			}
			do("some do not serve")
		}
		d := time.Duration(1+r.IntN(50)) * time.Second
		do("run " + d.String())
		s.run(d, spoken()...)
		if v := s.publisher.Snapshot().Get(checkout); v == nil || len(live) > 0 && d > 40*time.Second && v.ListedCount == 0 {
			t.Fatalf("nobody is listed of %d\n%s", len(live), strings.Join(history, "\n"))
		}
	}
	s.run(15*time.Minute, spoken()...)
	if x := s.rollout(); x != nil && x.State != RolloutRefused {
		t.Fatalf("rollout %+v\n%s", x, strings.Join(history, "\n"))
	}
	if n := len(s.listed()); n != len(live) {
		t.Fatalf("%d of %d are listed\n%s", n, len(live), strings.Join(history, "\n"))
	}
	s.stop()
}
