// Package xds is the black-box suite of the xDS port: raw clients send hand-made
// requests to the built binary over mTLS and judge what they hold. Tests that
// come from a public bug report carry its case number (C01 and so on).
//
// Where a case waits only to show that nothing happens meanwhile, the wait is
// shorter here than in the case (quiet), and the order of things is the same.
package xds
