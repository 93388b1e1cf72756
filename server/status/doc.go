// Package status is the one table of Sightline's error codes and the one way
// to make a gRPC status out of them.
//
// A code (SL2003) is a number that never changes its meaning and is never used
// again once retired. Its row says which gRPC code it travels under, what
// causes it and what to do about it. Every status carries exactly one
// ErrorInfo: the reason of the row, the domain sightline.dev, and the code in
// the metadata. Messages say what happened and why; the row adds what to do.
//
// The package is pure, holds no state, and imports nothing of ours: everything
// under server may use it, and the command line reads codes back with CodeOf.
package status
