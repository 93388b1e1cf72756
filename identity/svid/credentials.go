package svid

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/sightlinedev/sightline/identity"
)

// Gate decides on connections at their handshake. Both fields may be nil.
type Gate struct {
	// Admit is told of each verified peer and may refuse it (a limit); the
	// connection is closed then.
	Admit func(raw net.Conn, p *Peer) error
	// Done is told of every handshake's end: nil, a *RefusedError, or what
	// broke the connection.
	Done func(raw net.Conn, err error)
}

// ServerCredentials are the credentials of our gRPC servers: mTLS by ServerTLS,
// a *Peer as each connection's AuthInfo.
func (s *Source) ServerCredentials(g Gate) credentials.TransportCredentials {
	return &serverCredentials{TransportCredentials: credentials.NewTLS(s.ServerTLS()), source: s, gate: g}
}

// ClientCredentials are the credentials of our gRPC clients, by ClientTLS.
func (s *Source) ClientCredentials(accept func(identity.ID) error) credentials.TransportCredentials {
	return credentials.NewTLS(s.ClientTLS(accept))
}

type serverCredentials struct {
	credentials.TransportCredentials
	source *Source
	gate   Gate
}

// ServerHandshake runs the TLS handshake, and turns the verified certificate
// into a Peer.
func (c *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, p, err := c.handshake(raw)
	if c.gate.Done != nil {
		c.gate.Done(raw, err)
	}
	if err != nil {
		return nil, nil, err
	}
	return conn, p, nil
}

func (c *serverCredentials) handshake(raw net.Conn) (net.Conn, *Peer, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	tlsInfo, ok := info.(credentials.TLSInfo)
	if !ok {
		return nil, nil, closing(conn, fmt.Errorf("handshake returned %T, not TLS information", info))
	}
	p, err := newPeer(tlsInfo.State.PeerCertificates) // verified by ServerTLS
	if err == nil && c.gate.Admit != nil {
		err = c.gate.Admit(raw, p)
	}
	if err != nil {
		return nil, nil, closing(conn, err)
	}
	return conn, p, nil
}

// closing closes a connection that is refused; the refusal is what matters.
func closing(conn net.Conn, err error) error {
	_ = conn.Close()
	return err
}

// ClientHandshake is not part of a server's credentials.
func (c *serverCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("these are a server's credentials; clients use ClientCredentials")
}

// Clone returns credentials that may be used beside the original.
func (c *serverCredentials) Clone() credentials.TransportCredentials {
	return &serverCredentials{TransportCredentials: c.TransportCredentials.Clone(), source: c.source, gate: c.gate}
}
