package health

import (
	"math"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	// minuteGroups is into how many groups a minute sums the reporters of a
	// service: as many as are told apart when it is replayed.
	minuteGroups = 8
	// minuteProbers is how many probers of one instance a minute tells apart.
	minuteProbers = maxProbers
	// minuteDependencies is how many names of degraded dependencies a minute tells
	// apart; further ones are left out.
	minuteDependencies = 8
)

// Minute is what was heard of a service within about a minute: enough to judge
// it again by another contract. It knows no order within the minute but what
// came last, and no reporters but groups of them.
type Minute struct {
	Start  time.Time // to the second
	Length time.Duration

	// What instances refer to by number.
	Zones        []string
	Probers      []Prober
	Dependencies []string // that self-reports called degraded
	Reporters    []ReporterGroup

	Instances []InstanceMinute // by UID
}

// ReporterGroup is the callers that are summed together.
type ReporterGroup struct {
	Kind  ReporterKind // of most of them
	Count int          // 0: none reported
}

// InstanceMinute is what was heard of one instance. One that gave nothing is
// there too: silence is evidence.
type InstanceMinute struct {
	UID      registry.UID
	Zone     int // of Minute.Zones
	Supplies registry.ClassSet
	State    State // at the end
	Member   bool  // at the end
	Draining bool  // by its authority, at the end

	Probes  []ProbeMinute
	Self    SelfMinute
	Callers []CallerMinute
	// RefusedBy is how many reporters of our own library saw refused connections.
	RefusedBy int
}

// Span is when something was heard first and last, in seconds from the start.
type Span struct{ First, Last uint8 }

// ProbeMinute is one prober's results on an instance.
type ProbeMinute struct {
	Prober int // of Minute.Probers
	Span   Span
	Counts [ProbeWrongIdentity + 1]uint8 // by result; 255 and more is 255
	Newest ProbeResult
	Turns  uint8 // how often a good result followed on a bad one, or a bad one on a good one
}

// SelfMinute is what an instance said of itself.
type SelfMinute struct {
	Span     Span
	Counts   [NotServing + 1]uint8 // by status
	Newest   SelfStatus            // NoStatus: it said nothing
	Interval time.Duration         // at which it said it would report
	Degraded uint8                 // dependencies that its newest report called degraded, by the bit
}

// CallerMinute is what one group of reporters counted on an instance.
type CallerMinute struct {
	Group             int // of Minute.Reporters
	Samples, Failures uint32
}

// minuteBook is the evaluator's part of the minute that runs.
type minuteBook struct {
	from         time.Time // zero: since the evaluator's start
	dependencies []string
}

// minuteWords is an instance's part of the minute that runs.
type minuteWords struct {
	probes []proberWords
	self   SelfMinute
}

type proberWords struct {
	prober Prober
	ProbeMinute
}

// hear counts a sample that was taken in.
func (b *minuteBook) hear(start time.Time, i *instance, s *Sample) {
	if b.from.IsZero() {
		b.from = start
	}
	at := uint8(min(max(s.At.Sub(b.from), 0)/time.Second, math.MaxUint8))
	if s.Class == registry.ClassProbe {
		i.minute.hearProbe(at, s)
		return
	}
	w := &i.minute.self
	w.Span = w.Span.with(at, w.Newest == NoStatus)
	bump(&w.Counts[s.Status])
	w.Newest, w.Interval, w.Degraded = s.Status, s.Interval, 0
	for _, name := range s.Degraded {
		w.Degraded |= b.dependency(name)
	}
}

func (w *minuteWords) hearProbe(at uint8, s *Sample) {
	k := slices.IndexFunc(w.probes, func(p proberWords) bool { return p.prober == s.Prober })
	if k < 0 {
		if len(w.probes) == minuteProbers {
			return
		}
		w.probes = append(w.probes, proberWords{prober: s.Prober})
		k = len(w.probes) - 1
	}
	p := &w.probes[k]
	p.Span = p.Span.with(at, p.Newest == NoResult)
	bump(&p.Counts[s.Result])
	if p.Newest != NoResult && (p.Newest == ProbeOK) != (s.Result == ProbeOK) {
		bump(&p.Turns)
	}
	p.Newest = s.Result
}

func (s Span) with(at uint8, first bool) Span {
	if first {
		return Span{at, at}
	}
	return Span{min(s.First, at), max(s.Last, at)}
}

func bump(n *uint8) {
	if *n < math.MaxUint8 {
		*n++
	}
}

// dependency is the bit of a name; 0 when there are too many of them.
func (b *minuteBook) dependency(name string) uint8 {
	k := slices.Index(b.dependencies, name)
	if k < 0 {
		if len(b.dependencies) == minuteDependencies {
			return 0
		}
		k = len(b.dependencies)
		b.dependencies = append(b.dependencies, name)
	}
	return 1 << k
}

// Minute returns what was heard since it was last called, or since the start,
// and begins anew. It is not ok for a service of which nothing can be heard.
func (e *Evaluator) Minute(now time.Time) (m Minute, ok bool) {
	from := laterOf(e.minutes.from, e.start)
	m = Minute{
		Start: from.Truncate(time.Second), Length: now.Sub(from).Round(time.Second),
		Dependencies: e.minutes.dependencies, Reporters: e.callers.minuteReporters(from),
	}
	e.minutes = minuteBook{from: now}
	for _, i := range e.sorted() {
		ok = ok || i.profile.Supplies != 0
		m.Instances = append(m.Instances, m.take(e, i, from))
	}
	return m, ok
}

// take moves an instance's words into the minute.
func (m *Minute) take(e *Evaluator, i *instance, from time.Time) InstanceMinute {
	out := InstanceMinute{
		UID: i.row.UID, Zone: indexOf(&m.Zones, i.row.Zone), Supplies: i.profile.Supplies,
		State: i.verdict.State, Member: i.member, Draining: i.row.Draining, Self: i.minute.self,
	}
	out.Callers, out.RefusedBy = e.callers.minuteOf(i, len(m.Reporters), from)
	for k := range i.minute.probes {
		p := i.minute.probes[k].ProbeMinute
		p.Prober = indexOf(&m.Probers, i.minute.probes[k].prober)
		out.Probes = append(out.Probes, p)
	}
	i.minute = minuteWords{probes: i.minute.probes[:0]}
	return out
}

// indexOf is the position of v, added where it is not there: there are a few.
func indexOf[T comparable](in *[]T, v T) int {
	k := slices.Index(*in, v)
	if k < 0 {
		k = len(*in)
		*in = append(*in, v)
	}
	return k
}
