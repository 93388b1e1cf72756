package views

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/sightlinedev/sightline/identity"
)

// The two hashes of a view (STORE.md §5): together they cover every field that
// a surface renders, and none of version, revision, time or evidence. PreferZone
// is in both, since it shapes assignments and routes alike.

// HashEndpoint is the hash of what moves with the endpoint version: members,
// states, weights, guard, forms, confidence.
func HashEndpoint(v *View) [32]byte {
	digests := make([][32]byte, len(v.Members))
	for i, m := range v.Members {
		digests[i] = digestMember(m)
	}
	return hashEndpoint(v, digests)
}

// hashEndpoint is HashEndpoint over digests that are known already, in the
// order of the members.
func hashEndpoint(v *View, digests [][32]byte) [32]byte {
	e := encoder{buf: make([]byte, 0, 256+32*len(digests))}
	e.name(v.Name)
	e.bool(v.PreferZone)
	for _, f := range v.Forms {
		e.byte(byte(f))
	}
	e.bool(v.Guard.Tripped)
	e.uint(uint64(len(v.Guard.Zones)))
	for _, z := range v.Guard.Zones {
		e.string(z)
	}
	e.uint(uint64(v.Guard.Floor))
	e.uint(uint64(v.Guard.Serving))
	e.uint(uint64(v.Guard.Members))
	e.byte(byte(v.Confidence))
	e.uint(uint64(v.ListedCount))
	e.uint(uint64(len(digests)))
	for i := range digests {
		e.buf = append(e.buf, digests[i][:]...)
	}
	return sha256.Sum256(e.buf)
}

// HashConfig is the hash of what moves with the config version: ports,
// identities, exposure, what the contract says about shapes.
func HashConfig(v *View) [32]byte {
	e := encoder{buf: make([]byte, 0, 512)}
	e.name(v.Name)
	e.uint(uint64(len(v.Ports)))
	for _, p := range v.Ports {
		e.string(p.Name)
		e.uint(uint64(p.Number))
		e.byte(byte(p.Protocol))
	}
	e.bool(v.DNSAnonymous)
	e.uint(uint64(len(v.Identities)))
	for _, id := range v.Identities {
		e.identity(id)
	}
	e.bool(v.PreferZone)
	e.name(v.Contract)
	return sha256.Sum256(e.buf)
}

// digestMember covers every field of a member but its evidence.
func digestMember(m *Member) [32]byte {
	e := encoder{buf: make([]byte, 0, 512)}
	e.uint(uint64(m.UID))
	e.string(m.Label)
	e.identity(m.Identity)
	e.string(m.Endpoint.Addr.String())
	e.string(m.Endpoint.Host)
	e.string(m.Endpoint.URL)
	e.uint(uint64(len(m.Ports)))
	for _, p := range m.Ports {
		e.string(p.Name)
		e.uint(uint64(p.Number))
	}
	e.string(m.Region)
	e.string(m.Zone)
	e.string(m.Capability)
	e.uint(uint64(m.BaseWeight))
	e.uint(uint64(m.Weight))
	e.byte(byte(m.State))
	e.bool(m.Draining)
	e.bool(m.Listed)
	e.bool(m.LastResort)
	e.bool(m.OwnLocality)
	return sha256.Sum256(e.buf)
}

// encoder appends fields so that no two sequences give the same bytes: lengths
// go first, numbers have a fixed width.
type encoder struct{ buf []byte }

func (e *encoder) byte(b byte)   { e.buf = append(e.buf, b) }
func (e *encoder) uint(n uint64) { e.buf = binary.BigEndian.AppendUint64(e.buf, n) }

func (e *encoder) string(s string) {
	e.uint(uint64(len(s)))
	e.buf = append(e.buf, s...)
}

func (e *encoder) bool(b bool) {
	if b {
		e.byte(1)
	} else {
		e.byte(0)
	}
}

func (e *encoder) name(n Name) {
	e.string(n.Namespace)
	e.string(n.Service)
}

func (e *encoder) identity(id identity.ID) {
	e.string(id.TrustDomain())
	e.string(id.Path())
}
