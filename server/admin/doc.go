// Package admin is AdminService: what the server does, and why.
//
// It reads what others hold, through functions that server wires: status, open
// streams, the difference of two versions, the evidence behind a verdict, samples
// as they come in, the transition log, quarantines, and what a draft contract
// would have done. It changes nothing but two things, each with a justification
// and on the audit log first: the end of a quarantine, and of a brake. It owns
// no state but the list of taps. What a caller may not see and what does not
// exist give the same answer (RELIABILITY.md, I14); each name inside an answer
// is checked, by authz.CanInspect.
//
// Methods may be called from any goroutine. An answer is put together from
// several parts that move on meanwhile: it is not one moment of the region.
// Tests give it a real Writer and views.NewSnapshot.
package admin
