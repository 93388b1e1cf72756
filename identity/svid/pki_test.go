package svid_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const td = "prod.example"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pki signs whatever a test asks for, rules or no rules.
type pki struct {
	t    testing.TB
	root *x509.Certificate
	key  crypto.Signer
}

func newPKI(t testing.TB, trustDomain string) *pki {
	p := &pki{t: t}
	p.key = newKey(t)
	tmpl := &x509.Certificate{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		URIs: []*url.URL{{Scheme: "spiffe", Host: trustDomain}}}
	p.root = create(t, tmpl, tmpl, p.key.Public(), p.key)
	return p
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func create(t testing.TB, tmpl, parent *x509.Certificate, pub crypto.PublicKey, signer crypto.Signer) *x509.Certificate {
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, signer)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// leaf returns a good SVID template of the given URIs, changed by edit.
func (p *pki) leaf(edit func(*x509.Certificate), uris ...string) tls.Certificate {
	tmpl := &x509.Certificate{NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature}
	for _, raw := range uris {
		u, err := url.Parse(raw)
		if err != nil {
			p.t.Fatal(err)
		}
		tmpl.URIs = append(tmpl.URIs, u)
	}
	if edit != nil {
		edit(tmpl)
	}
	key := newKey(p.t)
	c := create(p.t, tmpl, p.root, key.Public(), p.key)
	return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key, Leaf: c}
}

func (p *pki) bundle() []byte { return certPEM(p.root) }

func certPEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func pkcs8(c tls.Certificate) ([]byte, error) { return x509.MarshalPKCS8PrivateKey(c.PrivateKey) }

func keyPEM(t testing.TB, key crypto.PrivateKey) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}
