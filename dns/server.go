package dns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/views"
)

// Events are what the server tells its owner. Any may be nil. They are called
// on the query's path: they must not block.
type Events struct {
	// Answered is called once per reply, with type and code as their mnemonics.
	Answered func(qtype, rcode string, took time.Duration)
	// Refused is called for a TCP connection that a limit turned away.
	Refused func(limit string)
}

// Config is everything that a Server needs. The zero values of the numbers are
// the defaults of DNS.md.
type Config struct {
	Listen   string // host:port, for UDP and TCP alike
	Zones    []string
	NSID     string // name of this replica; empty: NSID is not answered
	Snapshot func() *views.Snapshot
	Policy   func() *authz.Policy
	Events   Events

	TTL         time.Duration // of answers; 5 s
	NegativeTTL time.Duration // of negative answers; 5 s
	AnswerLimit int           // records per RRset; 64, at most 100 (BIND turns 101 into SERVFAIL)

	TCPConnections        int           // 1024
	TCPConnectionsPerHost int           // 16
	TCPQueries            int           // per connection; 128
	TCPReadTimeout        time.Duration // of one query, once it began; 2 s
	TCPIdle               time.Duration // between queries; 10 s
}

func (c Config) withDefaults() Config {
	c.TTL = or(c.TTL, 5*time.Second)
	c.NegativeTTL = or(c.NegativeTTL, 5*time.Second)
	c.AnswerLimit = min(or(c.AnswerLimit, 64), 100)
	c.TCPConnections = or(c.TCPConnections, 1024)
	c.TCPConnectionsPerHost = or(c.TCPConnectionsPerHost, 16)
	c.TCPQueries = or(c.TCPQueries, 128)
	c.TCPReadTimeout = or(c.TCPReadTimeout, 2*time.Second)
	c.TCPIdle = or(c.TCPIdle, 10*time.Second)
	return c
}

func or[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}

// Server answers DNS over UDP and TCP. Its sockets are bound by New, so that a
// taken port is known at once and clients get SERVFAIL, never silence, while
// the views are being built.
type Server struct {
	cfg      Config
	composer *composer
	packets  net.PacketConn
	listener *limitedListener
}

// New checks the configuration and binds the sockets. An error names what is
// wrong with the zone or the address.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	c := &composer{ttl: seconds(cfg.TTL), negativeTTL: seconds(cfg.NegativeTTL), limit: cfg.AnswerLimit}
	if len(cfg.Zones) == 0 {
		return nil, errors.New("no DNS zone configured: name the apex to answer for")
	}
	for _, s := range cfg.Zones {
		z, err := parseZone(s)
		if err != nil {
			return nil, err
		}
		c.zones = append(c.zones, z)
	}
	packets, listener, err := bindBoth(cfg.Listen)
	if err != nil {
		return nil, err
	}
	c.glue = addrOf(listener.Addr())
	return &Server{
		cfg:      cfg,
		composer: c,
		packets:  packets,
		listener: newLimitedListener(listener, cfg.TCPConnections, cfg.TCPConnectionsPerHost, cfg.Events.Refused),
	}, nil
}

// bindAttempts is how often a pair of sockets on a port of the system's choice
// is tried: the port that UDP was given may be taken for TCP.
const bindAttempts = 16

// bindBoth binds the address for UDP and TCP.
func bindBoth(listen string) (packets net.PacketConn, listener net.Listener, err error) {
	for range bindAttempts {
		if packets, err = net.ListenPacket("udp", listen); err != nil {
			return nil, nil, fmt.Errorf("bind UDP %s: %w", listen, err)
		}
		if listener, err = net.Listen("tcp", packets.LocalAddr().String()); err == nil {
			return packets, listener, nil
		}
		err = fmt.Errorf("bind TCP %s: %w", packets.LocalAddr(), err)
		_ = packets.Close()
		if _, port, e := net.SplitHostPort(listen); e != nil || port != "0" {
			break
		}
	}
	return nil, nil, err
}

// Addr is the address that both sockets are bound to.
func (s *Server) Addr() netip.AddrPort {
	return netip.AddrPortFrom(s.composer.glue, s.packets.LocalAddr().(*net.UDPAddr).AddrPort().Port())
}

// Run serves until the context ends, then closes both sockets and waits for
// the queries in flight. It returns the first socket's error, nil after an
// orderly end.
func (s *Server) Run(ctx context.Context) error {
	udp := &mdns.Server{PacketConn: s.packets, Handler: s.handler(false), MsgAcceptFunc: accept, UDPSize: mdns.MinMsgSize * 8}
	tcp := &mdns.Server{
		Listener: s.listener, Handler: s.handler(true), MsgAcceptFunc: accept,
		MaxTCPQueries: s.cfg.TCPQueries,
		ReadTimeout:   s.cfg.TCPReadTimeout,
		IdleTimeout:   func() time.Duration { return s.cfg.TCPIdle },
	}
	var started, ended sync.WaitGroup
	errs := make(chan error, 2)
	for _, srv := range []*mdns.Server{udp, tcp} {
		started.Add(1)
		srv.NotifyStartedFunc = sync.OnceFunc(started.Done)
		ended.Go(func() {
			errs <- srv.ActivateAndServe()
			srv.NotifyStartedFunc() // also when it never started
		})
	}
	started.Wait() // a server that has not started cannot be shut down
	var err error
	pending := 2
	select {
	case <-ctx.Done():
	case err = <-errs:
		pending--
	}
	stop, cancel := context.WithTimeout(context.Background(), s.cfg.TCPReadTimeout)
	defer cancel()
	for _, srv := range []*mdns.Server{udp, tcp} {
		_ = srv.ShutdownContext(stop)
	}
	s.listener.closeAll()
	ended.Wait()
	for range pending {
		err = errors.Join(err, <-errs)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Close releases the sockets of a server that was never run.
func (s *Server) Close() error {
	return errors.Join(s.packets.Close(), s.listener.Close())
}

func (s *Server) handler(tcp bool) mdns.HandlerFunc {
	return func(w mdns.ResponseWriter, req *mdns.Msg) {
		start := time.Now()
		from := asker{
			who:    identity.Principal{Addr: addrOf(w.RemoteAddr())}, // plain DNS has no identity
			tcp:    tcp,
			random: rand.Uint64(), //nolint:gosec // rotation, not secrecy
		}
		m := s.composer.reply(req, from, s.cfg.NSID, s.cfg.Snapshot(), s.cfg.Policy())
		if m == nil {
			return
		}
		if err := w.WriteMsg(m); err != nil && tcp {
			_ = w.Close()
		}
		if s.cfg.Events.Answered != nil {
			s.cfg.Events.Answered(typeName(req), mdns.RcodeToString[m.Rcode], time.Since(start))
		}
	}
}

// typeName is the query's type for metrics; types that nobody defined share one name.
func typeName(req *mdns.Msg) string {
	if len(req.Question) != 1 {
		return "none"
	}
	if name, ok := mdns.TypeToString[req.Question[0].Qtype]; ok {
		return name
	}
	return "other"
}

// accept lets every query through to the composer, which knows what to refuse;
// responses are dropped, and what has the wrong number of questions is FORMERR.
func accept(h mdns.Header) mdns.MsgAcceptAction {
	const response = 1 << 15
	opcode := int(h.Bits>>11) & 0xF
	switch {
	case h.Bits&response != 0:
		return mdns.MsgIgnore
	case opcode == mdns.OpcodeUpdate || opcode == mdns.OpcodeNotify:
		return mdns.MsgAccept
	case opcode != mdns.OpcodeQuery:
		return mdns.MsgRejectNotImplemented
	case h.Qdcount != 1:
		return mdns.MsgReject
	}
	return mdns.MsgAccept
}

func seconds(d time.Duration) uint32 { return uint32(d / time.Second) } //nolint:gosec // a TTL

func addrOf(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
