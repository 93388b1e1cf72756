package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

// Config is what a Prober is built from.
type Config struct {
	// Name spreads the prober's phases: two probers of one instance do not ask
	// at the same moments. Empty: taken from the SVID.
	Name string
	// Zone that the prober stands in. Required: an instance's two probers stand
	// in different zones.
	Zone string
	// Client reaches the control plane. Required; see Connect.
	Client healthv1.ReportServiceClient
	// SVID is presented on dial-backs; nil: none are made, and what waits for
	// one is not probed.
	SVID *svid.Source
	// AllowLoopback lets the prober ask 127.0.0.0/8 and ::1: development, where
	// everything is on one machine. Nothing else is allowed by it.
	AllowLoopback bool
	Limits        Limits
	Events        Events
	// Dial connects to an address that was checked; nil: over TCP.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Lookup resolves a host name; nil: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

// Limits are the prober's bounds. A zero field takes its default.
type Limits struct {
	Targets        int           // of an assignment; further ones are not asked (20,000)
	InFlight       int           // probes at once; targets that timed out take at most 3/4 of them (2,048)
	Pending        int           // results waiting to be sent; the oldest go first (65,536)
	Bound          int           // ids bound on one report stream before it is replaced (40,000)
	MaxAge         time.Duration // of a result that is still sent (10 s)
	KeepAssignment time.Duration // that targets are asked without a control plane (5 min)
	ResponseBytes  int           // read of one HTTP response (64 KiB)
	DialBackRate   float64       // dial-backs a second for one identity (10)
	DialBackBurst  int           // dial-backs that may come at once for one identity (20)
	MaxBackOff     time.Duration // between attempts to reach the control plane (5 s)
}

func (l Limits) withDefaults() Limits {
	for _, n := range []struct {
		field *int
		def   int
	}{{&l.Targets, 20000}, {&l.InFlight, 2048}, {&l.Pending, 65536}, {&l.Bound, 40000},
		{&l.ResponseBytes, 64 << 10}, {&l.DialBackBurst, 20}} {
		if *n.field <= 0 {
			*n.field = n.def
		}
	}
	for _, d := range []struct {
		field *time.Duration
		def   time.Duration
	}{{&l.MaxAge, 10 * time.Second}, {&l.KeepAssignment, 5 * time.Minute}, {&l.MaxBackOff, 5 * time.Second}} {
		if *d.field <= 0 {
			*d.field = d.def
		}
	}
	if l.DialBackRate <= 0 {
		l.DialBackRate = 10
	}
	l.Bound = max(l.Bound, 2*l.Targets) // a stream has to hold one assignment, and the changes of a while
	return l
}

// Stream names one of the two streams to the control plane in events.
type Stream string

// The streams.
const (
	Assignment Stream = "assignment"
	Reports    Stream = "reports"
)

// Events are told of what a person may want to read. Every field may be nil;
// calls come from the prober's goroutines and must not block.
type Events struct {
	// Opened is told that a stream works, once after each time it was lost.
	Opened func(s Stream)
	// Lost is told why a stream ended, once for each reason until it works again.
	Lost func(s Stream, err error)
	// Ended is told what became of the results of a report stream that the
	// control plane ended in order.
	Ended func(tally *healthv1.Tally)
	// Assigned is told of each change of the assignment.
	Assigned func(generation uint64, targets int)
	// Changed is told of the first result of a target and of each that differs
	// from the one before in outcome or detail.
	Changed func(r Result, before Outcome)
	// Unusable is told of a target that cannot be asked, and why.
	Unusable func(uid, reason string)
	// Paused is told that the prober did not run for a while, so that failures
	// meanwhile do not count: of each pause, and each 10 s of single probes that
	// got no processor in time.
	Paused func(gap time.Duration)
}

// check completes the configuration, or says what is missing.
func (c Config) check() (Config, error) {
	switch {
	case c.Zone == "":
		return c, errors.New("a prober needs the zone that it stands in")
	case c.Client == nil:
		return c, errors.New("a prober needs a client of the control plane")
	}
	if c.Name == "" && c.SVID != nil {
		c.Name = c.SVID.ID().String()
	}
	c.Limits = c.Limits.withDefaults()
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			// Keep-alives would outlive no probe; one less option to set.
			return (&net.Dialer{KeepAlive: -1}).DialContext(ctx, "tcp", to.String())
		}
	}
	if c.Lookup == nil {
		c.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	return c, nil
}

// New checks the configuration and returns a prober that Run starts.
func New(c Config) (*Prober, error) {
	c, err := c.check()
	if err != nil {
		return nil, fmt.Errorf("prober: %w", err)
	}
	return newProber(c), nil
}
