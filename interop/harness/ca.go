package harness

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// CA is a throw-away certificate authority of one trust domain. It exists only
// in tests: its key lives in memory.
type CA struct {
	TrustDomain string
	BundleFile  string // PEM of the root

	dir    string
	cert   *x509.Certificate
	key    crypto.Signer
	serial atomic.Int64
}

// SVID is an X.509 identity document with the files that real clients read.
type SVID struct {
	ID         string
	CertFile   string // PEM, the leaf only
	KeyFile    string // PEM, PKCS #8
	BundleFile string // PEM of the roots that the holder trusts
	Cert       tls.Certificate
	Roots      *x509.CertPool
}

// NewCA makes the authority of a trust domain, valid for a day.
func NewCA(t testing.TB, trustDomain string) *CA {
	t.Helper()
	ca := &CA{TrustDomain: trustDomain, dir: t.TempDir()}
	ca.serial.Store(1)
	ca.key = newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test root of " + trustDomain},
		URIs:                  []*url.URL{parseURI(t, "spiffe://"+trustDomain)},
		NotBefore:             time.Now().Add(-time.Minute),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, ca.key.Public(), ca.key)
	if err != nil {
		t.Fatalf("sign the root: %v", err)
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatalf("parse the root: %v", err)
	}
	ca.BundleFile = filepath.Join(ca.dir, "bundle.pem")
	writePEM(t, ca.BundleFile, "CERTIFICATE", der)
	return ca
}

// Mint issues an SVID for an ID of this trust domain, valid for an hour, with
// the SANs that a server on loopback needs.
func (ca *CA) Mint(t testing.TB, path string) *SVID {
	t.Helper()
	return ca.MintFor(t, "spiffe://"+ca.TrustDomain+path, time.Hour)
}

// MintFor issues an SVID for any ID, also one that a verifier must refuse. A
// negative life gives one that has expired.
func (ca *CA) MintFor(t testing.TB, id string, life time.Duration) *SVID {
	t.Helper()
	n := ca.serial.Add(1)
	key := newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(n),
		URIs:         []*url.URL{parseURI(t, id)},
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		NotBefore:    time.Now().Add(-time.Hour + min(life, 0)),
		NotAfter:     time.Now().Add(life),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, key.Public(), ca.key)
	if err != nil {
		t.Fatalf("sign %s: %v", id, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatalf("encode the key of %s: %v", id, err)
	}
	base := filepath.Join(ca.dir, "svid-"+big.NewInt(n).String())
	s := &SVID{ID: id, CertFile: base + ".pem", KeyFile: base + "-key.pem", BundleFile: ca.BundleFile, Roots: ca.Roots()}
	writePEM(t, s.CertFile, "CERTIFICATE", der)
	writePEM(t, s.KeyFile, "PRIVATE KEY", keyDER)
	if s.Cert, err = tls.LoadX509KeyPair(s.CertFile, s.KeyFile); err != nil {
		t.Fatalf("load the SVID of %s: %v", id, err)
	}
	return s
}

// Roots is the pool with the authority's root.
func (ca *CA) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// LoadSVID reads an SVID that somebody else wrote, such as the identities that
// dev and demo put under their data folder.
func LoadSVID(t testing.TB, certFile, keyFile, bundleFile string) *SVID {
	t.Helper()
	s := &SVID{CertFile: certFile, KeyFile: keyFile, BundleFile: bundleFile, Roots: x509.NewCertPool()}
	var err error
	if s.Cert, err = tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		t.Fatalf("load SVID: %v", err)
	}
	if leaf, err := x509.ParseCertificate(s.Cert.Certificate[0]); err == nil && len(leaf.URIs) == 1 {
		s.ID = leaf.URIs[0].String()
	}
	bundle, err := os.ReadFile(bundleFile)
	if err != nil {
		t.Fatalf("read bundle: %v", err)
	}
	if !s.Roots.AppendCertsFromPEM(bundle) {
		t.Fatalf("%s holds no certificate", bundleFile)
	}
	return s
}

// ClientTLS is how the holder dials a server on loopback.
func (s *SVID) ClientTLS() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{s.Cert},
		RootCAs:      s.Roots,
		ServerName:   "localhost",
	}
}

// ServerTLS is how the holder serves callers that must show an SVID.
func (s *SVID) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{s.Cert},
		ClientCAs:    s.Roots,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		NextProtos:   []string{"h2"},
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("generate a key: %v", err)
	}
	return key
}

func parseURI(t testing.TB, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatalf("ID %q: %v", s, err)
	}
	return u
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatalf("write PEM: %v", err)
	}
}
