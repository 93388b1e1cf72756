package svid

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Files are the paths of a file source: PEM, the SVID with its intermediates,
// its PKCS#8 key, and the roots of the SVID's trust domain.
type Files struct {
	SVID   string
	Key    string
	Bundle string
}

// contents are the bytes of the three files at one moment.
type contents struct{ svid, key, bundle []byte }

func (f Files) read() (contents, error) {
	var c contents
	for _, part := range []struct {
		to   *[]byte
		path string
		what string
	}{{&c.svid, f.SVID, "SVID"}, {&c.key, f.Key, "key of the SVID"}, {&c.bundle, f.Bundle, "trust bundle"}} {
		b, err := os.ReadFile(part.path)
		if err != nil {
			return c, fmt.Errorf("%s: %w", part.what, err)
		}
		*part.to = b
	}
	return c, nil
}

func (c contents) equal(o contents) bool {
	return bytes.Equal(c.svid, o.svid) && bytes.Equal(c.key, o.key) && bytes.Equal(c.bundle, o.bundle)
}

func (f Files) parse(c contents, now time.Time) (*documents, error) {
	sv, err := x509svid.Parse(c.svid, c.key)
	if err != nil {
		return nil, fmt.Errorf("SVID %s with key %s: %w", f.SVID, f.Key, err)
	}
	bundle, err := x509bundle.Parse(sv.ID.TrustDomain(), c.bundle)
	if err != nil {
		return nil, fmt.Errorf("trust bundle %s: %w", f.Bundle, err)
	}
	d, err := newDocuments(sv, x509bundle.NewSet(bundle), now)
	if err != nil {
		return nil, fmt.Errorf("SVID %s: %w", f.SVID, err)
	}
	return d, nil
}

// FromFiles reads the documents once, verifies the SVID against the bundle,
// and returns a source whose Run looks at the files every poll (5 s where that
// is zero) and follows them when they change. A set that is unreadable,
// half-written, mismatched or of another trust domain changes nothing.
func FromFiles(f Files, poll time.Duration, e Events) (*Source, error) {
	c, err := f.read()
	if err != nil {
		return nil, err
	}
	d, err := f.parse(c, time.Now())
	if err != nil {
		return nil, err
	}
	if _, _, err := x509svid.Verify(d.svid.Certificates, d.bundles); err != nil {
		return nil, fmt.Errorf("SVID %s is not signed by a root of %s: %w", f.SVID, f.Bundle, err)
	}
	if poll <= 0 {
		poll = 5 * time.Second
	}
	s := newSource(d, e)
	s.run = func(ctx context.Context) error { return s.follow(ctx, f, c, poll) }
	return s, nil
}

// follow polls rather than watches: secrets are mounted over links that are
// swapped, which file notifications report in many ways and a read in one.
func (s *Source) follow(ctx context.Context, f Files, held contents, poll time.Duration) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		seen, err := f.read()
		if err != nil {
			s.keep(err)
			continue
		}
		if seen.equal(held) {
			continue
		}
		if err := s.adopt(f, seen); err != nil {
			s.keep(err)
			continue
		}
		held = seen
	}
}

func (s *Source) adopt(f Files, c contents) error {
	d, err := f.parse(c, time.Now())
	if err != nil {
		return err
	}
	if got, want := d.id.TrustDomain(), s.TrustDomain(); got != want {
		return fmt.Errorf("SVID %s is of trust domain %s, not %s: restart the server to change it", f.SVID, got, want)
	}
	s.replace(d)
	return nil
}

// FromDocuments is a source of fixed PEM documents, for identities that live in
// memory; its Run waits for ctx.
func FromDocuments(svidPEM, keyPEM, bundlePEM []byte) (*Source, error) {
	d, err := Files{SVID: "(memory)", Key: "(memory)", Bundle: "(memory)"}.parse(
		contents{svidPEM, keyPEM, bundlePEM}, time.Now())
	if err != nil {
		return nil, err
	}
	s := newSource(d, Events{})
	s.run = func(ctx context.Context) error { <-ctx.Done(); return nil }
	return s, nil
}
