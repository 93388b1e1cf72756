// Package resolve answers ResolveService.Resolve: what the callers of one
// service are given now, with every member, its state and why.
//
// It reads the Snapshot and nothing else, keeps no view of its own, and asks
// the one policy whether the caller may see the name. Unknown and forbidden are
// the same answer, made by the same steps. Until the snapshot is complete it
// answers UNAVAILABLE: absent and not loaded yet must not look alike.
//
// The Service may be used from any number of goroutines and starts none.
package resolve
