// Package reconcile compares what an authority says with what the registry
// holds for it, and decides what to do about the difference.
//
// An authority answers in one of three ways: no answer keeps what is held, a
// complete list (also an empty one) is made true, an unreadable answer is an
// error and changes nothing. A list that would remove a large share of what is
// held, or all of a service, is believed only when a second complete list
// agrees later, or an operator confirms: an empty mount and a broken selector
// look just like a mass removal.
//
// The package is pure: now is an argument, a Decision carries its rule and its
// numbers, and nothing is applied here. A Source belongs to one goroutine.
package reconcile
