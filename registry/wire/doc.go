// Package wire converts desired state between its wire form (proto registry.v1)
// and the core's types, in both directions. It is the only place that does.
//
// Reading checks form alone: that enumerations are known, that durations,
// addresses, SPIFFE IDs and uids parse, and that a number fits. What a value
// means (is the name a DNS label, is the number in its range) is checked once,
// by registry, for every source of rows alike. Both report a field by its path
// in the message, in the names of the .proto files: ports[1].number.
//
// Everything here is a pure function; nothing returned shares memory with what
// was given.
package wire
