package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// row is one line of HEALTH.md §10 or §11: a world with a script, and what has to
// hold at its end.
type row struct {
	name  string
	about string
	seeds int           // by default; -seeds takes their place
	lasts time.Duration // of one run; 0: the days of -days
	build func(seed uint64) *world
	// judge returns what did not hold.
	judge func(w *world) []string
	// hard says on which path its detections are counted.
	hard bool
	// bar is what the p99 of the detections must not exceed; 0: none is expected.
	bar time.Duration
	// most: nine detections of ten are held to the bar, not 99 of 100.
	most bool
	// damped: what memory adds to it is held to the bar of DESIGN.md §1 as well.
	damped bool
}

// warm is how long a world runs before its fault: callers become primary after
// a minute.
const warm = 90 * time.Second

var (
	all       = registry.AllClasses
	onlyProbe = registry.ClassSet(0).With(registry.ClassProbe)
	four      = []string{"a", "a", "b", "b"}
	twelve    = []string{"a", "a", "a", "a", "b", "b", "b", "b", "c", "c", "c", "c"}
	three     = []health.Prober{{Name: "p1", Zone: "a"}, {Name: "p2", Zone: "b"}, {Name: "p3", Zone: "c"}}
	mixed     = []health.ReporterKind{health.FromGRPC, health.FromEnvoy, health.FromLibrary}
)

// estate is the world most rows start from: four instances, all classes, three
// probers and five callers.
func estate(seed uint64, change func(*setup)) *world {
	s := setup{seed: seed, supplies: all, zones: four, probers: three, callers: 5, kinds: mixed, rate: 20}
	if change != nil {
		change(&s)
	}
	return newWorld(s)
}

// at adds an act to the script; acts are added in the order of their times.
func (w *world) at(t time.Duration, do func(*world)) *world {
	w.script = append(w.script, act{t, do})
	return w
}

// breaks sets the condition of instances, by their position.
func breaks(change func(*condition), which ...int) func(*world) {
	return func(w *world) {
		for _, k := range which {
			c := w.instances[k].is
			change(&c)
			w.set(w.instances[k], c)
		}
	}
}

func fails(p float64) func(*condition) { return func(c *condition) { c.fails = p } }
func refuses(c *condition)             { c.refuses, c.self = true, health.NoStatus }
func hangs(c *condition)               { c.hangs, c.self = true, health.NoStatus }
func heal(c *condition)                { *c = condition{self: health.Serving} }

func rows() []row {
	return slices.Concat(greyRows(), hardRows(), backgroundRows(), observerRows(), fleetRows())
}

// greyRow is one instance of four that fails a share of its calls while probes
// and its own word are good, from a moment that no report is tied to.
func greyRow(name string, share, rate float64, seeds int, bar time.Duration) row {
	return row{
		name: name, seeds: seeds, lasts: warm + 45*time.Second, bar: bar, damped: share >= 0.4,
		about: fmt.Sprintf("one of four fails %.0f %% of its calls at %g calls/s an instance, five reporters", share*100, rate),
		build: func(seed uint64) *world {
			w := estate(seed, func(s *setup) { s.rate = rate })
			return w.at(warm+time.Duration(seed%9)*233*time.Millisecond, breaks(fails(share), 0))
		},
		judge: onlyBroken,
	}
}

// thin is a fault so close to the out-line that chance decides how long its score
// stays under it.
func thin(r row) row {
	r.most = true
	return r
}

func greyRows() []row {
	return []row{
		greyRow("grey-40", 0.4, 20, 60, 10*time.Second),
		greyRow("grey-100", 1, 20, 60, 5*time.Second),
		greyRow("grey-30-busy", 0.3, 300, 20, 10*time.Second),
		thin(greyRow("grey-25", 0.25, 20, 200, 15*time.Second)),
		{
			name: "grey-quiet", about: "40 % failing below the traffic that makes callers primary: not seen by callers",
			seeds: 6, lasts: warm + time.Minute,
			build: func(seed uint64) *world {
				return estate(seed, func(s *setup) { s.rate, s.callers = 0.4, 2 }).at(warm, breaks(fails(0.4), 0))
			},
			judge: func(w *world) []string { return none(w, "verdict", w.seen.verdicts) },
		},
		{
			name: "grey-zone", about: "four of twelve grey in one zone: out, and the zone's share of traffic at most 10 %",
			seeds: 12, lasts: warm + 12*time.Second, bar: 10 * time.Second,
			build: func(seed uint64) *world {
				return estate(seed, func(s *setup) { s.zones = twelve }).at(warm, breaks(fails(0.4), 0, 1, 2, 3))
			},
			judge: func(w *world) []string {
				miss := onlyBroken(w)
				if s := w.share(func(i *instance) bool { return i.zone == "a" }); s > 0.10 {
					miss = append(miss, fmt.Sprintf("the grey zone carries %.0f %% of the traffic", 100*s))
				}
				return miss
			},
		},
		{
			name: "grey-recovers", about: "repaired after 40 s: back by its trial, without a relapse",
			seeds: 12, lasts: warm + 4*time.Minute, bar: 10 * time.Second,
			build: func(seed uint64) *world {
				return estate(seed, nil).at(warm, breaks(fails(0.5), 0)).at(warm+40*time.Second, breaks(heal, 0))
			},
			judge: func(w *world) []string {
				miss := onlyBroken(w)
				if w.isOut(w.instances[0]) || !w.lists(w.instances[0]) {
					miss = append(miss, "the repaired instance is not back")
				}
				return miss
			},
		},
		{
			name: "redeploy-hang", about: "the callers go (their redeploy), then one instance hangs: probes are primary at once",
			seeds: 12, lasts: warm + 40*time.Second, bar: 10 * time.Second,
			build: func(seed uint64) *world {
				return estate(seed, nil).at(warm, func(w *world) { w.callers = nil }).
					at(warm+12*time.Second, breaks(hangs, 0))
			},
			judge: onlyBroken,
		},
	}
}

func hardRows() []row {
	crash := func(name, about string, kinds []health.ReporterKind, change func(*condition), bar time.Duration) row {
		return row{
			name: name, about: about, seeds: 40, lasts: warm + 30*time.Second, hard: true, bar: bar, damped: true,
			build: func(seed uint64) *world {
				w := estate(seed, func(s *setup) { s.kinds = kinds })
				return w.at(warm+time.Duration(seed%11)*177*time.Millisecond, breaks(change, 0))
			},
			judge: onlyBroken,
		}
	}
	return []row{
		crash("crash-refused", "one of four refuses connections, with Envoys and our library among the callers", mixed, refuses, 4*time.Second),
		crash("crash-grpc-only", "one of four refuses connections, stock gRPC callers only: never picked", []health.ReporterKind{health.FromGRPC}, refuses, 5*time.Second),
		crash("hang", "one of four takes calls and answers none", mixed, hangs, 5*time.Second),
		{
			name: "crash-probes", about: "one of four refuses connections, probers only", seeds: 40, lasts: warm + 30*time.Second,
			hard: true, bar: 4 * time.Second,
			build: func(seed uint64) *world {
				w := estate(seed, func(s *setup) { s.supplies, s.callers = onlyProbe, 0 })
				return w.at(warm+time.Duration(seed%11)*177*time.Millisecond, breaks(refuses, 0))
			},
			judge: onlyBroken,
		},
		crash("not-serving", "one of four says NOT_SERVING", mixed, func(c *condition) { c.self = health.NotServing }, 3*time.Second),
	}
}

// backgroundRows: errors that have nothing to do with any instance.
func backgroundRows() []row {
	var list []row
	for _, e := range []float64{0.01, 0.05} {
		for _, callers := range []int{3, 20, 200} {
			for _, rate := range []float64{1, 20, 300} {
				list = append(list, row{
					name:  fmt.Sprintf("background-%g%%-%dx%g", e*100, callers, rate),
					about: fmt.Sprintf("%g %% errors everywhere, %d callers, %g calls/s an instance: no verdict in a simulated day", e*100, callers, rate),
					seeds: 1,
					build: func(seed uint64) *world {
						return estate(seed, func(s *setup) { s.callers, s.rate, s.errors = callers, rate, e })
					},
					judge: func(w *world) []string { return none(w, "verdict", w.seen.verdicts) },
				})
			}
		}
	}
	quiet := row{
		name: "background-thin", about: "healthy fleet at 0.75 calls/s an endpoint and reporter: no verdict", seeds: 1,
		build: func(seed uint64) *world {
			return estate(seed, func(s *setup) { s.callers, s.rate = 5, 3.75 })
		},
		judge: func(w *world) []string { return none(w, "verdict", w.seen.verdicts) },
	}
	return append(list, quiet)
}

// observerRows are the rows in which those who observe are wrong, not the observed.
func observerRows() []row { return slices.Concat(callerRows(), proberRows()) }

func callerRows() []row {
	return []row{
		{
			name: "alike-50", about: "every instance fails half of its calls (a shared dependency): nobody out by callers", seeds: 12,
			lasts: warm + 5*time.Minute,
			build: func(seed uint64) *world { return estate(seed, nil).at(warm, breaks(fails(0.5), 0, 1, 2, 3)) },
			judge: func(w *world) []string { return none(w, "verdict", w.seen.verdicts) },
		},
		{
			name: "alike-100", about: "every instance fails every call: nobody out by callers", seeds: 12, lasts: warm + 5*time.Minute,
			build: func(seed uint64) *world { return estate(seed, nil).at(warm, breaks(fails(1), 0, 1, 2, 3)) },
			judge: func(w *world) []string { return none(w, "verdict", w.seen.verdicts) },
		},
		{
			name: "caller-broken", about: "one caller's own network fails half of its calls: nothing changes", seeds: 12, lasts: warm + 5*time.Minute,
			build: func(seed uint64) *world {
				return estate(seed, nil).at(warm, func(w *world) { w.callers[1].broken = true })
			},
			judge: func(w *world) []string { return none(w, "verdict", w.seen.verdicts) },
		},
		{
			name: "caller-lies", about: "one caller of five says that all of its calls to one instance fail: nothing changes", seeds: 12, lasts: warm + 5*time.Minute,
			build: func(seed uint64) *world {
				return estate(seed, nil).at(warm, func(w *world) { w.callers[1].lies = true })
			},
			judge: func(w *world) []string { return none(w, "verdict", w.seen.verdicts) },
		},
		{
			name: "tenant-errors", about: "one tenant's errors stick to one instance and move when it leaves: at most a third out, no guard",
			seeds: 12, lasts: warm + 10*time.Minute,
			build: func(seed uint64) *world {
				w := estate(seed, func(s *setup) { s.callers = 6 })
				return w.at(warm, func(w *world) {
					for _, c := range w.callers[:4] {
						c.tenant = true
					}
					w.stuckFails = 0.9
					w.stick()
				})
			},
			judge: func(w *world) []string {
				miss := none(w, "guard", w.seen.trips)
				if w.seen.byCallers > 1 {
					miss = append(miss, fmt.Sprintf("%d of 4 out by callers at one time", w.seen.byCallers))
				}
				return miss
			},
		},
	}
}

func proberRows() []row {
	return []row{
		{
			name: "blind-everywhere", about: "all probers cut off, a service that supplies probes only: nothing leaves", seeds: 6, lasts: warm + 3*time.Minute,
			build: func(seed uint64) *world {
				return estate(seed, func(s *setup) { s.supplies, s.callers = onlyProbe, 0 }).at(warm, func(w *world) {
					for _, p := range w.probers {
						p.cutOff = true
					}
				})
			},
			judge: func(w *world) []string { return none(w, "verdict", w.seen.verdicts) },
		},
		{
			name: "blind-zone", about: "the probers cannot reach one zone, which is well: by the callers' word nothing leaves", seeds: 6, lasts: warm + 3*time.Minute,
			build: func(seed uint64) *world {
				return estate(seed, func(s *setup) { s.zones = twelve }).at(warm, func(w *world) {
					w.probers[0].cutZones = map[string]bool{"b": true}
				})
			},
			judge: func(w *world) []string { return none(w, "verdict", w.seen.verdicts) },
		},
		{
			name: "prober-lies", about: "one prober always says good while the instance fails its probes: the third decides", seeds: 6,
			lasts: warm + time.Minute, bar: 30 * time.Second,
			build: func(seed uint64) *world {
				w := estate(seed, func(s *setup) { s.supplies, s.callers = onlyProbe, 0 })
				w.probers[1].liar = true
				return w.at(warm, breaks(func(c *condition) { c.probeFails = true }, 0))
			},
			judge: onlyBroken,
		},
		{
			name: "zone-power", about: "a zone of three loses power, probes and leases only: out within 30 s", seeds: 6, lasts: warm + 90*time.Second,
			build: func(seed uint64) *world {
				w := estate(seed, func(s *setup) {
					s.supplies, s.callers, s.zones, s.lease = onlyProbe, 0, twelve, 25*time.Second
				})
				return w.at(warm, func(w *world) {
					for _, i := range w.instances {
						if i.zone == "a" {
							c := i.is
							c.dark = true
							w.set(i, c)
						}
					}
					w.probers[0].cutOff = true
				})
			},
			judge: func(w *world) []string {
				miss := onlyBroken(w)
				if s := w.share(func(i *instance) bool { return i.zone == "a" }); s > 0.10 {
					miss = append(miss, fmt.Sprintf("the dead zone carries %.0f %% of the traffic", 100*s))
				}
				return miss
			},
		},
	}
}

func fleetRows() []row {
	return []row{
		{
			name: "baddeploy", about: "new instances fail every call while probes are good: out in their first ramp, at most 10 % of the traffic",
			seeds: 12, lasts: warm + 3*time.Minute,
			build: func(seed uint64) *world {
				w := estate(seed, func(s *setup) { s.zones = twelve[:8] })
				w.at(warm, func(w *world) {
					for range 2 {
						i := w.add("c", 0)
						w.set(i, condition{fails: 1, self: health.Serving})
					}
				})
				for k := range 140 {
					w.at(warm+20*time.Second+time.Duration(k)*time.Second, func(w *world) {
						w.noteShare(func(i *instance) bool { return i.zone == "c" })
					})
				}
				return w
			},
			judge: func(w *world) []string {
				miss := none(w, "guard", w.seen.trips)
				if w.worstShare > 0.10 {
					miss = append(miss, fmt.Sprintf("the new ones carried %.0f %% of the traffic", 100*w.worstShare))
				}
				return miss
			},
		},
		{
			name: "one-of-two", about: "two instances, one dies: out; then the other: guard, both listed", seeds: 6, lasts: warm + 2*time.Minute,
			build: func(seed uint64) *world {
				return estate(seed, func(s *setup) { s.zones = []string{"a", "b"} }).
					at(warm, breaks(refuses, 0)).
					at(warm+30*time.Second, func(w *world) {
						w.halfway = w.lists(w.instances[0])
						breaks(refuses, 1)(w)
					})
			},
			judge: func(w *world) []string {
				var miss []string
				if w.halfway {
					miss = append(miss, "the first dead one was still listed after 30 s")
				}
				if len(w.listed) != 2 {
					miss = append(miss, fmt.Sprintf("%d of 2 are listed when both are dead", len(w.listed)))
				}
				return miss
			},
		},
		{
			name: "dependency", about: "a shared dependency is degraded everywhere: weights halved together, nothing moves", seeds: 3, lasts: warm + 2*time.Minute,
			build: func(seed uint64) *world {
				w := estate(seed, func(s *setup) {
					s.contract.Dependencies = []registry.Dependency{{Name: "db", Shared: true}}
				})
				return w.at(warm, func(w *world) {
					for _, i := range w.instances {
						i.is.degraded = []string{"db"}
					}
				})
			},
			judge: func(w *world) []string {
				miss := none(w, "guard", w.seen.trips)
				for _, m := range w.listed {
					if m.Weight != 50 {
						miss = append(miss, fmt.Sprintf("%s has weight %d, not 50", m.UID, m.Weight))
					}
				}
				if len(w.listed) != 4 {
					miss = append(miss, fmt.Sprintf("%d of 4 are listed", len(w.listed)))
				}
				return miss
			},
		},
	}
}

// onlyBroken: everything that was broken is out, nothing else ever was, and no
// list was empty.
func onlyBroken(w *world) []string {
	miss := slices.Clone(w.seen.wrong)
	for _, d := range w.seen.detections {
		if d.verdict.IsZero() {
			miss = append(miss, fmt.Sprintf("%s, broken at %s, was never taken out", d.uid, d.fault.Sub(w.epoch)))
		}
	}
	return append(miss, none(w, "empty list", w.seen.empties)...)
}

// none: something did not happen.
func none(w *world, what string, times int) []string {
	if times == 0 {
		return nil
	}
	miss := []string{fmt.Sprintf("%d times: %s", times, what)}
	return append(miss, w.seen.wrong[:min(3, len(w.seen.wrong))]...)
}

// stick lets the tenant's errors stick to an instance that serves, and looks
// again every five seconds.
func (w *world) stick() {
	if i := w.byUID[w.stuck]; i == nil || !w.lists(i) {
		w.stuck = w.listed[w.rng.IntN(len(w.listed))].UID
	}
	w.script = append([]act{{w.now.Add(5 * time.Second).Sub(w.epoch), (*world).stick}}, w.script...)
	slices.SortStableFunc(w.script, func(a, b act) int { return int(a.at - b.at) })
}

// noteShare keeps the highest share of traffic seen.
func (w *world) noteShare(of func(*instance) bool) { w.worstShare = max(w.worstShare, w.share(of)) }
