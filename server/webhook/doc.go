// Package webhook tells owners what happens to their services: it sends events
// as JSON to a URL of theirs.
//
// It owns one target's queue and the sending. It decides nothing: what an event
// is, server says. It never learns of samples, and never logs.
//
// Offer never waits: events go into a bounded queue, and when that is full the
// oldest leave and are counted; the next body that is sent says how many. Run
// sends from one goroutine, the caller's, in the order of the events, up to
// BatchEvents in a body. A target that does not answer is tried again, at growing
// intervals with jitter, for as long as the server runs; what it refuses for good
// (a 4xx other than 408, 425 and 429) is dropped. So each event comes at least
// once while the queue lasts, or not at all: its id says whether it came before.
// Nothing is on disk: a restart forgets what was not sent.
//
// A URL may carry a secret in its path or query. Errors name a target by scheme
// and host alone.
//
// The body, sent with POST as application/json:
//
//	{"apiVersion":"events.sightline.dev/v1","server":"cp-1","region":"eu",
//	 "sent":"2026-03-01T14:02:00.5Z","dropped":0,"events":[
//	  {"id":"18a3f2-17","time":"2026-03-01T14:02:00Z","kind":"quarantine",
//	   "service":"shop/checkout","instance":"checkout-3","uid":"i17",
//	   "detail":"5 changes within 10m0s","until":"2026-03-01T14:03:00Z",
//	   "history":[{"time":"…","serving":false,"rule":"R4"}, …]}]}
//
// With a key, Sightline-Signature is t=<Unix seconds>,v1=<hex>, where v1 is
// HMAC-SHA256 by the key over "<Unix seconds>.<body>". Compare in constant time,
// and refuse old times.
//
// Test with a RoundTripper of one's own inside a synctest bubble.
package webhook
