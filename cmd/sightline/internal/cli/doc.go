// Package cli is the command tree: flags in, a configuration or a request out.
//
// Commands hold no logic of the product. Each prints its result in one of the
// formats of printer, says errors in three parts (what, why, what to do), and
// ends with the exit code that its error carries. stdout is data, stderr is
// for people.
package cli
