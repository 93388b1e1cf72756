// Package authz decides who may do what: one row for every RPC and identity
// class, and one function per kind of object: CanResolve, CanReport.
//
// It is pure, denies by default, and every decision carries the rule that made
// it. It knows services by name only and imports nothing of ours but identity.
package authz
