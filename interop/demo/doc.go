// Package demo runs the demo as a newcomer does, and believes its claims: each
// printed claim is checked by the code that prints it. It holds tests alone.
package demo
