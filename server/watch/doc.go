// Package watch serves ViewService.Watch: views, and every change of them, to
// whoever mirrors them (followers, agents, peers, the Go library).
//
// The Feed wakes streams and holds no views and no queue of events. Each stream
// reads the ring of recent changes from where it stands, gathers the names that
// it covers into one set for withdrawals and one for the rest, and sends the
// newest view of each, withdrawals first, also those that come while it sends.
// After a round it sends a bookmark: nothing at or below its version is
// undelivered, whatever order publications are told in. A stream that the ring
// left behind compares everything it has sent with the Snapshot.
//
// A stream has three goroutines: the handler, which ends it; the reader of its
// frames; and the sender, which alone touches what has been sent. No lock is
// held over a Send, so a reader that does not read costs only itself, and is
// ended after a while. Scope is asked again for every view that is sent, and
// for all of them when the policy is replaced: what may not be seen any more is
// removed explicitly.
package watch
