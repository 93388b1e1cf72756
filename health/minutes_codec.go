package health

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// minuteFormat is the version of a minute's form on disk. A reader that does not
// know it leaves the minute out: minutes decide nothing.
const minuteFormat = 1

// errMinute is what every minute that cannot be read has in common.
var errMinute = errors.New("not a minute of evidence")

// Bounds of what is read: of what a service may hold, so that a damaged record
// costs no memory.
const (
	maxMinuteTable     = 1 << 12
	maxMinuteInstances = 1 << 17
	maxMinuteText      = 1 << 10
)

// The bits of an instance's first byte, over its state.
const (
	minuteMember = 1 << (iota + 2)
	minuteDraining
	minuteSelf
	minuteRefused
)

// Append adds the minute's bytes to b: about 15 for an instance that two probers
// and its own reports speak of, and three more for each group of callers.
func (m *Minute) Append(b []byte) []byte {
	b = append(b, minuteFormat)
	b = binary.AppendUvarint(b, uint64(max(m.Start.Unix(), 0)))
	b = binary.AppendUvarint(b, uint64(max(m.Length, 0)/time.Second))
	b = binary.AppendUvarint(b, uint64(len(m.Zones)))
	for _, z := range m.Zones {
		b = appendText(b, z)
	}
	b = binary.AppendUvarint(b, uint64(len(m.Probers)))
	for _, p := range m.Probers {
		b = appendText(appendText(b, p.Name), p.Zone)
	}
	b = binary.AppendUvarint(b, uint64(len(m.Dependencies)))
	for _, d := range m.Dependencies {
		b = appendText(b, d)
	}
	b = binary.AppendUvarint(b, uint64(len(m.Reporters)))
	for _, g := range m.Reporters {
		b = binary.AppendUvarint(append(b, byte(g.Kind)), uint64(g.Count))
	}
	b = binary.AppendUvarint(b, uint64(len(m.Instances)))
	last := registry.UID(0)
	for k := range m.Instances {
		b = m.Instances[k].append(b, last)
		last = m.Instances[k].UID
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (i *InstanceMinute) append(b []byte, last registry.UID) []byte {
	flags := byte(i.State)
	for _, f := range [...]struct {
		on  bool
		bit byte
	}{{i.Member, minuteMember}, {i.Draining, minuteDraining}, {i.Self.Newest != NoStatus, minuteSelf}, {i.RefusedBy > 0, minuteRefused}} {
		if f.on {
			flags |= f.bit
		}
	}
	b = binary.AppendUvarint(b, uint64(i.UID-last))
	b = append(b, flags, byte(i.Supplies))
	b = binary.AppendUvarint(b, uint64(i.Zone))
	if i.Self.Newest != NoStatus {
		b = i.Self.append(b)
	}
	if i.RefusedBy > 0 {
		b = binary.AppendUvarint(b, uint64(i.RefusedBy))
	}
	b = append(b, byte(len(i.Probes)), byte(len(i.Callers)))
	for k := range i.Probes {
		p := &i.Probes[k]
		b = binary.AppendUvarint(b, uint64(p.Prober))
		b = append(b, p.Span.First, p.Span.Last, byte(p.Newest), p.Turns)
		b = appendCounts(b, p.Counts[:])
	}
	for _, c := range i.Callers {
		b = append(b, byte(c.Group))
		b = binary.AppendUvarint(b, uint64(c.Samples))
		b = binary.AppendUvarint(b, uint64(c.Failures))
	}
	return b
}

func (s *SelfMinute) append(b []byte) []byte {
	b = append(b, s.Span.First, s.Span.Last, byte(s.Newest), s.Degraded)
	b = binary.AppendUvarint(b, uint64(max(s.Interval, 0)/time.Millisecond))
	return appendCounts(b, s.Counts[:])
}

// appendCounts writes which counts there are, and those; most often one is.
func appendCounts(b []byte, counts []uint8) []byte {
	which := byte(0)
	for k, n := range counts {
		if n > 0 {
			which |= 1 << k
		}
	}
	b = append(b, which)
	for _, n := range counts {
		if n > 0 {
			b = append(b, n)
		}
	}
	return b
}

// ReadMinute decodes what Append wrote.
func ReadMinute(b []byte) (Minute, error) {
	r := minuteReader{b: b}
	if v := r.byte(); v != minuteFormat {
		return Minute{}, fmt.Errorf("%w: format %d, this build reads %d", errMinute, v, minuteFormat)
	}
	m := Minute{
		Start:  time.Unix(int64(r.number(math.MaxUint32)), 0).UTC(),
		Length: time.Duration(r.number(math.MaxUint16)) * time.Second,
	}
	for range r.number(maxMinuteTable) {
		m.Zones = append(m.Zones, r.text())
	}
	for range r.number(maxMinuteTable) {
		m.Probers = append(m.Probers, Prober{Name: r.text(), Zone: r.text()})
	}
	for range r.number(minuteDependencies) {
		m.Dependencies = append(m.Dependencies, r.text())
	}
	for range r.number(minuteGroups) {
		m.Reporters = append(m.Reporters, ReporterGroup{Kind: ReporterKind(r.upTo(byte(FromGRPC))), Count: int(r.number(math.MaxUint32))})
	}
	last := registry.UID(0)
	for range r.number(maxMinuteInstances) {
		if r.failed {
			break
		}
		i := r.instance(&m, last)
		last = i.UID
		m.Instances = append(m.Instances, i)
	}
	if r.failed || len(r.b) > 0 {
		return Minute{}, fmt.Errorf("%w: it is cut short, or out of its range", errMinute)
	}
	return m, nil
}

// minuteReader reads a minute; what is out of range makes it fail, and then it
// reads zeros.
type minuteReader struct {
	b      []byte
	failed bool
}

func (r *minuteReader) byte() byte {
	if r.failed || len(r.b) == 0 {
		r.failed = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *minuteReader) upTo(most byte) byte {
	v := r.byte()
	if v > most {
		r.failed = true
		return 0
	}
	return v
}

func (r *minuteReader) number(most uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if r.failed || n <= 0 || v > most {
		r.failed = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *minuteReader) text() string {
	n := r.number(maxMinuteText)
	if uint64(len(r.b)) < n {
		r.failed = true
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

// index reads a position in a table of that length.
func (r *minuteReader) index(length int) int {
	if length == 0 {
		r.failed = true
		return 0
	}
	return int(r.number(uint64(length - 1)))
}

func (r *minuteReader) instance(m *Minute, last registry.UID) InstanceMinute {
	i := InstanceMinute{UID: last + registry.UID(r.number(math.MaxUint64))}
	flags := r.byte()
	r.failed = r.failed || i.UID <= last || flags >= minuteRefused<<1
	i.State, i.Member, i.Draining = State(flags&3), flags&minuteMember != 0, flags&minuteDraining != 0
	i.Supplies = registry.ClassSet(r.upTo(1<<(registry.ClassCallers+1) - 1))
	i.Zone = r.index(len(m.Zones))
	if flags&minuteSelf != 0 {
		i.Self = r.self()
	}
	if flags&minuteRefused != 0 {
		i.RefusedBy = int(r.number(maxTrackedReporters))
		r.failed = r.failed || i.RefusedBy == 0
	}
	probes, callers := r.upTo(minuteProbers), r.upTo(minuteGroups)
	for range probes {
		p := ProbeMinute{Prober: r.index(len(m.Probers)), Span: r.span(), Newest: ProbeResult(r.upTo(byte(ProbeWrongIdentity))), Turns: r.byte()}
		r.counts(p.Counts[:])
		r.failed = r.failed || p.Newest == NoResult
		i.Probes = append(i.Probes, p)
	}
	for range callers {
		c := CallerMinute{Group: r.index(len(m.Reporters)), Samples: uint32(r.number(math.MaxUint32)), Failures: uint32(r.number(math.MaxUint32))}
		r.failed = r.failed || c.Samples == 0 || c.Failures > c.Samples
		i.Callers = append(i.Callers, c)
	}
	return i
}

func (r *minuteReader) self() SelfMinute {
	s := SelfMinute{Span: r.span(), Newest: SelfStatus(r.upTo(byte(NotServing))), Degraded: r.byte()}
	s.Interval = time.Duration(r.number(math.MaxUint32)) * time.Millisecond
	r.counts(s.Counts[:])
	r.failed = r.failed || s.Newest == NoStatus
	return s
}

func (r *minuteReader) span() Span {
	s := Span{r.byte(), r.byte()}
	r.failed = r.failed || s.Last < s.First
	return s
}

func (r *minuteReader) counts(into []uint8) {
	which := r.byte()
	r.failed = r.failed || int(which) >= 1<<len(into)
	for k := range into {
		if which&(1<<k) != 0 {
			into[k] = r.byte()
			r.failed = r.failed || into[k] == 0
		}
	}
}
