package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// recorded is a region that keeps minutes of evidence.
type recorded struct {
	*region
	kept   map[registry.Name][][]byte
	starts map[registry.Name][]time.Time
}

func newRecorded(t *testing.T) *recorded {
	k := &recorded{kept: map[registry.Name][][]byte{}, starts: map[registry.Name][]time.Time{}}
	k.region = newRegion(t, func(c *Config) {
		c.SaveMinute = func(n registry.Name, start time.Time, record []byte) {
			k.locked(func() { k.kept[n], k.starts[n] = append(k.kept[n], record), append(k.starts[n], start) })
		}
		c.Minutes = func(ctx context.Context, n registry.Name, from, until time.Time, visit func(time.Time, []byte) bool) (int, error) {
			var records [][]byte
			var starts []time.Time
			k.locked(func() { records, starts = slices.Clone(k.kept[n]), slices.Clone(k.starts[n]) })
			for i, at := range starts {
				if !at.Before(from) && at.Before(until) && !visit(at, records[i]) {
					break
				}
			}
			return 0, ctx.Err()
		}
	})
	return k
}

// probe lets two probers, in two zones, find each instance as how says.
func (k *recorded) probe(d time.Duration, how func(uid registry.UID) health.ProbeResult) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		for uid := registry.UID(1); uid <= 12; uid++ {
			for _, zone := range []string{"a", "b"} {
				k.set.Submit(checkout, []health.Sample{{UID: uid, Class: registry.ClassProbe, At: time.Now(),
					Prober: health.Prober{Name: "p-" + zone, Zone: zone}, Result: how(uid)}})
			}
		}
		time.Sleep(2 * time.Second)
	}
	synctest.Wait()
}

func probedOnly(c registry.Change) registry.Change {
	for k := range c.Instances {
		c.Instances[k].Profile.Supplies = registry.ClassSet(0).With(registry.ClassProbe)
	}
	return c
}

// TestMinutesAreKept: each service at its own second, the next minute where the
// last one ended, and none of one of which nothing is heard.
func TestMinutesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newRecorded(t)
		other, static := registry.Name{Namespace: "shop", Service: "other"}, registry.Name{Namespace: "shop", Service: "static"}
		k.start(Boot{Services: []registry.Change{probedOnly(threeZones(1, nil)), rows(other, 1, 0, self, 21), rows(static, 1, 0, 0, 31)}})
		k.probe(5*time.Minute, func(registry.UID) health.ProbeResult { return health.ProbeOK })
		k.stop()
		if n := len(k.kept[checkout]); n < 4 || n > 5 || len(k.kept[other]) < 4 || len(k.kept[static]) != 0 {
			t.Errorf("%d minutes, %d of the other, %d of the static", n, len(k.kept[other]), len(k.kept[static]))
		}
		var last time.Time
		for _, b := range k.kept[checkout] {
			m, err := health.ReadMinute(b)
			if err != nil || len(m.Instances) != 12 || len(m.Instances[0].Probes) != 2 {
				t.Fatalf("minute %+v, %v", m, err)
			}
			if d := m.Start.Sub(last).Abs(); !last.IsZero() && d > time.Second {
				t.Errorf("a minute starts %s after the last one's end", d)
			}
			last = m.Start.Add(m.Length)
		}
	})
}

// TestADraftIsHeldAgainstWhatHappened: where it would have decided otherwise, by
// which rule, how many at most, and where a guard would have tripped.
func TestADraftIsHeldAgainstWhatHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newRecorded(t)
		k.start(Boot{Services: []registry.Change{probedOnly(threeZones(1, nil))}})
		good := func(registry.UID) health.ProbeResult { return health.ProbeOK }
		k.probe(3*time.Minute, good)
		began := time.Now()
		turn := 0
		k.probe(4*time.Minute, func(uid registry.UID) health.ProbeResult { // every fourth probe of three in zone a fails
			if turn++; uid <= 3 && turn/24%4 == 0 {
				return health.ProbeFailed
			}
			return health.ProbeOK
		})
		k.probe(5*time.Minute, good)
		if i, _, _ := k.set.Inspect(t.Context(), checkout); slices.ContainsFunc(i.Instances, func(x health.Explanation) bool { return x.Verdict.State == health.Ineligible }) {
			t.Fatal("the contract in effect withdraws")
		}
		same, err := k.set.TestContract(t.Context(), checkout, registry.Contract{}, time.Hour)
		if err != nil || len(same.Changes) != 0 || same.Peak.DraftOut != 0 || len(same.Guards) != 0 || same.Instances != 12 ||
			same.Minutes < 11 || same.Missing != 0 || same.To.Sub(same.From) < 11*time.Minute || len(same.Caveats) != 2 {
			t.Errorf("the same contract: %+v, %v", same, err)
		}
		strict := registry.Contract{ProbeOut: 0.15, ProbeIn: 0.05}
		got, err := k.set.TestContract(t.Context(), checkout, strict, time.Hour)
		if err != nil || len(got.Changes) == 0 {
			t.Fatalf("a stricter one: %+v, %v", got, err)
		}
		for _, c := range got.Changes {
			if c.UID > 3 || c.Live.State != health.Eligible || c.From.Before(began.Add(-time.Minute)) || c.To.IsZero() {
				t.Errorf("change %+v", c)
			}
		}
		first := got.Changes[0]
		if first.Draft.State != health.Ineligible || first.Draft.Rule != health.R5 || first.Draft.Detail == "" || first.From.Sub(began) > 2*time.Minute {
			t.Errorf("first change, %s after the fault: %+v", first.From.Sub(began), first)
		}
		if got.Peak.DraftOut != 3 || got.Peak.LiveOut != 0 || got.Peak.Members != 12 {
			t.Errorf("peak %+v", got.Peak)
		}
		if len(got.Guards) == 0 || got.Guards[0].Zone != "a" || got.Guards[0].LiveToo || got.Guards[0].Members != 4 || got.Guards[0].Serving != 1 || got.Guards[0].Floor != 50 {
			t.Errorf("guards %+v", got.Guards)
		}
		// Nothing was changed by asking.
		if i, _, _ := k.set.Inspect(t.Context(), checkout); i.Rollout != nil {
			t.Errorf("rollout %+v", i.Rollout)
		}
		k.stop()
	})
}

// TestATrialOfWhatIsNotThere: nothing recorded, holes, damage, an unknown
// service, a caller that gives up.
func TestATrialOfWhatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newRecorded(t)
		k.start(Boot{Services: []registry.Change{probedOnly(threeZones(1, nil))}})
		draft := registry.Contract{Probe: registry.Probe{Kind: registry.ProbeHTTP}}
		none, err := k.set.TestContract(t.Context(), checkout, draft, time.Hour)
		if err != nil || none.Minutes != 0 || !none.From.IsZero() || !strings.Contains(fmt.Sprint(none.Caveats), "probed as the contract in effect says") {
			t.Errorf("nothing recorded: %+v, %v", none, err)
		}
		k.probe(6*time.Minute, func(registry.UID) health.ProbeResult { return health.ProbeOK })
		k.set.SubmitChange(removal(checkout, 2, registry.Deregistered, 12))
		k.probe(2*time.Minute, func(registry.UID) health.ProbeResult { return health.ProbeOK })
		k.locked(func() {
			k.kept[checkout] = slices.Delete(k.kept[checkout], 2, 4)
			k.starts[checkout] = slices.Delete(k.starts[checkout], 2, 4)
			k.kept[checkout][4] = []byte("damaged")
		})
		got, err := k.set.TestContract(t.Context(), checkout, registry.Contract{}, time.Hour)
		if err != nil || got.Missing != 3 || len(got.Changes) != 0 || !strings.Contains(fmt.Sprint(got.Caveats), "1 recorded minutes cannot be read") {
			t.Errorf("holes: %+v, %v", got, err)
		}
		if _, err := k.set.TestContract(t.Context(), registry.Name{Namespace: "no", Service: "body"}, draft, time.Hour); !errors.Is(err, ErrNoService) {
			t.Errorf("unknown service: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := k.set.TestContract(ctx, checkout, draft, time.Hour); !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
		k.stop()
		if _, err := k.set.TestContract(t.Context(), checkout, draft, time.Hour); !errors.Is(err, ErrStopped) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// TestATrialIsBounded: a trial of a large service goes less far
// back.
func TestATrialIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newRecorded(t)
		uids := make([]registry.UID, 2000)
		for i := range uids {
			uids[i] = registry.UID(i + 1)
		}
		k.start(Boot{Services: []registry.Change{rows(checkout, 1, 0, self, uids...)}})
		got, err := k.set.TestContract(t.Context(), checkout, registry.Contract{}, 7*24*time.Hour)
		if err != nil || !strings.Contains(fmt.Sprint(got.Caveats), "no more than 4h10m0s are replayed") {
			t.Errorf("%+v, %v", got.Caveats, err)
		}
		k.stop()
	})
}

// TestADraftJudgesSilence: what was never heard is recorded too.
func TestADraftJudgesSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newRecorded(t)
		k.start(Boot{Services: []registry.Change{threeZones(1, nil)}})
		k.run(4*time.Minute, all(5, 6)...)
		got, err := k.set.TestContract(t.Context(), checkout, registry.Contract{Silence: registry.SilenceIneligible}, time.Hour)
		if err != nil || len(got.Changes) != 2 || got.Changes[0].UID != 5 || got.Changes[0].Live.State != health.Unknown ||
			got.Changes[0].Draft.Rule != health.R6 || !got.Changes[0].To.IsZero() || got.Peak.DraftOut != 2 {
			t.Errorf("%+v, %v", got, err)
		}
		// One that comes and never speaks is a member by one contract alone.
		k.set.SubmitChange(changed(2, nil))
		k.set.SubmitChange(rows(checkout, 3, 0, self, 13))
		k.run(3*time.Minute, all(5, 6)...)
		got, err = k.set.TestContract(t.Context(), checkout, registry.Contract{Silence: registry.SilenceIneligible}, time.Hour)
		if err != nil || len(got.Changes) != 3 || got.Changes[2].UID != 13 || got.Changes[2].Draft.Rule != health.Admission {
			t.Errorf("with a new one: %+v, %v", got, err)
		}
		k.stop()
	})
}
