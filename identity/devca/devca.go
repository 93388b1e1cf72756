// Package devca is a throw-away certificate authority for dev and demo: it
// writes a trust bundle and short-lived SVIDs into a folder, so that mTLS is
// spoken there as everywhere.
//
// It is never a production authority: the key of the root lies in a file (0600)
// beside what it signs, and everything ends within a day. A folder that holds
// a root with at least half its life left is used again, so that clients of a
// server that was killed keep their identities over its return.
package devca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/svid"
)

// Life is how long the root and what it signs are valid.
const Life = 24 * time.Hour

// backdate tolerates clocks of containers that run a little behind.
const backdate = time.Minute

// Authority signs SVIDs of one trust domain. It is immutable after New and may
// be used from several goroutines at once.
type Authority struct {
	trustDomain string
	root        *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Document is an SVID as PEM: the certificate and its PKCS#8 key.
type Document struct{ SVID, Key []byte }

// New makes an authority whose root is valid from a minute before now for Life.
func New(trustDomain string, now time.Time) (*Authority, error) {
	td, err := identity.Parse("spiffe://" + trustDomain)
	if err != nil {
		return nil, fmt.Errorf("trust domain of the development CA: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "sightline development CA of " + trustDomain},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(Life),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		URIs: []*url.URL{uri(td)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Authority{trustDomain, root, key}, nil
}

// TrustDomain is the name of the trust domain that the authority signs for.
func (a *Authority) TrustDomain() string { return a.trustDomain }

// Bundle is the trust bundle as PEM.
func (a *Authority) Bundle() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.root.Raw})
}

// Issue signs an SVID for an identity of the authority's trust domain, valid
// until the root ends. It carries the SANs localhost, 127.0.0.1 and ::1 beside
// the SPIFFE ID, for tools that look for a host name.
func (a *Authority) Issue(id identity.ID, now time.Time) (Document, error) {
	if id.TrustDomain() != a.trustDomain || id.Path() == "" {
		return Document{}, fmt.Errorf("the development CA of %s cannot sign for %q", a.trustDomain, id)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Document{}, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: id.Path()[1:]},
		NotBefore: now.Add(-backdate), NotAfter: a.root.NotAfter,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{uri(id)},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.root, key.Public(), a.key)
	if err != nil {
		return Document{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Document{}, err
	}
	return Document{
		SVID: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, nil
}

// Write issues an SVID and writes it into dir as <name>.pem and <name>.key
// beside the bundle, each replaced whole and readable by the owner only.
func (a *Authority) Write(dir, name string, id identity.ID, now time.Time) (svid.Files, error) {
	d, err := a.Issue(id, now)
	if err != nil {
		return svid.Files{}, err
	}
	f := FilesOf(dir, name)
	for _, part := range []struct {
		path    string
		content []byte
	}{{f.Bundle, a.Bundle()}, {f.Key, d.Key}, {f.SVID, d.SVID}} {
		if err := replaceFile(part.path, part.content); err != nil {
			return svid.Files{}, err
		}
	}
	return f, nil
}

// FilesOf names the files that Write leaves in dir for name.
func FilesOf(dir, name string) svid.Files {
	return svid.Files{
		SVID:   filepath.Join(dir, name+".pem"),
		Key:    filepath.Join(dir, name+".key"),
		Bundle: filepath.Join(dir, "bundle.pem"),
	}
}

// Names of the SVIDs that Prepare writes.
const (
	ServerName   = "server"
	OperatorName = "operator"
	WorkloadName = "workload"
	ProberName   = "prober"
)

// Prepare opens or makes the authority in dir, and writes the SVIDs that dev
// starts with: the server's, an operator's, a prober's, and a sample workload's
// (/ns/default/sa/sample). It returns the authority and the server's files.
func Prepare(dir, trustDomain string, now time.Time) (*Authority, svid.Files, error) {
	a, err := Open(dir, trustDomain, now)
	if err != nil {
		return nil, svid.Files{}, err
	}
	var server svid.Files
	for _, who := range []struct{ name, path string }{
		{OperatorName, "/sightline/operator/dev"},
		{WorkloadName, "/ns/default/sa/sample"},
		{ProberName, "/sightline/prober/dev"},
		{ServerName, "/sightline/server/dev"},
	} {
		id, err := identity.Parse("spiffe://" + trustDomain + who.path)
		if err != nil {
			return nil, svid.Files{}, err
		}
		if server, err = a.Write(dir, who.name, id, now); err != nil {
			return nil, svid.Files{}, err
		}
	}
	return a, server, nil
}

// Open returns the authority kept in dir (made 0700 where it is missing), or
// makes a new one where there is none, or one that is damaged, of another
// trust domain, or past half its life.
func Open(dir, trustDomain string, now time.Time) (*Authority, error) {
	if a, err := load(dir, trustDomain); err == nil && a.root.NotAfter.Sub(now) >= Life/2 && !now.Before(a.root.NotBefore) {
		return a, nil
	}
	a, err := New(trustDomain, now)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, err
	}
	if err := replaceFile(filepath.Join(dir, "ca.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})); err != nil {
		return nil, err
	}
	return a, replaceFile(FilesOf(dir, "").Bundle, a.Bundle())
}

func load(dir, trustDomain string) (*Authority, error) {
	cert, err := readPEM(FilesOf(dir, "").Bundle)
	if err != nil {
		return nil, err
	}
	keyDER, err := readPEM(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, err
	}
	root, err := x509.ParseCertificate(cert)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyDER)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	switch {
	case !ok || !key.PublicKey.Equal(root.PublicKey):
		return nil, fmt.Errorf("%s: the key is not the one of the root", dir)
	case len(root.URIs) != 1 || root.URIs[0].String() != "spiffe://"+trustDomain:
		return nil, fmt.Errorf("%s: the root is not of trust domain %s", dir, trustDomain)
	}
	return &Authority{trustDomain, root, key}, nil
}

func readPEM(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM block", path)
	}
	return block.Bytes, nil
}

// replaceFile writes beside the target and renames, so that a reader never
// sees half a file.
func replaceFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func uri(id identity.ID) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: id.TrustDomain(), Path: id.Path()}
}
