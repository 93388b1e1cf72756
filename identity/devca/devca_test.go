package devca_test

import (
	"crypto/tls"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
)

const td = "sightline.test"

// TestPrepareServesAndIsPrivate: what Prepare writes can be presented and is
// believed by both sides, and nobody but the owner can read it.
func TestPrepareServesAndIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "identity")
	_, serverFiles, err := devca.Prepare(dir, td, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server, err := svid.FromFiles(serverFiles, 0, svid.Events{})
	if err != nil {
		t.Fatal(err)
	}
	operator, err := svid.FromFiles(devca.FilesOf(dir, devca.OperatorName), 0, svid.Events{})
	if err != nil {
		t.Fatal(err)
	}
	if got := operator.ID().Class(); got != identity.Operator {
		t.Errorf("operator's class is %v", got)
	}
	if _, end := server.Validity(); time.Until(end) > devca.Life || time.Until(end) < devca.Life/2 {
		t.Errorf("server's SVID ends at %v", end)
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	srv := tls.Server(a, server.ServerTLS())
	cli := tls.Client(b, operator.ClientTLS(svid.OurServer(td)))
	errs := make(chan error, 1)
	go func() { errs <- srv.Handshake() }()
	if err := cli.Handshake(); err != nil {
		t.Error("client:", err)
	}
	if err := <-errs; err != nil {
		t.Error("server:", err)
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestServerCertificateNamesLoopback: tools that look for a host name accept it.
func TestServerCertificateNamesLoopback(t *testing.T) {
	a, err := devca.New(td, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	d, err := a.Issue(identity.MustParse("spiffe://"+td+"/sightline/server/dev"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(d.SVID, d.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
		if err := pair.Leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
}

// TestOpenKeepsOrReplacesTheRoot: clients keep their identities over a restart,
// and an old, damaged or foreign root is replaced.
func TestOpenKeepsOrReplacesTheRoot(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	first := open(t, dir, td, now)
	if again := open(t, dir, td, now.Add(time.Hour)); string(again.Bundle()) != string(first.Bundle()) {
		t.Error("a root with most of its life left was replaced")
	}
	if late := open(t, dir, td, now.Add(devca.Life*3/4)); string(late.Bundle()) == string(first.Bundle()) {
		t.Error("a root past half its life was kept")
	}
	if other := open(t, dir, "other.test", now); other.TrustDomain() != "other.test" {
		t.Error("a root of another trust domain was kept")
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.key"), []byte("not a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir, "other.test", now)
}

// TestIssueRefusesForeignIdentities: the authority signs for its own domain only.
func TestIssueRefusesForeignIdentities(t *testing.T) {
	a, err := devca.New(td, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"spiffe://other.test/ns/a/sa/b", "spiffe://" + td} {
		if _, err := a.Issue(identity.MustParse(id), time.Now()); err == nil || !strings.Contains(err.Error(), "cannot sign") {
			t.Errorf("%s: %v", id, err)
		}
	}
	if _, err := devca.New("Not A Domain", time.Now()); err == nil {
		t.Error("a trust domain that breaks the rules was accepted")
	}
}

func open(t *testing.T, dir, trustDomain string, now time.Time) *devca.Authority {
	t.Helper()
	a, err := devca.Open(dir, trustDomain, now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
