package probe

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/identity"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// question is what is asked of whom: everything that a result depends on. A
// result to another question than the target's present one is dropped.
type question struct {
	uid, service string
	addr         netip.Addr // or
	host         string
	port         uint16
	kind         Kind
	name         string      // gRPC health service (kind GRPC)
	path         string      // (kind HTTP)
	identity     identity.ID // registered; the zero ID where there is none
}

// where is the endpoint as people write it.
func (q question) where() string {
	if q.host != "" {
		return fmt.Sprintf("%s:%d", q.host, q.port)
	}
	return netip.AddrPortFrom(q.addr, q.port).String()
}

// Cadence where the assignment leaves it open, and its bounds (HEALTH.md §9).
const (
	defaultInterval = 2 * time.Second
	defaultTimeout  = time.Second
	minInterval     = time.Second
	maxInterval     = time.Minute
	minTimeout      = 10 * time.Millisecond
)

// dialBackAgain is how long after one that worked the next dial-back is made
// while the assignment still asks for it: the report may have been lost.
const dialBackAgain = 10 * time.Second

// target is one instance of the assignment, with its schedule. The loop owns it.
type target struct {
	question
	dialBack bool
	interval time.Duration
	timeout  time.Duration

	due      time.Time // of the next probe
	at       int       // position in its queue; -1: in flight
	last     Outcome   // and the words of the newest result
	detail   string
	told     bool // there was one
	gone     bool // left the assignment while in flight
	slowSlot bool // the probe in flight counts among the slow
}

// newTarget reads a target of the assignment, or says why it cannot be asked.
func newTarget(m *healthv1.Target, allowLoopback bool) (*target, error) {
	t := &target{question: question{uid: m.GetUid(), service: m.GetService(), port: uint16(m.GetPort())},
		dialBack: m.GetDialBack(), at: -1}
	if t.uid == "" {
		return nil, fmt.Errorf("it has no uid")
	}
	if m.GetPort() == 0 || m.GetPort() > 65535 {
		return nil, fmt.Errorf("port %d is not one", m.GetPort())
	}
	if err := t.endpoint(m, allowLoopback); err != nil {
		return nil, err
	}
	if err := t.ask(m.GetProbe()); err != nil {
		return nil, err
	}
	if s := m.GetIdentity(); s != "" {
		id, err := identity.Parse(s)
		if err != nil {
			return nil, err
		}
		t.identity = id
	}
	if t.dialBack && t.identity.IsZero() {
		return nil, fmt.Errorf("a dial-back is asked for, and no identity to expect")
	}
	t.interval, t.timeout = cadence(m.GetProbe())
	return t, nil
}

func (t *target) endpoint(m *healthv1.Target, allowLoopback bool) error {
	if t.host = m.GetHost(); t.host != "" {
		return nil
	}
	addr, err := netip.ParseAddr(m.GetAddress())
	if err != nil {
		return fmt.Errorf("address %q: %w", m.GetAddress(), err)
	}
	if why := forbidden(addr, allowLoopback); why != "" {
		return fmt.Errorf("%s is %s: it is not asked", addr, why)
	}
	t.addr = addr.Unmap()
	return nil
}

func (t *target) ask(p *registryv1.Probe) error {
	switch p.GetKind() {
	case registryv1.ProbeKind_PROBE_KIND_UNSPECIFIED, registryv1.ProbeKind_PROBE_KIND_TCP:
		t.kind = TCP
	case registryv1.ProbeKind_PROBE_KIND_GRPC:
		t.kind, t.name = GRPC, p.GetService()
	case registryv1.ProbeKind_PROBE_KIND_HTTP:
		t.kind, t.path = HTTP, cmp.Or(p.GetPath(), "/")
		if _, err := url.ParseRequestURI(t.path); err != nil || !strings.HasPrefix(t.path, "/") || strings.HasPrefix(t.path, "//") {
			return fmt.Errorf("path %q is not one: it starts with one slash", t.path)
		}
	default:
		return fmt.Errorf("probe kind %d is not known to this prober", p.GetKind())
	}
	return nil
}

// cadence reads interval and timeout; a bad value is brought into its range: a
// prober that stops asking over a number would be silent.
func cadence(p *registryv1.Probe) (interval, timeout time.Duration) {
	interval = min(max(given(p.GetInterval(), defaultInterval), minInterval), maxInterval)
	timeout = max(given(p.GetTimeout(), defaultTimeout), minTimeout)
	if timeout >= interval {
		timeout = interval / 2
	}
	return interval, timeout
}

func given(d *durationpb.Duration, def time.Duration) time.Duration {
	if d == nil || !d.IsValid() || d.AsDuration() <= 0 {
		return def
	}
	return d.AsDuration()
}

// plan sets when a target that was asked is asked again. One that is late does
// not catch up.
func (t *target) plan(now time.Time, proved bool) {
	if proved {
		t.due = now.Add(spread(dialBackAgain))
		return
	}
	t.due = t.due.Add(spread(t.interval))
	if t.due.Before(now) {
		t.due = now.Add(rand.N(t.interval/10 + 1))
	}
}

// phase is where in its interval a target is first asked: spread evenly over
// targets, and differently by each prober, so that no burst starts with an
// assignment and two probers of an instance do not ask at once.
func phase(prober, uid string, interval time.Duration) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(prober)) // a hash never fails
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(uid))
	sum := h.Sum64()
	sum ^= sum >> 33 // FNV leaves the high bits of alike names alike
	sum *= 0xff51afd7ed558ccd
	sum ^= sum >> 33
	return time.Duration(sum % uint64(interval))
}

// spread is the jitter of one interval: ±10 %, so that what once coincided
// drifts apart.
func spread(interval time.Duration) time.Duration {
	return interval - interval/10 + rand.N(interval/5+1)
}
