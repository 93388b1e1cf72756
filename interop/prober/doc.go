// Package prober is the black-box suite of probing: real probers and a real
// server as processes, backends that fail in every way, and what callers hold
// then. Cases C35 and the prober's part of the issue on verdicts.
package prober
