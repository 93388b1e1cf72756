package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/sightlinedev/sightline/dns"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/source/file"
	"github.com/sightlinedev/sightline/server/admin"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/registryapi"
	"github.com/sightlinedev/sightline/server/report"
	"github.com/sightlinedev/sightline/server/shard"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/server/watch"
	"github.com/sightlinedev/sightline/server/xds"
	"github.com/sightlinedev/sightline/views"
	"github.com/sightlinedev/sightline/views/store"
)

// Server is the whole control plane of one process.
type Server struct {
	// Fixed after New, in the order in which New builds them.
	cfg       Config
	temporary bool // the data folder was not named
	started   time.Time
	report    *reporter
	checks    *checklist
	health    *health.Server
	source    *svid.Source
	policy    *authz.Policy

	xdsGate, apiGate *gate
	httpListener     net.Listener
	dns              *dns.Server

	store     *store.Store
	boot      shard.Boot
	publisher *views.Publisher
	shards    *shard.Set
	writer    *desired.Writer
	restamped *onceEach
	audited   *perMinute[audit] // apart from what is logged, so that noise hides no refusal

	xds              *xds.Server
	watch            *watch.Feed
	taps             *admin.Taps
	reports          *report.Service
	proofs           chan registry.UID // addresses that probers have proved
	loadRows         sync.Pool         // *health.Outcomes, between LRS and reports
	registry         *registryapi.Server
	xdsGRPC, apiGRPC *grpc.Server
	http             *http.Server
	sources          []*file.Source

	cleanup []func() error // of what New opened; in order of opening

	completed  atomic.Bool  // every view is built
	storeSince atomic.Int64 // Unix nanoseconds at which the store stopped taking writes
}

// Addrs are the addresses that a server listens on.
type Addrs struct{ XDS, API, DNS, HTTP netip.AddrPort }

// New checks the configuration and builds a server: identity, ports, store,
// core, surfaces. Nothing answers before Run. ctx bounds the wait for an
// identity. An error says what to change; nothing stays open then.
func New(ctx context.Context, cfg Config) (*Server, error) {
	temporary := cfg.Data == ""
	cfg.Data = expand(cfg)
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := &Server{started: time.Now(), restamped: newOnceEach(), audited: newPerMinute[audit](), health: newHealth(), temporary: temporary,
		proofs: make(chan registry.UID, proofsWaiting)}
	s.cfg = cfg
	s.report = newReporter(s.cfg.Log, s.cfg.Version, s.cfg.Build, s.Snapshot)
	s.checks = newChecklist(s.report.ready, checkStore, checkViews, checkListeners, checkSources)
	for _, step := range []func(context.Context) error{
		s.prepareData, s.loadIdentity, s.buildOwners, s.bind, s.openStore, s.buildCore, s.buildSurfaces, s.buildSources,
	} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// The conditions of readiness.
const (
	checkStore     = "store"
	checkViews     = "views"
	checkListeners = "listeners"
	checkSources   = "sources"
)

// expand fills in the data folder of dev, which is checked with the rest.
func expand(cfg Config) string {
	if cfg.Data != "" || cfg.Mode != Dev {
		return cfg.Data
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("sightline-dev-%d", os.Getpid()))
}

// prepareData makes the data folder. One that nobody named goes with the server.
func (s *Server) prepareData(context.Context) error {
	if s.temporary {
		s.onClose(func() error { return os.RemoveAll(s.cfg.Data) })
	}
	if err := os.MkdirAll(s.cfg.Data, 0o700); err != nil {
		return fmt.Errorf("--data %s: the folder cannot be made: %w", s.cfg.Data, err)
	}
	return nil
}

// loadIdentity makes dev's identities, or loads those of production.
func (s *Server) loadIdentity(ctx context.Context) error {
	source, err := s.openSource(ctx)
	if err != nil {
		return err
	}
	s.source = source
	s.onClose(source.Close)
	if s.policy, err = s.cfg.policy(source.TrustDomain()); err != nil {
		return err
	}
	_, ends := source.Validity()
	s.report.rotated(source.ID(), ends)
	return nil
}

func (s *Server) openSource(ctx context.Context) (*svid.Source, error) {
	events := s.report.identityEvents()
	if s.cfg.WorkloadAPI != "" {
		ctx, cancel := context.WithTimeout(ctx, identityWait)
		defer cancel()
		source, err := svid.FromWorkloadAPI(ctx, s.cfg.WorkloadAPI, events)
		if err != nil {
			return nil, startError(status.IdentityUnreadable, "--workload-api: %v; check that the agent runs and has an entry for this process", err)
		}
		return source, nil
	}
	files := s.cfg.SVIDs
	if s.cfg.Mode == Dev {
		var err error
		if _, files, err = devca.Prepare(s.IdentityDir(), s.cfg.TrustDomain, time.Now()); err != nil {
			return nil, startError(status.IdentityUnreadable, "--data %s: identities cannot be written: %v", s.cfg.Data, err)
		}
	}
	source, err := svid.FromFiles(files, s.cfg.Limits.Availability.SVIDPoll, events)
	if err != nil {
		return nil, startError(status.IdentityUnreadable, "--svid, --svid-key, --bundle: %v; put a valid SVID, its key and the trust bundle there", err)
	}
	return source, nil
}

// IdentityDir is where dev keeps its authority and identities.
func (s *Server) IdentityDir() string { return filepath.Join(s.cfg.Data, "identity") }

// bind opens the ports, so that a taken one is known before anything runs.
func (s *Server) bind(context.Context) error {
	l := s.cfg.Limits
	for _, port := range []struct {
		name string
		flag listenFlag
		to   **gate
	}{{"xds", s.flagOf("--xds-listen", s.cfg.XDSListen), &s.xdsGate}, {"api", s.flagOf("--api-listen", s.cfg.APIListen), &s.apiGate}} {
		listener, err := s.listen(port.flag)
		if err != nil {
			return err
		}
		*port.to = newGate(listener, port.name, l.Transport, s.report.gateEvents())
	}
	var err error
	if s.httpListener, err = s.listen(s.flagOf("--http-listen", s.cfg.HTTPListen)); err != nil {
		return err
	}
	d := s.flagOf("--dns-listen", s.cfg.DNSListen)
	s.dns, err = dns.New(dns.Config{
		Listen: d.addr, Zones: s.cfg.DNSZones, NSID: s.cfg.Name, Snapshot: s.Snapshot, Policy: s.Policy,
		Events: s.report.dnsEvents(), TTL: l.DNS.TTL, NegativeTTL: l.DNS.NegativeTTL, AnswerLimit: l.DNS.Records,
		TCPConnections: l.DNS.Connections, TCPConnectionsPerHost: l.DNS.ConnectionsPerAddr, TCPQueries: l.DNS.QueriesPerConn,
		TCPReadTimeout: l.DNS.ReadTimeout, TCPIdle: l.DNS.IdleTimeout,
	})
	var op *net.OpError
	if errors.As(err, &op) {
		return cannotListen(d, err)
	}
	if err != nil {
		return startError(status.ZoneInvalid, "--dns-zone: %v", err)
	}
	s.onClose(func() error { return closed(s.dns.Close()) })
	return nil
}

func (s *Server) listen(f listenFlag) (net.Listener, error) {
	l, err := net.Listen("tcp", f.addr)
	if err != nil {
		return nil, cannotListen(f, err)
	}
	s.onClose(func() error { return closed(l.Close()) })
	return l, nil
}

func cannotListen(f listenFlag, err error) error {
	return startError(status.PortTaken, "%s %s: cannot listen: %v; stop the other process, or choose another address with %s", f.flag, f.addr, err, f.flag)
}

// flagOf names the flag that decides an address: dev's follow from --port-base
// unless they are given.
func (s *Server) flagOf(flag, addr string) listenFlag {
	if _, port, err := net.SplitHostPort(addr); err == nil && s.cfg.Mode == Dev && slices.Contains(s.cfg.basePorts(), port) {
		flag += " (or --port-base)"
	}
	return listenFlag{flag, addr}
}

// closed forgives closing what is closed already.
func closed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (s *Server) onClose(f func() error) { s.cleanup = append(s.cleanup, f) }

// Close releases what New opened, in reverse order. Run calls it at its end; a
// server that never ran is closed by its owner. Closing twice is safe.
func (s *Server) Close() error {
	var errs []error
	for _, f := range slices.Backward(s.cleanup) {
		errs = append(errs, f())
	}
	s.cleanup = nil
	return errors.Join(errs...)
}

// Addrs returns the addresses that the ports are bound to.
func (s *Server) Addrs() Addrs {
	of := func(l net.Listener) netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }
	return Addrs{XDS: of(s.xdsGate), API: of(s.apiGate), HTTP: of(s.httpListener), DNS: s.dns.Addr()}
}

// TrustDomain is that of the server's own identity.
func (s *Server) TrustDomain() string { return s.source.TrustDomain() }

// Snapshot returns the region's newest views; an empty one that is not
// complete before there is a publisher.
func (s *Server) Snapshot() *views.Snapshot {
	if s.publisher == nil {
		return views.NewSnapshot(false)
	}
	return s.publisher.Snapshot()
}

// Policy returns the resolution policy in force.
func (s *Server) Policy() *authz.Policy { return s.policy }
