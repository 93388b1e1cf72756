// Package viewv1 is the wire form of published views and the service that streams them.
// views/wire converts them.
package viewv1
