package svid

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/sightlinedev/sightline/identity"
)

// ServerTLS is the configuration of a listener: TLS 1.3 only, a client
// certificate required, no session tickets. The peer's identity is verified in
// VerifyPeerCertificate and again in VerifyConnection, which alone runs when a
// session is resumed. It follows the source's rotations.
func (s *Source) ServerTLS(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		ClientAuth:             tls.RequireAnyClientCert,
		SessionTicketsDisabled: true,
		NextProtos:             protocols,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &s.documents().certificate, nil
		},
		VerifyPeerCertificate: s.verifyRaw(nil),
		VerifyConnection:      s.verifyState(nil),
	}
}

// ClientTLS is the configuration of our own clients: the source's SVID is
// presented, and the server's identity must be one that accept allows (nil:
// any of a bundle that we hold). Host names play no part.
func (s *Source) ClientTLS(accept func(identity.ID) error) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// Not unverified: the two functions below verify the chain and the
		// SPIFFE ID; the standard check would look for a host name instead.
		InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &s.documents().certificate, nil
		},
		VerifyPeerCertificate: s.verifyRaw(accept),
		VerifyConnection:      s.verifyState(accept),
	}
}

// OurServer accepts the servers of one trust domain: /sightline/server/<name>
// and /sightline/replica/<name>.
func OurServer(trustDomain string) func(identity.ID) error {
	return func(id identity.ID) error {
		if id.TrustDomain() == trustDomain && id.Class() == identity.Replica {
			return nil
		}
		return fmt.Errorf("%s is not a server of trust domain %s (spiffe://%s/sightline/server/...)", id, trustDomain, trustDomain)
	}
}

func (s *Source) verifyRaw(accept func(identity.ID) error) func([][]byte, [][]*x509.Certificate) error {
	return func(raw [][]byte, _ [][]*x509.Certificate) error {
		chain := make([]*x509.Certificate, 0, len(raw))
		for _, der := range raw {
			c, err := x509.ParseCertificate(der)
			if err != nil {
				return &RefusedError{fmt.Errorf("a certificate of the peer does not parse: %w", err)}
			}
			chain = append(chain, c)
		}
		return s.verifyAccepted(chain, accept)
	}
}

func (s *Source) verifyState(accept func(identity.ID) error) func(tls.ConnectionState) error {
	return func(cs tls.ConnectionState) error { return s.verifyAccepted(cs.PeerCertificates, accept) }
}

func (s *Source) verifyAccepted(chain []*x509.Certificate, accept func(identity.ID) error) error {
	id, err := s.verify(chain)
	if err != nil || accept == nil {
		return err
	}
	if err := accept(id); err != nil {
		return &RefusedError{err}
	}
	return nil
}

// RefusedError says that a peer's identity was not accepted, as opposed to a
// connection that broke.
type RefusedError struct{ Reason error }

// Error says why the peer was refused.
func (e *RefusedError) Error() string { return "peer refused: " + e.Reason.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Reason }

var errNoDigitalSignature = errors.New("the certificate lacks the key usage digitalSignature")

// Exactly accepts one identity and no other: the one that is registered at the
// address of a dial-back.
func Exactly(want identity.ID) func(identity.ID) error {
	return func(id identity.ID) error {
		if id == want && !id.IsZero() {
			return nil
		}
		return fmt.Errorf("%s answered, %s is expected", id, want)
	}
}
