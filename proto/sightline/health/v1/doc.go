// Package healthv1 is the wire form of evidence: reports of instances, probers and
// callers, and the assignment of probers.
package healthv1
