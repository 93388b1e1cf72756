package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/sightlinedev/sightline/identity/svid"
)

// Part is one of the demo's own processes, as the parent describes it to the
// binary that it starts again.
type Part struct {
	Kind  string // instance, grpc, envoy, dns
	Name  string
	Files svid.Files

	// Instance.
	API     string
	Service string
	Label   string
	Zone    string
	Port    int
	Lease   time.Duration
	State   string // command that it starts under; empty: it serves

	// Callers.
	Bootstrap string // gRPC: the xDS bootstrap's content, put into its environment
	Outbound  string // Envoy: its outbound listener
	Admin     string // Envoy: its admin page
	DNS       string
	Services  []string
	Every     time.Duration // between calls of one loop
	Workers   int           // loops for each service
}

// RunPart runs one part until its standard input ends or the context does.
func RunPart(ctx context.Context, spec string, in io.Reader, out io.Writer) error {
	var p Part
	if err := json.Unmarshal([]byte(spec), &p); err != nil {
		return fmt.Errorf("the demo starts this command itself: %w", err)
	}
	switch p.Kind {
	case "instance":
		return runInstance(ctx, p, in, out)
	case "grpc":
		return runCaller(ctx, p, out, newGRPCCaller)
	case "envoy":
		return runCaller(ctx, p, out, newEnvoyCaller)
	case "dns":
		return runCaller(ctx, p, out, newDNSCaller)
	}
	return fmt.Errorf("unknown part %q", p.Kind)
}

// Held is what a caller holds of one service: the version it was given under,
// and the addresses it may call.
type Held struct {
	Version   string   `json:"version"`
	Addresses []string `json:"addresses"`
}

// Sample is a caller's report over one interval, a JSON line on its output.
type Sample struct {
	Caller string          `json:"caller"`
	OK     int             `json:"ok"`
	Failed int             `json:"failed"`
	Errors map[string]int  `json:"errors,omitempty"`
	P99    float64         `json:"p99_ms"`
	Held   map[string]Held `json:"held"` // by service name
}

// Event is an instance's report, a JSON line on its output.
type Event struct {
	Instance string `json:"instance"`
	Event    string `json:"event"`
	Detail   string `json:"detail,omitempty"`
	// Calls counts the calls answered so far, and Conns the connections that
	// brought one, by caller; with the event "counts".
	Calls map[string]int `json:"calls,omitempty"`
	Conns map[string]int `json:"conns,omitempty"`
}
