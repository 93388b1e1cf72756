// Package demo runs the demo as a newcomer does, and believes its claims: each
// printed claim is checked by the code that prints it (--assert). The tour and each
// scenario with a cast of its own (grey, baddeploy, zonedead, flap, blind,
// dependency, ramp) is a test, which asks that the claims were made and that nothing
// is left behind. It holds tests alone.
package demo
