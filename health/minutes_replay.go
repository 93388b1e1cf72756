package health

import (
	"net/netip"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	// replayStep is how often reporters report; a minute is replayed as if all of
	// them did at once.
	replayStep = 2 * time.Second
	// replayedReporters is as how many reporters a group is replayed at most: into
	// so many pools small ones are summed (HEALTH.md §2).
	replayedReporters = poolCount
)

// Replay hands out what the minute holds as it may have been heard: step by
// step, everything that was heard since the step before. The slices are the
// caller's until the next step.
func (m *Minute) Replay(hear func(now time.Time, samples []Sample, outcomes []Outcomes)) {
	steps := max(1, int(m.Length/replayStep))
	at := func(k int) time.Time { return m.Start.Add(m.Length * time.Duration(k+1) / time.Duration(steps)) }
	samples := make([][]Sample, steps)
	for k := range m.Instances {
		m.Instances[k].samples(m, func(s Sample) {
			step := min(int(s.At.Sub(m.Start)*time.Duration(steps)/max(m.Length, 1)), steps-1)
			samples[max(step, 0)] = append(samples[max(step, 0)], s)
		})
	}
	reporters := m.reporters()
	for k := range steps {
		now := at(k)
		hear(now, samples[k], m.outcomes(reporters, now, k, steps))
	}
}

// samples spreads what probers and the instance said over the time within which
// they said it.
func (i *InstanceMinute) samples(m *Minute, emit func(Sample)) {
	for k := range i.Probes {
		p := &i.Probes[k]
		results := sequence(p.Counts[:], int(p.Newest), func(v int) bool { return v == int(ProbeOK) }, int(p.Turns))
		p.Span.spread(len(results), func(n int, at time.Duration) {
			emit(Sample{UID: i.UID, Class: registry.ClassProbe, At: m.Start.Add(at), Prober: m.Probers[p.Prober], Result: ProbeResult(results[n])})
		})
	}
	s := &i.Self
	words := sequence(s.Counts[:], int(s.Newest), func(v int) bool { return v == int(s.Newest) }, 1)
	s.Span.spread(len(words), func(n int, at time.Duration) {
		out := Sample{UID: i.UID, Class: registry.ClassSelf, At: m.Start.Add(at), Status: SelfStatus(words[n]), Interval: s.Interval}
		if words[n] == int(s.Newest) {
			out.Degraded = m.degraded(s.Degraded)
		}
		emit(out)
	})
}

func (m *Minute) degraded(bits uint8) (names []string) {
	for k, name := range m.Dependencies {
		if bits&(1<<k) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// sequence orders counted values so that they change sides as often as they did:
// runs of one side and the other take turns, as even as the counts allow, and
// the newest value comes last. Of what changed sides without its turns being
// counted, the newest side came once.
func sequence(counts []uint8, newest int, side func(v int) bool, turns int) []int {
	var same, other []int
	for v, n := range counts {
		for range n {
			switch {
			case side(v) != side(newest):
				other = append(other, v)
			case v != newest:
				same = append([]int{v}, same...)
			default:
				same = append(same, v)
			}
		}
	}
	switch {
	case len(other) == 0:
		return same
	case len(same) == 0:
		return other
	}
	turns = max(turns, 1)
	for turns > 1 && ((turns+1)/2 > len(other) || turns/2+1 > len(same)) {
		turns-- // counts that do not tell of so many
	}
	out := make([]int, 0, len(same)+len(other))
	part := func(of []int, k, parts int) { out = append(out, of[len(of)*k/parts:len(of)*(k+1)/parts]...) }
	for k := range turns + 1 {
		if left := turns - k; left%2 == 0 { // of the newest side, as the last one is
			part(same, turns/2-left/2, turns/2+1)
		} else {
			part(other, (turns+1)/2-(left+1)/2, (turns+1)/2)
		}
	}
	return out
}

// spread gives n events their times, evenly between the first and the last.
func (s Span) spread(n int, event func(k int, at time.Duration)) {
	first, last := time.Duration(s.First)*time.Second, time.Duration(s.Last)*time.Second
	for k := range n {
		at := last
		if n > 1 {
			at = first + (last-first)*time.Duration(k)/time.Duration(n-1)
		}
		event(k, at)
	}
}

// replayed is one reporter of a replay.
type replayed struct {
	as          Reporter
	kind        ReporterKind
	group       int
	part, parts int // of its group
	refusals    int // its place among our own library's reporters
}

// reporters makes up those of the minute's groups.
func (m *Minute) reporters() []replayed {
	var out []replayed
	libraries := 0
	for g, group := range m.Reporters {
		parts := min(group.Count, replayedReporters)
		for part := range parts {
			r := replayed{kind: group.Kind, group: g, part: part, parts: parts, refusals: libraries}
			r.as.Addr = netip.AddrFrom4([4]byte{192, 0, 2, byte(g*replayedReporters + part + 1)}) // TEST-NET-1: nobody's
			if group.Kind == FromLibrary {
				libraries++
			}
			out = append(out, r)
		}
	}
	return out
}

// outcomes are the reports of one step.
func (m *Minute) outcomes(reporters []replayed, now time.Time, step, steps int) []Outcomes {
	var out []Outcomes
	for _, r := range reporters {
		o := Outcomes{Reporter: r.as, Kind: r.kind, At: now, Interval: m.Length / time.Duration(steps)}
		for k := range m.Instances {
			i := &m.Instances[k]
			for _, c := range i.Callers {
				if c.Group != r.group {
					continue
				}
				samples, failures := c.within(step*r.parts+r.part, steps*r.parts)
				if samples == 0 {
					continue
				}
				e := Outcome{UID: i.UID, Issued: samples, OK: samples - failures, Failed: failures}
				if r.kind == FromLibrary && r.refusals < i.RefusedBy {
					e.Refused = failures
				}
				o.Entries = append(o.Entries, e)
			}
		}
		out = append(out, o)
	}
	return out
}

// within is the part of the counts that falls to one of so many equal shares;
// failures are spread over the calls.
func (c CallerMinute) within(share, of int) (samples, failures uint32) {
	until := func(n int) (uint64, uint64) {
		s := uint64(c.Samples) * uint64(n) / uint64(of)
		return s, uint64(c.Failures) * s / uint64(max(c.Samples, 1))
	}
	s0, f0 := until(share)
	s1, f1 := until(share + 1)
	return uint32(s1 - s0), uint32(f1 - f0)
}
