// Package rawxds is an xDS client that does only what it is told: it sends
// hand-made requests over an ADS stream, delta or state of the world, records
// every response, keeps what a correct client would hold, and checks what no
// server may do (a lower version, a name twice, a response above 4 MiB).
//
// A Client has one goroutine, which ends with its stream. By default it
// acknowledges each response; a Reaction makes it reject, delay or keep silent.
// It works over any gRPC connection: bufconn in a synctest bubble, or mTLS to
// the built binary.
package rawxds
