package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/cmd/sightline/internal/bootstrap"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

const (
	readyWithin   = 20 * time.Second
	trafficWithin = 30 * time.Second
	pollEvery     = 25 * time.Millisecond
	callEvery     = 30 * time.Millisecond
)

// director owns the demo's processes and what is known about them.
type director struct {
	cfg      Config
	scenario scenario
	cast     cast
	layout   layout
	began    time.Time
	rng      *rand.Rand
	ledger   *ledger

	server    *process
	instances map[string]*process // by label
	probers   []*process
	callers   []*process
	envoy     *process
	names     []string // of the callers
	api       *grpc.ClientConn
	failed    []string // checks that did not hold
	done      bool     // the scenario has been played to its end
}

// setup brings everything up: identities, server, services, instances, callers.
func (d *director) setup(ctx context.Context) error {
	if err := d.checkPorts(); err != nil {
		return err
	}
	for _, sub := range []string{"identity", "log"} {
		if err := os.MkdirAll(filepath.Join(d.layout.dir, sub), 0o700); err != nil {
			return err
		}
	}
	if err := d.writeIdentities(); err != nil {
		return err
	}
	if err := d.startServer(ctx); err != nil {
		return err
	}
	src, err := svid.FromFiles(d.layout.identity(devca.OperatorName), 0, svid.Events{})
	if err != nil {
		return err
	}
	d.api, err = grpc.NewClient(d.layout.addr(portAPI), grpc.WithTransportCredentials(src.ClientCredentials(svid.OurServer(trustDomain))))
	if err != nil {
		return err
	}
	if err := d.apply(ctx); err != nil {
		return err
	}
	for _, p := range d.cast.seats() {
		if err := d.startInstance(p, ""); err != nil {
			return err
		}
	}
	for k := range d.cast.probers {
		if err := d.startProber(k); err != nil {
			return err
		}
	}
	if err := d.startCallers(); err != nil {
		return err
	}
	return d.waitForTraffic(ctx)
}

// checkPorts finds a port that is taken before anything is started on others.
func (d *director) checkPorts() error {
	offsets := []int{portXDS, portAPI, portDNS, portHTTP, portEnvoy, portAdmin}
	for _, p := range d.cast.seats() {
		offsets = append(offsets, d.layout.instancePort(p.service, p.index)-d.layout.base)
	}
	for _, o := range offsets {
		l, err := net.Listen("tcp", d.layout.addr(o))
		if err != nil {
			return fmt.Errorf("port %d is taken (%w): is another demo or dev server running? Move all ports with --port-base", d.layout.base+o, err)
		}
		_ = l.Close()
	}
	return nil
}

func (d *director) writeIdentities() error {
	now := time.Now()
	dir := filepath.Join(d.layout.dir, "identity")
	ca, _, err := devca.Prepare(dir, trustDomain, now)
	if err != nil {
		return err
	}
	// Callers are told apart by who they are: each has an identity of its own.
	paths := map[string]string{"web": workload("web"), "envoy": workload("envoy"), "dns": workload("dns")}
	for i := range d.cast.grpc {
		paths[grpcName(i)] = workload(grpcName(i))
	}
	for _, s := range d.cast.services {
		paths[s.name] = workload(s.name)
	}
	for k := range d.cast.probers {
		paths[proberName(k)] = "/sightline/prober/" + proberName(k)
	}
	for name, path := range paths {
		id, err := identity.Parse("spiffe://" + trustDomain + path)
		if err != nil {
			return err
		}
		if _, err := ca.Write(dir, name, id, now); err != nil {
			return err
		}
	}
	return nil
}

func workload(account string) string { return "/ns/" + namespace + "/sa/" + account }

func grpcName(i int) string   { return "grpc-" + strconv.Itoa(i+1) }
func proberName(k int) string { return "prober-" + strconv.Itoa(k+1) }

// startServer starts the control plane and waits until it is ready.
func (d *director) startServer(ctx context.Context) error {
	var err error
	d.server, err = start(d.layout.dir, "server", nil, nil, d.cfg.Self, "dev", "--no-context",
		"--data", d.layout.dir, "--port-base", strconv.Itoa(d.layout.base), "--trust-domain", trustDomain)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	return d.poll(ctx, readyWithin, "the server to be ready", func() (bool, error) {
		if d.server.ended() {
			return false, errors.New("the server ended: " + d.tail("server"))
		}
		resp, err := client.Get("http://" + d.layout.addr(portHTTP) + "/readyz")
		if err != nil {
			return false, nil // not yet
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK, nil
	})
}

// apply declares the services as an operator does, in one batch.
func (d *director) apply(ctx context.Context) error {
	var changes []*registryv1.Change
	for i, s := range d.cast.services {
		contract := &registryv1.Contract{Namespace: namespace, Name: s.name, Lease: durationpb.New(s.lease)}
		if s.contract != nil {
			s.contract(contract)
		}
		changes = append(changes,
			&registryv1.Change{Change: &registryv1.Change_PutProfile{PutProfile: &registryv1.Profile{
				Namespace: namespace, Name: s.name, Supplies: s.supplies,
			}}},
			&registryv1.Change{Change: &registryv1.Change_PutContract{PutContract: contract}},
			&registryv1.Change{Change: &registryv1.Change_PutService{PutService: &registryv1.Service{
				Namespace: namespace, Name: s.name, Profile: s.name,
				Ports:    []*registryv1.Port{{Name: "grpc", Number: uint32(8080 + i), Protocol: registryv1.Protocol_PROTOCOL_GRPC}}, //nolint:gosec // small
				Exposure: &registryv1.Exposure{DnsAnonymous: true},
			}}})
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	_, err := registryv1.NewRegistryServiceClient(d.api).Apply(ctx, &registryv1.ApplyRequest{Changes: changes})
	return err
}

// startInstance starts an instance under a command; an empty one: it serves.
func (d *director) startInstance(at place, state string) error {
	name, s := d.label(at), d.cast.services[at.service]
	onEvent := func(line []byte) {
		var e Event
		if json.Unmarshal(line, &e) == nil && e.Event == eventCounts {
			d.ledger.count(e)
		}
	}
	p, err := startPart(d.cfg.Self, d.layout.dir, Part{
		Kind: "instance", Name: name, Label: name, Service: s.name, Zone: d.zone(at), Lease: s.lease, State: state,
		Files: d.layout.identity(s.name), API: d.layout.addr(portAPI), Port: d.layout.instancePort(at.service, at.index),
	}, onEvent)
	if err == nil {
		d.instances[name] = p
	}
	return err
}

// startProber starts the real prober, as an operator does.
func (d *director) startProber(k int) error {
	f := d.layout.identity(proberName(k))
	p, err := start(d.layout.dir, proberName(k), nil, nil, d.cfg.Self, "prober", "--zone", d.cast.probers[k],
		"--api", d.layout.addr(portAPI), "--cert", f.SVID, "--key", f.Key, "--bundle", f.Bundle, "--allow-loopback")
	if err == nil {
		d.probers = append(d.probers, p)
	}
	return err
}

func (d *director) startCallers() error {
	onSample := func(line []byte) {
		var s Sample
		if json.Unmarshal(line, &s) == nil {
			d.ledger.add(s)
		}
	}
	var parts []Part
	for i := range d.cast.grpc {
		name := grpcName(i)
		b, err := bootstrap.GRPC(d.client(name, i))
		if err != nil {
			return err
		}
		parts = append(parts, Part{Kind: "grpc", Name: name, Bootstrap: string(b)})
	}
	if d.cfg.Envoy != "" {
		if err := d.startEnvoy(); err != nil {
			return err
		}
		parts = append(parts, Part{Kind: "envoy", Name: "envoy", Outbound: d.layout.addr(portEnvoy), Admin: d.layout.addr(portAdmin)})
	}
	if d.cast.dns {
		parts = append(parts, Part{Kind: "dns", Name: "dns", DNS: d.layout.addr(portDNS)})
	}
	for _, part := range parts {
		part.Services, part.Every, part.Workers = d.cast.names(), d.cast.every, d.cast.workers
		p, err := startPart(d.cfg.Self, d.layout.dir, part, onSample)
		if err != nil {
			return err
		}
		d.callers = append(d.callers, p)
		d.names = append(d.names, part.Name)
	}
	return nil
}

// client describes a caller to the bootstrap writer.
func (d *director) client(name string, index int) bootstrap.Params {
	f := d.layout.identity(name)
	return bootstrap.Params{
		Server: d.layout.addr(portXDS), NodeID: name, Cluster: "demo", Region: "local", Zone: "ab"[index%2:][:1],
		Cert: f.SVID, Key: f.Key, Bundle: f.Bundle, TrustDomain: trustDomain,
	}
}

func (d *director) startEnvoy() error {
	p := d.client("envoy", 0)
	p.Listen, p.Admin = addrPort(d.layout.addr(portEnvoy)), addrPort(d.layout.addr(portAdmin))
	b, err := bootstrap.Envoy(p)
	if err != nil {
		return err
	}
	file := filepath.Join(d.layout.dir, "envoy.yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return err
	}
	d.envoy, err = start(d.layout.dir, "envoy-proxy", nil, nil, d.cfg.Envoy, "-c", file, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn")
	return err
}

// waitForTraffic waits until every caller holds all instances and its calls
// succeed.
func (d *director) waitForTraffic(ctx context.Context) error {
	err := d.poll(ctx, trafficWithin, "every caller to hold all instances", func() (bool, error) {
		return d.ledger.reporting() == len(d.names) && len(d.disagreements()) == 0, d.partsAlive()
	})
	if err != nil {
		return fmt.Errorf("%w\n  %s", err, strings.Join(d.disagreements(), "\n  "))
	}
	_, failed, _ := d.ledger.totals()
	return d.poll(ctx, trafficWithin, "calls without an error", func() (bool, error) {
		_, now, _ := d.ledger.totals()
		settled := now == failed
		failed = now
		wait(ctx, 4*sampleEvery)
		return settled, nil
	})
}

// disagreements lists what callers hold beside what is registered.
func (d *director) disagreements() (out []string) {
	for s, svc := range d.cast.services {
		var want []string
		for i := range svc.instances {
			want = append(want, d.address(place{s, i}))
		}
		out = append(out, d.ledger.disagreeing(svc.name, want)...)
	}
	return out
}

func (d *director) partsAlive() error {
	parts := append(append([]*process{d.server}, d.callers...), d.probers...)
	if d.envoy != nil {
		parts = append(parts, d.envoy)
	}
	for _, p := range parts {
		if p.ended() {
			return fmt.Errorf("%s ended: %s", p.name, d.tail(p.name))
		}
	}
	return nil
}

// resolve asks the API for a service, as an operator does.
func (d *director) resolve(ctx context.Context, service string) (*viewv1.View, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	resp, err := resolvev1.NewResolveServiceClient(d.api).Resolve(ctx, &resolvev1.ResolveRequest{Namespace: namespace, Name: service})
	return resp.GetView(), err
}

// poll waits for a condition, and says what it waited for when it did not come.
func (d *director) poll(ctx context.Context, within time.Duration, what string, cond func() (bool, error)) error {
	deadline := time.Now().Add(within)
	for {
		ok, err := cond()
		switch {
		case err != nil:
			return err
		case ok:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("waited %s for %s", within, what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

// tail is the end of a part's log.
func (d *director) tail(name string) string {
	raw, err := os.ReadFile(filepath.Join(d.layout.dir, "log", name+".log"))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(raw[max(0, len(raw)-600):]))
}

// teardown ends callers before instances before the server, and removes the state.
func (d *director) teardown() {
	for _, p := range d.callers {
		p.stop(syscall.SIGTERM, time.Second)
	}
	if d.envoy != nil {
		d.envoy.stop(syscall.SIGTERM, time.Second)
	}
	for _, p := range d.probers {
		p.stop(syscall.SIGTERM, time.Second)
	}
	for _, p := range d.instances {
		_ = p.stdin.Close()
	}
	for _, p := range d.instances {
		p.stop(syscall.SIGTERM, time.Second)
	}
	if d.api != nil {
		_ = d.api.Close()
	}
	if d.server != nil {
		d.server.stop(syscall.SIGTERM, 5*time.Second)
	}
	if !d.cfg.Keep {
		_ = os.RemoveAll(d.layout.dir)
	}
}

func (d *director) say(kind, format string, args ...any) {
	e := time.Since(d.began).Round(time.Second)
	fmt.Fprintf(d.cfg.Out, "    %02d:%02d  %-7s %s\n", int(e.Minutes()), int(e.Seconds())%60, kind, fmt.Sprintf(format, args...))
}

// check prints a claim, and remembers it when it does not hold.
func (d *director) check(held bool, format string, args ...any) {
	if claim := strings.TrimSpace(fmt.Sprintf(format, args...)); held {
		d.say("holds", "%s", claim)
	} else {
		d.say("FAILED", "%s", claim)
		d.failed = append(d.failed, claim)
	}
}

// pause lets a person look; --speed shortens it.
func (d *director) pause(ctx context.Context, t time.Duration) {
	wait(ctx, time.Duration(float64(t)/d.cfg.Speed))
}

// wait waits for a time, or the end of the context.
func wait(ctx context.Context, t time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(t):
	}
}
