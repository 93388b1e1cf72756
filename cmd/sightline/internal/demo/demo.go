package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"time"
)

// Config is what the command line decides.
type Config struct {
	Self     string // this binary
	Envoy    string // real Envoy; empty: its caller is left out, and said so
	Scenario string
	Assert   bool // a check that fails is an error
	Exit     bool // end after the scenario instead of running on
	Keep     bool // leave the state folder
	PortBase int
	Seed     uint64
	Speed    float64 // of the pauses between steps
	Out      io.Writer
	// Announce is told how to reach the control plane once it runs, and returns
	// what takes that back.
	Announce func(Access) (undo func(), err error)
}

// Access is how a second terminal reaches the demo.
type Access struct {
	API, XDS, DNS, HTTP, Zone, TrustDomain       string
	Cert, Key, Bundle, WorkloadCert, WorkloadKey string
}

// Run brings the demo up, runs its scenario and, unless told to exit, goes on
// until the context ends.
func Run(ctx context.Context, cfg Config) error {
	played, ok := find(cfg.Scenario)
	if !ok {
		return fmt.Errorf("scenario %q is not one of %s", cfg.Scenario, strings.Join(Scenarios(), ", "))
	}
	if cfg.Assert && cfg.Envoy == "" {
		return errors.New("--assert needs the real Envoy: run `make envoy`, or set SIGHTLINE_ENVOY")
	}
	dir, err := os.MkdirTemp("", "sightline-demo-")
	if err != nil {
		return err
	}
	d := &director{
		cfg: cfg, scenario: played, cast: played.cast(), layout: layout{base: cfg.PortBase, dir: dir}, began: time.Now(),
		rng: rand.New(rand.NewPCG(cfg.Seed, 0)), ledger: newLedger(), instances: map[string]*process{}, //nolint:gosec // which instance is broken is no secret
	}
	defer d.teardown()
	err = d.run(ctx)
	if ctx.Err() != nil && !d.done {
		d.say("end", "interrupted; everything stops")
		if cfg.Assert {
			return errors.New("interrupted before every claim was checked")
		}
		return nil
	}
	if err != nil {
		d.cfg.Keep = true
		return fmt.Errorf("%w\n  state and logs are kept: %s", err, dir)
	}
	return nil
}

// run is everything between the state folder's making and its removal.
func (d *director) run(ctx context.Context) error {
	if err := d.setup(ctx); err != nil {
		return err
	}
	undo, err := d.cfg.Announce(d.access())
	if err != nil {
		return err
	}
	defer undo()
	d.banner(d.ledger.settle())
	if err := d.play(ctx); err != nil {
		return err
	}
	d.done = true
	return d.finish(ctx)
}

// play runs the scenario's acts.
func (d *director) play(ctx context.Context) error {
	for _, act := range d.scenario.acts {
		d.pause(ctx, 3*time.Second)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := act(d, ctx); err != nil {
			return err
		}
	}
	if d.scenario.moves {
		return nil
	}
	return d.agreement(ctx)
}

// finish sums up, and turns failed checks into an error where asked.
func (d *director) finish(ctx context.Context) error {
	broken := d.ledger.violations()
	d.check(len(broken) == 0, "no caller ever saw a version go back or a set go empty %s", strings.Join(broken, "; "))
	ok, failed, _ := d.ledger.totals()
	d.say("traffic", "%d calls, %d failed", ok+failed, failed)
	for _, cause := range d.ledger.failures() {
		d.say("", "%s", cause)
	}
	if d.cfg.Assert && len(d.failed) > 0 {
		return fmt.Errorf("%d of the demo's claims did not hold:\n  %s", len(d.failed), strings.Join(d.failed, "\n  "))
	}
	if !d.cfg.Exit && ctx.Err() == nil {
		fmt.Fprintln(d.cfg.Out, "\n    everything keeps running: look around in a second terminal. Ctrl-C stops it.")
		<-ctx.Done()
	}
	return nil
}

func (d *director) access() Access {
	op, web := d.layout.identity("operator"), d.layout.identity("web")
	return Access{
		API: d.layout.addr(portAPI), XDS: d.layout.addr(portXDS), DNS: d.layout.addr(portDNS), HTTP: d.layout.addr(portHTTP), Zone: zoneApex, TrustDomain: trustDomain,
		Cert: op.SVID, Key: op.Key, Bundle: op.Bundle, WorkloadCert: web.SVID, WorkloadKey: web.Key,
	}
}

func (d *director) banner(failedStarting int) {
	ok, _, p99 := d.ledger.totals()
	_, dnsPort, _ := strings.Cut(d.layout.addr(portDNS), ":")
	kinds := fmt.Sprintf("%d proxyless gRPC", d.cast.grpc)
	if d.cast.dns {
		kinds += ", 1 DNS"
	}
	if d.cfg.Envoy == "" {
		kinds += " (no Envoy found: run `make envoy`, or set SIGHTLINE_ENVOY)"
	} else {
		kinds += ", 1 Envoy"
	}
	if n := len(d.cast.probers); n > 0 {
		kinds += fmt.Sprintf("; %d probers", n)
	}
	first := d.cast.services[0].name
	keep := "removed on exit (--keep keeps it)"
	if d.cfg.Keep {
		keep = "kept on exit"
	}
	fmt.Fprintf(d.cfg.Out, `
  sightline demo                     insecure, loopback only, not for production

    xDS       %s    API %s (mTLS, reflection on)
    DNS       %s    zone %s
    HTTP      http://%s/metrics
    state     %s   %s
    identity  spiffe://%s   throw-away CA, 24h

    started   %d services, %d instances (own processes), %d callers: %s
    traffic   %d calls answered so far, %d failed while starting, p99 %.0f ms

    in a second terminal:
      bin/sightline status
      bin/sightline resolve %[16]s/%[17]s
      dig @127.0.0.1 -p %[18]s SRV _grpc._tcp.%[17]s.%[16]s.svc.%[4]s
      eval "$(bin/sightline bootstrap grpc --shell)"; grpcurl -plaintext xds:///%[17]s.%[16]s list

`, d.layout.addr(portXDS), d.layout.addr(portAPI), d.layout.addr(portDNS), zoneApex, d.layout.addr(portHTTP), d.layout.dir, keep, trustDomain,
		len(d.cast.services), len(d.cast.seats()), len(d.names), kinds, ok, failedStarting, p99, namespace, first, dnsPort)
}

func addrPort(s string) netip.AddrPort {
	a, _ := netip.ParseAddrPort(s) // of layout: always well-formed
	return a
}
