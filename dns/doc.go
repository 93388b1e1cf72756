// Package dns answers DNS queries about services from the current Snapshot.
//
// It is an authoritative server for one or more zones, over UDP and TCP. The
// package owns the mapping between names and services (UX.md §5.4, after the
// Kubernetes DNS schema 1.1.0), the selection of members by weight (DNS.md §2)
// and the protection of its sockets. It never decides who may serve, never
// waits for anything, and never recurses.
//
// The composer (answer.go) is a function of a question, a principal, a
// Snapshot and a random number; sockets are in server.go. Answers to anonymous
// clients contain only services whose exposure allows it; a refused service is
// indistinguishable from an absent one. Only this package imports
// github.com/miekg/dns.
package dns
