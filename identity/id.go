package identity

import (
	"fmt"
	"strings"
)

// MaxIDLength is the longest SPIFFE ID accepted, in bytes (SPIFFE-ID §2.3).
const MaxIDLength = 2048

// maxTrustDomain is the longest trust domain name, in bytes (SPIFFE-ID §2.1).
const maxTrustDomain = 255

// ID is a SPIFFE ID in canonical form. It is comparable, and always valid: the
// only ways to get one are Parse and the zero value, which is the anonymous
// caller (a client that presented no identity).
type ID struct {
	trustDomain string
	path        string // "" or "/a/b", never with a trailing slash
	class       Class  // follows from the path; asked too often to be derived each time
}

// Parse reads a SPIFFE ID and accepts nothing but its canonical form
// (SPIFFE-ID §2): lower-case trust domain, no port, no user info, no query, no
// fragment, no percent-encoding, no empty, "." or ".." segment. The error says
// which rule was broken.
func Parse(s string) (ID, error) {
	rest, ok := strings.CutPrefix(s, "spiffe://")
	switch {
	case len(s) > MaxIDLength:
		return ID{}, fmt.Errorf("SPIFFE ID is %d bytes long, the limit is %d", len(s), MaxIDLength)
	case !ok:
		return ID{}, fmt.Errorf("SPIFFE ID %q does not start with spiffe://", s)
	}
	td, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		td, path = rest[:i], rest[i:]
	}
	if err := checkTrustDomain(td); err != nil {
		return ID{}, fmt.Errorf("SPIFFE ID %q: %w", s, err)
	}
	if err := checkPath(path); err != nil {
		return ID{}, fmt.Errorf("SPIFFE ID %q: %w", s, err)
	}
	return ID{trustDomain: td, path: path, class: classOf(path)}, nil
}

// MustParse is Parse for identities written in the source; it panics on a bad one.
func MustParse(s string) ID {
	id, err := Parse(s)
	if err != nil {
		panic(err)
	}
	return id
}

// IsZero reports whether the ID is that of the anonymous caller.
func (id ID) IsZero() bool { return id.trustDomain == "" }

// TrustDomain returns the trust domain's name, without scheme.
func (id ID) TrustDomain() string { return id.trustDomain }

// Path returns the path, which is empty or starts with a slash.
func (id ID) Path() string { return id.path }

// String returns the canonical form, or "" for the anonymous caller.
func (id ID) String() string {
	if id.IsZero() {
		return ""
	}
	return "spiffe://" + id.trustDomain + id.path
}

// MarshalText returns the canonical form, so that rows store IDs as text.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads the canonical form; empty text is the anonymous caller.
func (id *ID) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*id = ID{}
		return nil
	}
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

// Workload splits the identity of a workload (NAMES.md: /ns/<ns>/sa/<sa>) into
// its namespace and service account; ok is false for any other shape.
func (id ID) Workload() (namespace, account string, ok bool) {
	seg := strings.Split(id.path, "/")
	if len(seg) != 5 || seg[1] != "ns" || seg[3] != "sa" {
		return "", "", false
	}
	return seg[2], seg[4], true
}

func checkTrustDomain(td string) error {
	if td == "" || len(td) > maxTrustDomain {
		return fmt.Errorf("trust domain must have 1 to %d characters", maxTrustDomain)
	}
	for i := range len(td) {
		if c := td[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_') {
			return fmt.Errorf("trust domain %q: character %q is not one of a-z, 0-9, dot, dash, underscore", td, c)
		}
	}
	return nil
}

func checkPath(path string) error {
	if path == "" {
		return nil
	}
	for seg := range strings.SplitSeq(path[1:], "/") {
		if seg == "" || seg == "." || seg == ".." {
			return fmt.Errorf("path segment %q is not allowed (no empty, dot or dot-dot segment, no trailing slash)", seg)
		}
		for i := range len(seg) {
			if c := seg[i]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_') {
				return fmt.Errorf("path segment %q: character %q is not one of a-z, A-Z, 0-9, dot, dash, underscore", seg, c)
			}
		}
	}
	return nil
}
