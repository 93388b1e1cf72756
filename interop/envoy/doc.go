// Package envoy is the black-box suite with real Envoys against the built
// binary: what they hold (their admin interface), what they send traffic to, and
// that they refuse nothing. Tests that come from a public bug report carry its
// case number.
package envoy
