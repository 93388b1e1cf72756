// Package manifest reads the YAML files that declare desired state, for the
// file source and the command line.
//
// A file holds any number of documents:
//
//	apiVersion: sightline.dev/v1
//	kind: Service # or Instance, Contract, CapabilityProfile
//	metadata: {namespace: shop, name: checkout, annotations: {}}
//	spec: {ports: [{name: grpc, number: 8080, protocol: grpc}]}
//
// spec is the JSON form of the kind's message in registry.v1, without what
// metadata already says and without what the registry sets. Beyond that form,
// enumerations may be written in short (prefer-zone) and durations with any of
// Go's units (10m).
//
// Reading is strict, and all or nothing: an unknown or repeated key, a value of
// the wrong type, a rule of registry that is broken, each is a Problem with its
// place in the file, and a file with a problem yields no object. Anchors,
// aliases and tags are refused, so a small file cannot grow large. What only
// other rows can decide (does the contract exist) is judged when the objects
// are applied; Object.Problem gives such a verdict its place in the file too.
//
// Everything here is a pure function of the bytes given.
package manifest
