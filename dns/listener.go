package dns

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// acceptBackoff keeps an accept loop that ran out of descriptors from spinning (DNS.md §4).
	acceptBackoff = 50 * time.Millisecond
	// unackedTimeout ends a connection whose peer takes no bytes: a write
	// deadline alone does not see a client that never reads (DNS.md §4).
	unackedTimeout = time.Second
	sendBuffer     = 64 << 10
)

// limitedListener bounds the TCP connections, in all and per address.
type limitedListener struct {
	net.Listener
	limit, perHost int
	refused        func(limit string)

	mu     sync.Mutex
	open   map[*limitedConn]struct{}
	counts map[netip.Addr]int
}

func newLimitedListener(l net.Listener, limit, perHost int, refused func(string)) *limitedListener {
	if refused == nil {
		refused = func(string) {}
	}
	return &limitedListener{
		Listener: l, limit: limit, perHost: perHost, refused: refused,
		open: make(map[*limitedConn]struct{}), counts: make(map[netip.Addr]int),
	}
}

// Accept returns the next connection that the limits allow.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			if isExhaustion(err) {
				l.refused("descriptors")
				time.Sleep(acceptBackoff)
				continue
			}
			return nil, err
		}
		if c, limit := l.admit(conn); c != nil {
			return c, nil
		} else {
			l.refused(limit)
			_ = conn.Close()
		}
	}
}

func (l *limitedListener) admit(conn net.Conn) (c *limitedConn, limit string) {
	addr := addrOf(conn.RemoteAddr())
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(l.open) >= l.limit:
		return nil, "connections"
	case l.counts[addr] >= l.perHost:
		return nil, "connections_per_address"
	}
	bound(conn)
	c = &limitedConn{Conn: conn, addr: addr, owner: l}
	l.open[c] = struct{}{}
	l.counts[addr]++
	return c, ""
}

func (l *limitedListener) forget(c *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.open[c]; !ok {
		return
	}
	delete(l.open, c)
	if l.counts[c.addr]--; l.counts[c.addr] == 0 {
		delete(l.counts, c.addr)
	}
}

// closeAll ends what is still open.
func (l *limitedListener) closeAll() {
	l.mu.Lock()
	open := make([]*limitedConn, 0, len(l.open))
	for c := range l.open {
		open = append(open, c)
	}
	l.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

type limitedConn struct {
	net.Conn
	addr  netip.Addr
	owner *limitedListener
}

// Close closes the connection and gives its place back. Calling it twice is safe.
func (c *limitedConn) Close() error {
	c.owner.forget(c)
	return c.Conn.Close()
}

// bound sets the socket options that end a connection nobody reads.
func bound(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	_ = tcp.SetWriteBuffer(sendBuffer)
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedTimeout/time.Millisecond))
	})
}

func isExhaustion(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}
