package svid

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/sightlinedev/sightline/identity"
)

// Peer is what the certificate of a connection says. It is the connection's
// gRPC AuthInfo, one value per connection, and immutable.
type Peer struct {
	credentials.CommonAuthInfo
	ID identity.ID
	// NotAfter is when the identity ends: the earliest end in the chain presented.
	NotAfter time.Time
	chain    []*x509.Certificate
}

// AuthType names the kind of authentication, as gRPC's own TLS credentials do.
func (*Peer) AuthType() string { return "tls" }

// verify checks a chain against the documents held now: exactly one URI SAN in
// canonical form and with a path, a leaf that is no CA and may sign, a root of
// the bundle of its trust domain, and the present time.
func (s *Source) verify(chain []*x509.Certificate) (identity.ID, error) {
	if len(chain) == 0 {
		return identity.ID{}, &RefusedError{errors.New("no certificate was presented")}
	}
	if _, _, err := x509svid.Verify(chain, s.documents().bundles); err != nil {
		return identity.ID{}, &RefusedError{err}
	}
	id, err := identity.Parse(chain[0].URIs[0].String())
	switch {
	case err != nil:
		return id, &RefusedError{err}
	case id.Path() == "":
		return id, &RefusedError{fmt.Errorf("%s has no path: it names a trust domain, not a caller", id)}
	case chain[0].KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return id, &RefusedError{errNoDigitalSignature}
	}
	return id, nil
}

// newPeer reads the identity of a chain that verify has accepted.
func newPeer(chain []*x509.Certificate) (*Peer, error) {
	id, err := identity.Parse(chain[0].URIs[0].String())
	if err != nil {
		return nil, &RefusedError{err}
	}
	return &Peer{ID: id, chain: chain, NotAfter: earliestEnd(chain),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

// Recheck verifies a connection's peer against the documents held now: its root
// may have left the bundle since, or its certificate ended.
func (s *Source) Recheck(p *Peer) error {
	_, err := s.verify(p.chain)
	return err
}

func earliestEnd(chain []*x509.Certificate) time.Time {
	end := chain[0].NotAfter
	for _, c := range chain[1:] {
		if c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end
}

// PeerFrom returns the verified peer of the connection that an RPC came on, and
// its source address; ok is false when the connection is not one of ours.
func PeerFrom(ctx context.Context) (p *Peer, addr netip.Addr, ok bool) {
	gp, ok := peer.FromContext(ctx)
	if !ok {
		return nil, netip.Addr{}, false
	}
	p, ok = gp.AuthInfo.(*Peer)
	return p, AddrOf(gp.Addr), ok
}

// AddrOf is the IP of a network address, unmapped; the zero Addr where it has
// none (a unix socket, an in-memory connection).
func AddrOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}
