package svid_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/svid"
)

func source(t testing.TB, p *pki, cert tls.Certificate) *svid.Source {
	t.Helper()
	s, err := svid.FromDocuments(certPEM(cert.Leaf), keyPEM(t, cert.PrivateKey), p.bundle())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// handshake runs one TLS handshake and returns the server's result.
func handshake(t testing.TB, server *svid.Source, client *tls.Config) (*svid.Peer, error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() {
		c := tls.Client(b, client)
		if c.Handshake() == nil {
			buf := make([]byte, 1)
			_, _ = c.Read(buf) // lets the server's alert or close arrive
		}
		b.Close()
	}()
	_ = a.SetDeadline(time.Now().Add(10 * time.Second))
	conn, info, err := server.ServerCredentials(svid.Gate{}).ServerHandshake(a)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return info.(*svid.Peer), nil
}

func present(cert *tls.Certificate) *tls.Config {
	c := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	if cert != nil {
		c.Certificates = []tls.Certificate{*cert}
	}
	return c
}

// TestPeerTable is the SVID table of RELIABILITY.md §4: who is let in, and what
// a refusal says.
func TestPeerTable(t *testing.T) {
	ours, theirs := newPKI(t, td), newPKI(t, "other.example")
	server := source(t, ours, ours.leaf(nil, "spiffe://"+td+"/sightline/server/a"))
	good := "spiffe://" + td + "/ns/shop/sa/web"
	long := "spiffe://" + td + "/" + strings.Repeat("a", 2049-len("spiffe://"+td+"/"))
	rows := []struct {
		name   string
		cert   func() *tls.Certificate
		refuse string // part of the refusal; empty: let in
	}{
		{"good", leafOf(ours, nil, good), ""},
		{"no certificate", func() *tls.Certificate { return nil }, "certificate"},
		{"self-signed", leafOf(newPKI(t, td), nil, good), "verify leaf"},
		{"another trust domain", leafOf(theirs, nil, "spiffe://other.example/ns/shop/sa/web"), "bundle"},
		{"another domain's root, our name", leafOf(theirs, nil, good), "verify leaf"},
		{"expired", leafOf(ours, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }, good), "expired"},
		{"not yet valid", leafOf(ours, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }, good), "not yet valid"},
		{"a CA as leaf", leafOf(ours, func(c *x509.Certificate) { c.IsCA = true }, good), "CA flag"},
		{"may sign certificates", leafOf(ours, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }, good), "KeyCertSign"},
		{"may not sign", leafOf(ours, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment }, good), "digitalSignature"},
		{"no URI", leafOf(ours, func(c *x509.Certificate) { c.DNSNames = []string{"web"} }), "no URI SAN"},
		{"two URIs", leafOf(ours, nil, good, good+"2"), "more than one"},
		{"no path", leafOf(ours, nil, "spiffe://"+td), "no path"},
		{"percent-encoded path", leafOf(ours, nil, "spiffe://"+td+"/%2e%2e/web"), "path"},
		{"empty segment", leafOf(ours, nil, "spiffe://"+td+"//web"), "path"},
		{"trailing slash", leafOf(ours, nil, good+"/"), "path"},
		{"dots", leafOf(ours, nil, "spiffe://"+td+"/ns/../web"), "path"},
		{"upper-case domain", leafOf(ours, nil, "spiffe://PROD.example/ns/shop/sa/web"), "trust domain"},
		{"port in the domain", leafOf(ours, nil, "spiffe://"+td+":80/web"), "trust domain"},
		{"another scheme", leafOf(ours, nil, "https://"+td+"/web"), "scheme"},
		{"too long", leafOf(ours, nil, long), "2049 bytes"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			peer, err := handshake(t, server, present(row.cert()))
			switch {
			case row.refuse == "" && err != nil:
				t.Fatal(err)
			case row.refuse == "" && peer.ID != identity.MustParse(good):
				t.Errorf("peer is %v", peer.ID)
			case row.refuse != "" && err == nil:
				t.Errorf("let in as %v", peer.ID)
			case row.refuse != "" && !strings.Contains(err.Error(), row.refuse):
				t.Errorf("refused with %q, want a word of %q", err, row.refuse)
			}
		})
	}
}

func leafOf(p *pki, edit func(*x509.Certificate), uris ...string) func() *tls.Certificate {
	return func() *tls.Certificate {
		c := p.leaf(edit, uris...)
		return &c
	}
}

// TestOldTLSIsRefused: a client that speaks nothing newer than TLS 1.2.
func TestOldTLSIsRefused(t *testing.T) {
	p := newPKI(t, td)
	server := source(t, p, p.leaf(nil, "spiffe://"+td+"/sightline/server/a"))
	cert := p.leaf(nil, "spiffe://"+td+"/ns/shop/sa/web")
	cfg := present(&cert)
	cfg.MaxVersion = tls.VersionTLS12
	if _, err := handshake(t, server, cfg); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("TLS 1.2: %v", err)
	}
}

// TestNoSessionIsResumed: a client that caches sessions is verified in full at
// each connection.
func TestNoSessionIsResumed(t *testing.T) {
	p := newPKI(t, td)
	server := source(t, p, p.leaf(nil, "spiffe://"+td+"/sightline/server/a"))
	cfg := server.ServerTLS()
	if !cfg.SessionTicketsDisabled || cfg.MinVersion != tls.VersionTLS13 ||
		cfg.ClientAuth != tls.RequireAnyClientCert || cfg.VerifyConnection == nil || cfg.VerifyPeerCertificate == nil {
		t.Errorf("the server's configuration lost a protection: %+v", cfg)
	}
	// A resumed session shows its old certificates to VerifyConnection alone.
	other := newPKI(t, td).leaf(nil, "spiffe://"+td+"/ns/shop/sa/web")
	err := cfg.VerifyConnection(tls.ConnectionState{DidResume: true, PeerCertificates: []*x509.Certificate{other.Leaf}})
	if err == nil {
		t.Error("a resumed session under a root that we do not hold was accepted")
	}
	if err := cfg.VerifyConnection(tls.ConnectionState{DidResume: true}); err == nil {
		t.Error("a resumed session without certificates was accepted")
	}
}

// TestClientAcceptsOnlyOurServers: our own clients look at the identity, not at
// the host name.
func TestClientAcceptsOnlyOurServers(t *testing.T) {
	p := newPKI(t, td)
	client := source(t, p, p.leaf(nil, "spiffe://"+td+"/ns/shop/sa/web"))
	for path, ok := range map[string]bool{"/sightline/server/a": true, "/sightline/replica/b": true, "/ns/shop/sa/fake": false, "/sightline/operator/x": false} {
		server := source(t, p, p.leaf(nil, "spiffe://"+td+path))
		a, b := tcpPair(t) // a pipe would not take an alert while the other side writes
		done := make(chan error, 1)
		go func() { done <- tls.Server(a, server.ServerTLS()).Handshake(); a.Close() }()
		err := tls.Client(b, client.ClientTLS(svid.OurServer(td))).Handshake()
		b.Close()
		<-done
		if (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func tcpPair(t *testing.T) (a, b net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if b, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if a, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// FuzzPeerURI: whatever URI a certificate holds, a peer that is let in has the
// canonical form of identity.Parse, and nothing panics.
func FuzzPeerURI(f *testing.F) {
	for _, s := range []string{"spiffe://prod.example/ns/a/sa/b", "spiffe://prod.example/%2e%2e", "SPIFFE://prod.example/a",
		"spiffe://prod.example/a?b", "spiffe://prod.example/a#b", "spiffe://u@prod.example/a", "spiffe:///a", "//x"} {
		f.Add(s)
	}
	p := newPKI(f, td)
	server := source(f, p, p.leaf(nil, "spiffe://"+td+"/sightline/server/a"))
	verify := server.ServerTLS().VerifyConnection
	key := newKey(f)
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := url.Parse(raw)
		if err != nil {
			return
		}
		tmpl := &x509.Certificate{NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
			BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, URIs: []*url.URL{u}}
		der, err := x509.CreateCertificate(zeroReader{}, tmpl, p.root, key.Public(), p.key)
		if err != nil {
			return
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return
		}
		if verify(tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}) != nil {
			return
		}
		id, err := identity.Parse(c.URIs[0].String())
		if err != nil || id.Path() == "" || id.TrustDomain() != td {
			t.Errorf("%q was let in as %v (%v)", raw, id, err)
		}
	})
}

type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) { clear(b); return len(b), nil }
