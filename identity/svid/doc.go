// Package svid turns SPIFFE documents into connections: sources of SVIDs and
// trust bundles (files, the Workload API), TLS configurations for both sides,
// gRPC credentials, and the way from a connection's certificate to an
// identity.Principal. It is the only importer of go-spiffe.
//
// Identity is what the peer's certificate says: exactly one URI SAN, in
// canonical form, under a root of the bundle held now. It is checked when the
// connection is made, again where a session is resumed, and its end is kept so
// that a stream can end with it. Nothing here decides what an identity may do:
// that is identity/authz.
//
// A Source is safe for concurrent use. It serves the last good documents: files
// that become unreadable, half-written or mismatched change nothing but an
// event. Run keeps a source up to date until its context ends; everything
// else works without it.
package svid
