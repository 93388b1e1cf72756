package server

import (
	"fmt"
	"strings"

	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/views"
)

// parseCallee reads the right-hand side of a grant: namespace/name,
// namespace/*, or *.
func parseCallee(s string) (authz.Callee, error) {
	if s == "*" {
		return authz.Callee{}, nil
	}
	ns, name, ok := strings.Cut(s, "/")
	if !ok || ns == "*" {
		return authz.Callee{}, fmt.Errorf("%q is not namespace/name, namespace/* or *", s)
	}
	if name == "*" {
		n, err := views.ParseName(ns + "/any") // the namespace's own rule
		return authz.Callee{Namespace: n.Namespace}, err
	}
	n, err := views.ParseName(s)
	return authz.Callee{Namespace: n.Namespace, Name: n.Service}, err
}
