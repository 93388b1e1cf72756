package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sightlinedev/sightline/identity/svid"
)

// asker makes single probes. It holds no state of its own; probes run beside
// each other.
type asker struct {
	dial          func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	lookup        func(ctx context.Context, host string) ([]netip.Addr, error)
	source        *svid.Source // nil: no dial-backs
	allowLoopback bool
	responseBytes int
}

// lookupTimeout bounds the resolver, whose slowness is not the instance's.
const lookupTimeout = 2 * time.Second

// ask makes one probe: it takes at most the timeout, and lookupTimeout more for
// a host name.
func (a *asker) ask(ctx context.Context, q question, kind Kind, timeout time.Duration) Result {
	r := Result{UID: q.uid, Service: q.service, Address: q.where(), Kind: kind, asked: q, started: time.Now()}
	addrs, said := a.addresses(ctx, q)
	if said.outcome == OK {
		r.started = time.Now()
		said = a.askOneOf(ctx, q, kind, addrs, timeout, &r)
	}
	r.At = time.Now()
	r.Outcome, r.Detail, r.Latency = said.outcome, said.detail, r.At.Sub(r.started)
	if r.Outcome == TimedOut && r.Latency > timeout+onTime {
		r.excuse = r.Latency - timeout
	}
	return r
}

// addresses are where a question may be put: every address is looked at, also
// those that a name stands for now, and only these are connected to. A resolver
// that fails is the prober's own trouble; one that says there is no such name
// speaks of the target.
func (a *asker) addresses(ctx context.Context, q question) ([]netip.Addr, answer) {
	if q.host == "" {
		return []netip.Addr{q.addr}, answer{OK, ""}
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := a.lookup(ctx, q.host)
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return nil, answer{Failed, "the name does not exist"}
	case err != nil:
		return nil, answer{NoWord, "the name could not be looked up"}
	}
	var allowed []netip.Addr
	why := "the name has no address"
	for _, addr := range found {
		if reason := forbidden(addr, a.allowLoopback); reason != "" {
			why = fmt.Sprintf("the name stands for %s, %s: it is not asked", addr, reason)
			continue
		}
		allowed = append(allowed, addr.Unmap())
	}
	if len(allowed) == 0 {
		return nil, answer{NoWord, why}
	}
	return allowed, answer{OK, ""}
}

// askOneOf connects to the first address that answers, and asks there.
func (a *asker) askOneOf(ctx context.Context, q question, kind Kind, addrs []netip.Addr, timeout time.Duration, r *Result) answer {
	deadline := time.Now().Add(timeout)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	var raw net.Conn
	var err error
	for i, addr := range addrs {
		to := netip.AddrPortFrom(addr, q.port)
		r.Address = to.String()
		share := time.Until(deadline) / time.Duration(len(addrs)-i)
		if raw, err = a.dialWithin(ctx, to, share); err == nil {
			break
		}
	}
	if err != nil {
		return classify(err)
	}
	conn := &counted{Conn: raw}
	defer func() {
		_ = conn.Close() // the answer is known; a failed close changes nothing
		r.Sent, r.Received = int(conn.sent.Load()), int(conn.received.Load())
	}()
	if err := conn.SetDeadline(deadline); err != nil {
		return classify(err)
	}
	switch kind {
	case GRPC:
		return askGRPC(ctx, conn, q)
	case HTTP:
		return askHTTP(conn, q, a.responseBytes)
	case DialBack:
		return a.meet(ctx, conn, q)
	case TCP:
	}
	return answer{OK, ""}
}

func (a *asker) dialWithin(ctx context.Context, to netip.AddrPort, share time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, share)
	defer cancel()
	return a.dial(ctx, to)
}

// meet is the dial-back: mutual TLS with our SVID, and the registered identity
// has to answer. Nothing is said over the connection.
func (a *asker) meet(ctx context.Context, conn net.Conn, q question) answer {
	c := tls.Client(conn, a.source.ClientTLS(svid.Exactly(q.identity)))
	if err := c.HandshakeContext(ctx); err != nil {
		return classify(err)
	}
	return answer{OK, ""}
}

// counted counts the bytes of a connection, which gRPC's transport reads in a
// goroutine of its own.
type counted struct {
	net.Conn
	sent, received atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(int64(n))
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.sent.Add(int64(n))
	return n, err
}
