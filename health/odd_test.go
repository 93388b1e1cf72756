package health

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// Random histories in which the rows change too: zones, leases, profiles and
// contracts, within ramps, trials and quarantines; instances go and others come; the
// guard lifts; counts are as large as they get. The evaluator's own counts are right
// at every judgement, and 45 minutes after the last fault nobody is stuck.
func TestOddHistoriesEndWell(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			oddHistory(t, seed)
		})
	}
}

func oddHistory(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 9))
	s := newScenario()
	s.tick = time.Second
	profiles := []string{"probe,self,callers", "probe", "self", "callers", "probe,callers", "self,callers", ""}
	s.do(t, "add i1-i6 zone=z1 lease=25s supplies="+profiles[seed%7],
		"keep renew i1-i6 every=8s", "keep SERVING i1-i6 every=2s", "probers p1@z1 p2@z2 third=p3@z3", "callers r1-r4 rate=5")
	next, live := 7, []int{1, 2, 3, 4, 5, 6}
	var history []string
	do := func(lines ...string) {
		history = append(history, lines...)
		s.do(t, lines...)
		checkCounts(t, s.e, history)
	}
	for range 60 {
		k := r.IntN(len(live))
		who := fmt.Sprintf("i%d", live[k])
		switch what := r.IntN(30); what {
		case 0, 1, 2, 3:
			do(fmt.Sprintf("add %s zone=z%d lease=%ds supplies=%s", who, 1+r.IntN(3), []int{0, 5, 25, 60}[r.IntN(4)], profiles[r.IntN(7)]))
		case 4:
			if len(live) > 2 {
				live = append(live[:k], live[k+1:]...)
				do("remove " + who + " " + []string{"deregistered", "list"}[r.IntN(2)])
			}
		case 5:
			who = fmt.Sprintf("i%d", next)
			live = append(live, next)
			next++
			do("add "+who+" zone=z1 lease=25s supplies="+profiles[r.IntN(7)], "keep renew "+who+" every=8s", "keep SERVING "+who+" every=2s")
		case 6:
			hear(s, registry.UID(live[k]), r)
		case 7, 8:
			do(fmt.Sprintf("contract silence=%s hold=%ds ramp=%s%s", []string{"unknown", "ineligible"}[r.IntN(2)], 10+r.IntN(40),
				[]string{"none", "60s", "5m"}[r.IntN(3)], []string{"", " zone=z1", " zone=z2"}[r.IntN(3)]))
		default:
			do([]string{
				"keep NOT_SERVING " + who + " every=2s", "keep SERVING " + who + " every=2s", "keep DRAINING " + who + " every=2s",
				"keep SERVING " + who + " every=2s degraded=db", "stop self " + who, "stop renew " + who, "keep renew " + who + " every=8s",
				"probe " + who + " FAILED", "probe " + who + " REFUSED", "probe " + who + " TIMEOUT by=p1", "probe " + who + " OK",
				"errors " + who + " 100%", "errors " + who + " 40%", "errors " + who + " 0%", "stance braked", "stance dead=z1",
				"stance blind=p1", "stance", "freeze 20s", "restart 20s", "restart 2s lost", "lift " + who, "release " + who,
			}[r.IntN(23)])
		}
		do(fmt.Sprintf("run %ds", 1+r.IntN(40)))
	}
	for _, n := range live {
		who := fmt.Sprintf("i%d", n)
		do("add "+who+" zone=z1 lease=25s supplies="+profiles[seed%7], "keep renew "+who+" every=8s", "keep SERVING "+who+" every=2s",
			"probe "+who+" OK", "errors "+who+" 0%")
	}
	do("contract silence=unknown hold=15s ramp=60s", "stance", "run 45m")
	for _, v := range s.e.Verdicts() {
		if v.State != Eligible || !v.Member || v.Weight != 100 || v.Quarantined || v.OutBy != NoRule || v.Waits != NoWait {
			t.Fatalf("%s\n%+v", strings.Join(history, "\n"), v)
		}
	}
}

// hear gives the evaluator outcomes that no caller would send, and some that it
// would not believe.
func hear(s *scenario, uid registry.UID, r *rand.Rand) {
	odd := []uint32{0, 1, maxOutcomeCalls - 1, maxOutcomeCalls, 1<<32 - 1}
	pick := func() uint32 { return odd[r.IntN(len(odd))] }
	s.e.ObserveOutcomes(s.now, &Outcomes{
		Reporter: callerNamed(s, r), Kind: ReporterKind(r.IntN(5)), At: s.now.Add(time.Duration(r.IntN(7)-4) * 20 * time.Second),
		Interval: []time.Duration{-1, 0, 1, 2 * time.Second, time.Hour}[r.IntN(5)],
		Entries: []Outcome{
			{UID: uid, Issued: pick(), OK: pick(), Failed: pick(), Refused: pick(), InProgress: pick(), Weight: pick()},
			{UID: uid, Weight: pick()}, {UID: 999, OK: 1},
		},
	})
}

func callerNamed(s *scenario, r *rand.Rand) Reporter {
	if len(s.callers) == 0 || r.IntN(2) == 0 {
		return Reporter{}
	}
	return s.callers[r.IntN(len(s.callers))].who
}

// checkCounts compares what the evaluator counts as it goes with the instances.
func checkCounts(t *testing.T, e *Evaluator, history []string) {
	t.Helper()
	var members, full, held, back int
	for _, i := range e.instances {
		n := func(is bool, count *int) {
			if is {
				*count++
			}
		}
		n(i.member, &members)
		n(i.member && i.onceFull, &full)
		n(i.heldOut, &held)
		n(i.sentBack, &back)
	}
	if members != e.members || full != e.full || held != e.heldOut || back != e.sentBack {
		t.Fatalf("%s\nmembers %d of %d, full %d of %d, held out %d of %d, sent back %d of %d", strings.Join(history, "\n"),
			e.members, members, e.full, full, e.heldOut, held, e.sentBack, back)
	}
	for uid := range e.tally.waiting {
		if e.instances[uid] == nil {
			t.Fatalf("%s\n%s waits and is gone", strings.Join(history, "\n"), uid)
		}
	}
}
