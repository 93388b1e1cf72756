// Package identity says who is speaking: the SPIFFE ID type, the class an ID
// belongs to, the principal that a request carries, and the patterns that
// policies match IDs with.
//
// It is pure: no network, no clock, no certificate. Sources of identity
// documents and TLS configurations are in identity/svid, decisions in
// identity/authz. Every value is comparable or immutable and safe to share.
package identity
