// Package registryv1 is the wire form of desired state: the rows of registry, and the
// service that reads and writes them. registry/wire converts them; nothing else
// in the core sees these types.
package registryv1
