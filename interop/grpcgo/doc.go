// Package grpcgo is the black-box suite with stock grpc-go clients against the
// built binary: they dial xds:/// targets, and the tests judge who answers them,
// and how soon. Tests that come from a public bug report carry its case number.
package grpcgo
