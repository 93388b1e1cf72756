// Package registry is desired state: which services, instances, contracts and
// capability profiles exist, and who said so.
//
// It is a pure index: it validates, plans and applies changes and says what
// changed; server/desired writes rows through views/store before it applies
// them. Rows are immutable once they are in the index. Nothing here reads a
// clock: now is an argument.
package registry
