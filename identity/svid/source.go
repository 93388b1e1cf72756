package svid

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/sightlinedev/sightline/identity"
)

// Events are told about a source's life. Every field may be nil; the functions
// are called from the source's own goroutine and must not block.
type Events struct {
	// Rotated: a new SVID or bundle is in force; notAfter is the SVID's end.
	Rotated func(id identity.ID, notAfter time.Time)
	// Kept: what was read is not usable, and the last good documents stay. It
	// is called once per distinct reason, not once per poll.
	Kept func(reason error)
}

// documents are one consistent set; immutable.
type documents struct {
	svid        *x509svid.SVID
	id          identity.ID
	certificate tls.Certificate
	bundles     *x509bundle.Set
}

// Source holds the SVID that we present and the bundles that we believe.
type Source struct {
	// Fixed after the constructor.
	run     func(context.Context) error
	release func() error
	events  Events

	mu      sync.Mutex // guards what follows
	current *documents
	changed chan struct{} // closed at the next change of the bundles
	kept    string        // the last reason given to Events.Kept
}

func newSource(first *documents, e Events) *Source {
	return &Source{current: first, events: e, changed: make(chan struct{}),
		release: func() error { return nil }}
}

// Run keeps the source up to date until ctx ends; it returns nil then. Without
// it the source serves what it was built with.
func (s *Source) Run(ctx context.Context) error { return s.run(ctx) }

// Close releases what the source holds open. Call it after Run has returned.
func (s *Source) Close() error { return s.release() }

// ID is the identity that the source presents. It changes only within the
// trust domain that the source began with.
func (s *Source) ID() identity.ID { return s.documents().id }

// TrustDomain is the name of the trust domain of the source's identity.
func (s *Source) TrustDomain() string { return s.documents().id.TrustDomain() }

// Validity returns the first and last moment of the SVID held now.
func (s *Source) Validity() (notBefore, notAfter time.Time) {
	leaf := s.documents().svid.Certificates[0]
	return leaf.NotBefore, leaf.NotAfter
}

// BundlesChanged returns a channel that is closed when the bundles held now are
// replaced by others. Whoever holds connections verifies them again then
// (Recheck); a new SVID of our own concerns no peer.
func (s *Source) BundlesChanged() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *Source) documents() *documents {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// replace puts documents in force and wakes whoever waits for other bundles.
// It is called from one goroutine.
func (s *Source) replace(d *documents) {
	s.mu.Lock()
	if !sameBundles(s.current.bundles, d.bundles) {
		close(s.changed)
		s.changed = make(chan struct{})
	}
	s.current, s.kept = d, ""
	s.mu.Unlock()
	if s.events.Rotated != nil {
		s.events.Rotated(d.id, d.svid.Certificates[0].NotAfter)
	}
}

func sameBundles(a, b *x509bundle.Set) bool {
	if a.Len() != b.Len() {
		return false
	}
	for _, x := range a.Bundles() {
		if y, ok := b.Get(x.TrustDomain()); !ok || !x.Equal(y) {
			return false
		}
	}
	return true
}

// keep says once why the last good documents stay.
func (s *Source) keep(reason error) {
	s.mu.Lock()
	repeated := s.kept == reason.Error()
	s.kept = reason.Error()
	s.mu.Unlock()
	if !repeated && s.events.Kept != nil {
		s.events.Kept(reason)
	}
}

// newDocuments makes a consistent set out of an SVID and bundles, and refuses
// an SVID that cannot be presented: not in canonical form, without the bundle
// of its own trust domain, or not valid now.
func newDocuments(sv *x509svid.SVID, bundles *x509bundle.Set, now time.Time) (*documents, error) {
	leaf := sv.Certificates[0]
	id, err := identity.Parse(sv.ID.String())
	switch {
	case err != nil:
		return nil, err
	case now.After(leaf.NotAfter):
		return nil, fmt.Errorf("the SVID of %s expired at %s", id, leaf.NotAfter.Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return nil, fmt.Errorf("the SVID of %s is not valid before %s", id, leaf.NotBefore.Format(time.RFC3339))
	}
	td, err := spiffeid.TrustDomainFromString(id.TrustDomain())
	if err != nil {
		return nil, err
	}
	own, ok := bundles.Get(td)
	if !ok || own.Empty() {
		return nil, fmt.Errorf("no trust bundle for %s, the trust domain of the SVID", id.TrustDomain())
	}
	cert := tls.Certificate{PrivateKey: sv.PrivateKey, Leaf: leaf}
	for _, c := range sv.Certificates {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return &documents{svid: sv, id: id, certificate: cert, bundles: bundles}, nil
}
