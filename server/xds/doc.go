// Package xds serves the region's views over the xDS protocol, delta and state
// of the world, to Envoy and to proxyless gRPC clients.
//
// It owns the Feed (which stream wants which name, what is dirty on it and how
// urgently), the streams' state, the two framings over that state, and the
// rendering of views into resources whose encoded bytes every stream shares.
// It reads views through a function that returns the Snapshot, learns of
// changes through Feed.Publish, and never computes health, weights or guards.
//
// On the same port it takes in load reports (LRS), turns what stock clients say
// of their calls into LoadReport rows by uid, and hands them on; what they mean
// is not judged here.
//
// Ordering: a withdrawal never waits for an addition or for an acknowledgement
// of one; types go out as CDS, EDS, LDS, RDS; no client is shown a lower
// version of a name than it has been shown or has offered (ENGINE.md).
// Concurrency: Feed.Publish may be called from any goroutine and only marks;
// each stream has one lock, nothing blocks under it, and sends are made by a
// pool of workers that Run owns.
//
// Tests run real grpc over bufconn inside synctest bubbles, with the raw
// clients of interop/harness/rawxds.
package xds
