package identity

import (
	"net/netip"
	"strings"
)

// Class is the column of the authorisation table that a caller belongs to
// (RELIABILITY.md §5). It follows from the SPIFFE ID alone.
type Class uint8

// The identity classes.
const (
	Anonymous     Class = iota // no verified identity: every DNS client over UDP or TCP
	Workload                   // any ID of the trust domain that is not one of ours
	Agent                      // /sightline/agent/<name>
	Prober                     // /sightline/prober/<name>
	Reconciler                 // /sightline/reconciler/<name>
	Peer                       // /sightline/peer/<name>: another region
	Replica                    // /sightline/replica/<name>, /sightline/server/<name>
	Reader                     // /sightline/reader/<name>
	Operator                   // /sightline/operator/<name>
	SecurityAdmin              // /sightline/security-admin/<name>
)

// Classes lists every class, in the order of the constants.
var Classes = [...]Class{Anonymous, Workload, Agent, Prober, Reconciler, Peer, Replica, Reader, Operator, SecurityAdmin}

var classNames = [...]string{"anonymous", "workload", "agent", "prober", "reconciler", "peer", "replica", "reader", "operator", "security-admin"}

// String returns the class's name as policies and logs write it.
func (c Class) String() string { return classNames[c] }

// Class is the class that follows from the ID's path.
func (id ID) Class() Class { return id.class }

// classOf derives the class. A path under /sightline/ that is not one of the
// known roles is a plain workload: it gains nothing by its name.
func classOf(path string) Class {
	seg := strings.Split(path, "/")
	if len(seg) != 4 || seg[1] != "sightline" {
		return Workload
	}
	switch seg[2] {
	case "agent":
		return Agent
	case "prober":
		return Prober
	case "reconciler":
		return Reconciler
	case "peer":
		return Peer
	case "replica", "server":
		return Replica
	case "reader":
		return Reader
	case "operator":
		return Operator
	case "security-admin":
		return SecurityAdmin
	}
	return Workload
}

// Principal is who a request comes from: the verified ID, and the source
// address of the connection (evidence is counted per identity and address).
// The zero value is the anonymous caller at an unknown address.
type Principal struct {
	ID   ID
	Addr netip.Addr
}

// Class is the class of the principal's ID.
func (p Principal) Class() Class { return p.ID.Class() }

// String names the principal for logs and audit records.
func (p Principal) String() string {
	if p.ID.IsZero() {
		return "anonymous"
	}
	return p.ID.String()
}

// PatternKind says how a Pattern compares.
type PatternKind uint8

// The kinds of pattern (DESIGN.md §11).
const (
	Exact       PatternKind = iota // the very ID
	PathPrefix                     // same trust domain, and the path's leading whole segments
	TrustDomain                    // any ID of the trust domain
	AnyCaller                      // everybody, the anonymous caller too
)

// Pattern matches IDs by whole segments, never by text: /ns/a does not match
// /ns/abc. The zero value matches only the anonymous caller.
type Pattern struct {
	Kind PatternKind
	ID   ID // for TrustDomain its path is empty
}

// ParsePattern reads the three written forms: a full SPIFFE ID; one ending in
// "/*" (path prefix, or the whole trust domain when nothing else follows it);
// and "*" for every caller.
func ParsePattern(s string) (Pattern, error) {
	if s == "*" {
		return Pattern{Kind: AnyCaller}, nil
	}
	base, wild := strings.CutSuffix(s, "/*")
	id, err := Parse(base)
	switch {
	case err != nil:
		return Pattern{}, err
	case !wild:
		return Pattern{Kind: Exact, ID: id}, nil
	case id.path == "":
		return Pattern{Kind: TrustDomain, ID: id}, nil
	}
	return Pattern{Kind: PathPrefix, ID: id}, nil
}

// Match reports whether the pattern covers the ID.
func (p Pattern) Match(id ID) bool {
	switch p.Kind {
	case AnyCaller:
		return true
	case Exact:
		return p.ID == id
	case TrustDomain:
		return !id.IsZero() && p.ID.trustDomain == id.trustDomain
	case PathPrefix:
		rest, ok := strings.CutPrefix(id.path, p.ID.path)
		return ok && p.ID.trustDomain == id.trustDomain && (rest == "" || rest[0] == '/')
	}
	return false
}

// String is the written form that ParsePattern reads.
func (p Pattern) String() string {
	switch p.Kind {
	case AnyCaller:
		return "*"
	case Exact:
		return p.ID.String()
	}
	return p.ID.String() + "/*"
}
