// Package evidence is the black-box suite of what callers make the region decide:
// stock grpc-go clients and real Envoys call instances with faults, through the
// built binary, and report over LRS with no library of ours. The instances
// themselves say that all is well.
package evidence
