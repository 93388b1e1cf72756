package svid_test

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/svid"
)

func writeFiles(t testing.TB, f svid.Files, p *pki, cert tls.Certificate) {
	t.Helper()
	write(t, f.Key, keyPEM(t, cert.PrivateKey))
	write(t, f.SVID, certPEM(cert.Leaf))
	write(t, f.Bundle, p.bundle())
}

func write(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func filesIn(dir string) svid.Files {
	return svid.Files{SVID: filepath.Join(dir, "a.pem"), Key: filepath.Join(dir, "a.key"), Bundle: filepath.Join(dir, "b.pem")}
}

// TestFilesRotateAndKeepTheLastGood: what each state of the files does to the
// source, over virtual time.
func TestFilesRotateAndKeepTheLastGood(t *testing.T) {
	f := filesIn(t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		p := newPKI(t, td)
		writeFiles(t, f, p, p.leaf(nil, "spiffe://"+td+"/sightline/server/a"))
		var mu sync.Mutex
		var kept []string
		rotated := 0
		s, err := svid.FromFiles(f, 5*time.Second, svid.Events{
			Kept:    func(err error) { mu.Lock(); kept = append(kept, err.Error()); mu.Unlock() },
			Rotated: func(identity.ID, time.Time) { mu.Lock(); rotated++; mu.Unlock() },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		step := func(what string, change func(), wantID string, wantKept, wantRotated int) {
			t.Helper()
			change()
			time.Sleep(11 * time.Second) // two polls: a reason is told once
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if s.ID().Path() != wantID || len(kept) != wantKept || rotated != wantRotated {
				t.Errorf("%s: id %v, kept %q, rotated %d", what, s.ID(), kept, rotated)
			}
		}
		next := p.leaf(nil, "spiffe://"+td+"/sightline/server/b")
		changed := s.BundlesChanged()
		step("nothing changed", func() {}, "/sightline/server/a", 0, 0)
		step("a key that does not match", func() { write(t, f.Key, keyPEM(t, next.PrivateKey)) }, "/sightline/server/a", 1, 0)
		step("half a certificate", func() { write(t, f.SVID, certPEM(next.Leaf)[:100]) }, "/sightline/server/a", 2, 0)
		step("the whole of it", func() { write(t, f.SVID, certPEM(next.Leaf)) }, "/sightline/server/b", 2, 1)
		select {
		case <-changed:
			t.Error("a new SVID was taken for other bundles")
		default:
		}
		step("one more root", func() { write(t, f.Bundle, append(p.bundle(), newPKI(t, td).bundle()...)) }, "/sightline/server/b", 2, 2)
		select {
		case <-changed:
		default:
			t.Error("the channel of the bundles was not closed")
		}
		step("the one root again", func() { write(t, f.Bundle, p.bundle()) }, "/sightline/server/b", 2, 3)
		step("an empty bundle", func() { write(t, f.Bundle, nil) }, "/sightline/server/b", 3, 3)
		step("no file", func() { os.Remove(f.Bundle) }, "/sightline/server/b", 4, 3)
		other := newPKI(t, "other.example")
		step("another trust domain", func() {
			writeFiles(t, f, other, other.leaf(nil, "spiffe://other.example/x"))
		}, "/sightline/server/b", 5, 3)
		step("back", func() { writeFiles(t, f, p, next) }, "/sightline/server/b", 5, 3)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestFromFilesRefusesABadStart: the message names the file and the fault.
func TestFromFilesRefusesABadStart(t *testing.T) {
	p := newPKI(t, td)
	good := p.leaf(nil, "spiffe://"+td+"/sightline/server/a")
	for name, row := range map[string]struct {
		break_ func(svid.Files)
		want   string
	}{
		"no SVID":           {func(f svid.Files) { os.Remove(f.SVID) }, "a.pem"},
		"no key":            {func(f svid.Files) { os.Remove(f.Key) }, "a.key"},
		"no bundle":         {func(f svid.Files) { os.Remove(f.Bundle) }, "b.pem"},
		"bundle of another": {func(f svid.Files) { write(t, f.Bundle, newPKI(t, td).bundle()) }, "not signed by a root"},
		"not PEM":           {func(f svid.Files) { write(t, f.SVID, []byte("x")) }, "a.pem"},
	} {
		t.Run(name, func(t *testing.T) {
			f := filesIn(t.TempDir())
			writeFiles(t, f, p, good)
			row.break_(f)
			if _, err := svid.FromFiles(f, 0, svid.Events{}); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestRecheckFollowsTheBundle: a connection under a root that left the bundle
// is found by Recheck, one under a root that stayed is not.
func TestRecheckFollowsTheBundle(t *testing.T) {
	f := filesIn(t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		old, fresh := newPKI(t, td), newPKI(t, td)
		writeFiles(t, f, old, old.leaf(nil, "spiffe://"+td+"/sightline/server/a"))
		s, err := svid.FromFiles(f, time.Second, svid.Events{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		cert := old.leaf(nil, "spiffe://"+td+"/ns/shop/sa/web")
		peer, err := handshake(t, s, present(&cert))
		if err != nil {
			t.Fatal(err)
		}
		write(t, f.Bundle, append(old.bundle(), fresh.bundle()...))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if err := s.Recheck(peer); err != nil {
			t.Error("a root was added:", err)
		}
		writeFiles(t, f, fresh, fresh.leaf(nil, "spiffe://"+td+"/sightline/server/a"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if err := s.Recheck(peer); err == nil {
			t.Error("the root was removed, and the peer is still good")
		}
		cancel()
		<-done
	})
}
