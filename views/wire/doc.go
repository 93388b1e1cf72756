// Package wire converts views to and from their protos (sightline.view.v1),
// for resolve, watch, admin and the client; it is the only place that does.
//
// What comes from the wire is checked field by field: a view that is returned
// is whole, sorted and in range, one that is not is an error and never a part
// of a view. Hashes are carried, not recomputed: a newer server may hash fields
// that this build does not know.
package wire
