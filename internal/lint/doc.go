// Package lint holds the rules of this repository that a program can check, as
// tests, each with its reason: which package may import which, what the pure
// core must not call, who may start goroutines, which libraries there are, and
// what names, documents and files look like.
//
// A rule that fails says what to do. To allow something new, add a line with a
// reason to the table that the message names; the tables are the documents.
package lint
