// Package report takes evidence in over ReportService.
//
// It binds a stream's ids at its start, decides for each whether the reporter
// may speak of it (authz.CanReport), and hands what may count to the service's
// shard through a function. What cannot be attributed is dropped and counted
// by its reason, never weighed down; an id that is not known and one that
// belongs to somebody else are told apart in no answer.
//
// It holds no evidence: a sample is in the shard's inbox when the next frame
// is read. A stream that comes too fast loses ordinary samples; an instance's
// word that it does not serve is always kept. The Service may be used from any
// number of goroutines and starts none.
package report
