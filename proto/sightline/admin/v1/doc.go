// Package adminv1 is what operators are shown: status, clients, explanations, evidence
// and transitions.
package adminv1
