// Package file is the source that reads a folder of manifests.
//
// It polls: in each pass a file counts only when two looks a second apart find
// it unchanged. The answer is three-valued for each file by itself: a file that
// cannot be read, is still being written or does not parse holds what it last
// gave, and the others go on; a file that is gone withdraws what it gave. What
// the folder says as a whole goes to a function as one complete list.
//
// Run is one goroutine, the only one. The package stores nothing: until every
// file has been read once since the start, the list says that it is incomplete,
// and nothing is withdrawn on its word.
package file
