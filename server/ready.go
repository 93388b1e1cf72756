package server

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// check is one condition of readiness, by the name that /readyz prints.
type check struct {
	name string
	why  string // empty: it holds
}

// checklist is what has to hold for the server to be ready. Only our own state
// is in it: peers, sinks or a full disk never make a server unready, since it
// goes on serving what it has (DESIGN.md §12).
type checklist struct {
	mu      sync.Mutex
	checks  []check
	changed func(ready bool)
}

func newChecklist(changed func(ready bool), names ...string) *checklist {
	l := &checklist{changed: changed}
	for _, n := range names {
		l.checks = append(l.checks, check{n, "not started"})
	}
	return l
}

// set says why a condition does not hold, or that it does (empty).
func (l *checklist) set(name, why string) {
	l.mu.Lock()
	before := l.ready()
	for i := range l.checks {
		if l.checks[i].name == name {
			l.checks[i].why = why
		}
	}
	after := l.ready()
	l.mu.Unlock()
	if before != after {
		l.changed(after)
	}
}

// fail makes every condition fail, at a stop.
func (l *checklist) fail(why string) {
	l.mu.Lock()
	before := l.ready()
	for i := range l.checks {
		l.checks[i].why = why
	}
	l.mu.Unlock()
	if before {
		l.changed(false)
	}
}

func (l *checklist) ready() bool {
	return !slices.ContainsFunc(l.checks, func(c check) bool { return c.why != "" })
}

// list returns the conditions and whether all hold.
func (l *checklist) list() ([]check, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.checks), l.ready()
}

// ServeHTTP answers /readyz: 200 and "ok", or 503 and what is missing; with
// ?verbose every condition.
func (l *checklist) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	checks, ready := l.list()
	var b strings.Builder
	for _, c := range checks {
		switch {
		case c.why != "":
			fmt.Fprintf(&b, "[-] %s: %s\n", c.name, c.why)
		case r.URL.Query().Has("verbose"):
			fmt.Fprintf(&b, "[+] %s ok\n", c.name)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if ready {
		b.WriteString("ok\n")
	} else {
		w.WriteHeader(http.StatusServiceUnavailable)
		b.WriteString("not ready\n")
	}
	_, _ = io.WriteString(w, b.String())
}
