package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/health/probe"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

// proberFlags are those of the prober command.
type proberFlags struct {
	logs              serverFlags // its log flags alone
	zone              string
	workloadAPI       string
	httpListen        string
	allowLoopback     bool
	developmentDomain string
}

const proberLong = `Runs a prober until SIGINT or SIGTERM: it asks the instances that the control
plane assigns to it whether they serve (TCP, gRPC health, HTTP), proves addresses
by dialling back, and reports. It keeps no state: one that hangs or misbehaves can
be killed at any time, and its targets move to other probers within 10 s.

Run at least two, in different zones: an instance is withdrawn on probes' word
only where its probers agree. With no prober at all nothing is withdrawn, and
services that have no other evidence are shown as unknown.

Identity: an SVID of spiffe://<trust domain>/sightline/prober/<name>, another name
for each prober, from --cert, --key and --bundle, or from a SPIFFE Workload API
(--workload-api, $SPIFFE_ENDPOINT_SOCKET). In ` + "`sightline dev`" + ` it comes from the
command-line context.

Never asked: link-local, multicast, reserved and cloud metadata addresses, and
loopback outside development. --allow-loopback is for instances on this machine:
it is accepted in a trust domain under .test, or in the one that
--development-domain names.

If probes fail everywhere at once, look at this process first: its log has one
line for each change, and --http-listen serves /metrics.`

func (a *app) proberCommand() *cobra.Command {
	var p proberFlags
	cmd := &cobra.Command{
		Use: "prober", Short: "Run a prober: ask instances whether they serve", Args: cobra.NoArgs, Long: proberLong,
		Example: "  sightline prober --zone eu-1a --api sightline.example:15011 \\\n    --cert prober.pem --key prober.key --bundle bundle.pem\n" +
			"  sightline prober --zone z1 --allow-loopback        beside sightline dev",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runProber(cmd, &p) },
	}
	f := cmd.Flags()
	f.StringVar(&p.zone, "zone", "", "zone that this prober stands in (required)")
	f.StringVar(&p.workloadAPI, "workload-api", "", "SPIFFE Workload API socket, instead of files (default: $SPIFFE_ENDPOINT_SOCKET)")
	f.StringVar(&p.httpListen, "http-listen", "", "serve /metrics and /livez here (default: nowhere)")
	f.BoolVar(&p.allowLoopback, "allow-loopback", false, "also ask instances on loopback; development only")
	f.StringVar(&p.developmentDomain, "development-domain", "", "trust domain that is one for development, where its name does not say so")
	f.StringVar(&p.logs.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&p.logs.logFormat, "log-format", "auto", "auto, text or json")
	return cmd
}

func (a *app) runProber(cmd *cobra.Command, p *proberFlags) error {
	if err := p.logs.readConfig(cmd); err != nil {
		return err
	}
	log, err := p.logs.logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if p.zone == "" {
		return usagef("--zone is required: an instance's two probers stand in different zones, so that a broken zone cannot condemn it alone")
	}
	source, api, err := a.proberSource(cmd.Context(), p, log)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := p.check(source.ID()); err != nil {
		return err
	}
	conn, err := probe.Connect(api, source)
	if err != nil {
		return err
	}
	defer conn.Close()
	prober, err := probe.New(probe.Config{Zone: p.zone, Client: healthv1.NewReportServiceClient(conn), SVID: source,
		AllowLoopback: p.allowLoopback, Events: proberEvents(log)})
	if err != nil {
		return err
	}
	page, err := servePage(p.httpListen, prober)
	if err != nil {
		return err
	}
	log.Info("the prober runs", "identity", source.ID().String(), "zone", p.zone, "api", api, "loopback", p.allowLoopback)
	var beside sync.WaitGroup
	beside.Go(func() { _ = source.Run(cmd.Context()) }) // it returns nil, when the context ends
	err = prober.Run(cmd.Context())
	beside.Wait()
	page()
	log.Info("the prober has stopped")
	return err
}

// proberSource is the prober's identity and the API that it works for: from the
// flags, else the Workload API, else the context that dev left.
func (a *app) proberSource(ctx context.Context, p *proberFlags, log *slog.Logger) (*svid.Source, string, error) {
	t, err := loadTarget(a.contextArg)
	if err != nil {
		return nil, "", err
	}
	api := t.API
	if a.override.API != "" {
		api = a.override.API
	}
	const hint = "start one with: sightline dev    or give --api, and --cert, --key and --bundle of a prober"
	if api == "" {
		return nil, "", &exitError{code: exitUsage, err: errors.New("no control plane chosen: there is no context and no --api"), hint: hint}
	}
	events := svid.Events{
		Rotated: func(id identity.ID, end time.Time) {
			log.Info("a new SVID is in force", "identity", id.String(), "ends", end)
		},
		Kept: func(reason error) { log.Warn("the last good SVID is kept", "reason", reason.Error()) },
	}
	files := svid.Files{SVID: a.override.Cert, Key: a.override.Key, Bundle: a.override.Bundle}
	socket := p.workloadAPI
	if files == (svid.Files{}) && socket == "" {
		socket = os.Getenv("SPIFFE_ENDPOINT_SOCKET")
	}
	switch {
	case files != (svid.Files{}) && p.workloadAPI != "":
		return nil, "", usagef("--workload-api and --cert, --key, --bundle are two ways to the same thing: give one")
	case socket != "":
		wait, cancel := context.WithTimeout(ctx, a.timeout)
		defer cancel()
		source, err := svid.FromWorkloadAPI(wait, socket, events)
		return source, api, err
	case files == (svid.Files{}) && t.Bundle != "":
		files = devca.FilesOf(filepath.Dir(t.Bundle), devca.ProberName)
	}
	if files.SVID == "" || files.Key == "" || files.Bundle == "" {
		return nil, "", &exitError{code: exitUsage, err: errors.New("no identity to probe with"), hint: "give --cert, --key and --bundle of spiffe://<trust domain>/sightline/prober/<name>, or --workload-api"}
	}
	source, err := svid.FromFiles(files, 0, events)
	if err != nil {
		return nil, "", &exitError{code: exitFailure, err: err, hint: "these are the files of --cert, --key and --bundle, or of the context"}
	}
	return source, api, nil
}

// check refuses an identity that is no prober's, and loopback where it may be
// somebody's production.
func (p *proberFlags) check(id identity.ID) error {
	if id.Class() != identity.Prober {
		return &exitError{code: exitUsage, err: fmt.Errorf("%s is not a prober's identity, and no control plane would take its reports", id),
			hint: "a prober is spiffe://" + id.TrustDomain() + "/sightline/prober/<name>"}
	}
	if p.allowLoopback && !forDevelopment(id.TrustDomain()) && p.developmentDomain != id.TrustDomain() {
		return &exitError{code: exitUsage,
			err:  fmt.Errorf("--allow-loopback is refused in trust domain %s: on a loopback address a prober would ask services of its own machine in an instance's place", id.TrustDomain()),
			hint: "leave it out; or, if this trust domain is for development, add --development-domain " + id.TrustDomain()}
	}
	return nil
}

// forDevelopment reports whether a trust domain's name says so: .test is
// reserved for it (RFC 6761 §6.2).
func forDevelopment(trustDomain string) bool {
	return trustDomain == "test" || strings.HasSuffix(trustDomain, ".test")
}

// proberEvents writes one line for each change.
func proberEvents(log *slog.Logger) probe.Events {
	var assigned int
	return probe.Events{
		Opened: func(s probe.Stream) { log.Info("the control plane answers", "stream", string(s)) },
		Lost: func(s probe.Stream, err error) {
			log.Warn("the control plane is away: probing goes on", "stream", string(s), "reason", whyLost(err))
		},
		Ended: func(t *healthv1.Tally) {
			log.Debug("a report stream ended in order", "accepted", t.GetAccepted(), "unattributed", t.GetUnattributed(),
				"out_of_scope", t.GetOutOfScope(), "stale", t.GetStale(), "limited", t.GetLimited())
		},
		Assigned: func(generation uint64, targets int) {
			level := slog.LevelDebug
			if (targets == 0) != (assigned == 0) {
				level = slog.LevelInfo
			}
			assigned = targets
			log.Log(context.Background(), level, "targets are assigned", "targets", targets, "generation", generation)
		},
		Changed: func(r probe.Result, before probe.Outcome) {
			line := []any{"instance", r.UID, "service", r.Service, "address", r.Address, "kind", r.Kind.String(),
				"outcome", r.Outcome.String(), "before", before.String(), "latency", r.Latency.Round(time.Microsecond)}
			switch {
			case r.Outcome == probe.OK && before == probe.NoWord: // as it should be
				log.Debug("an instance answers", line...)
				return
			case r.Outcome == probe.OK:
				log.Info("an instance answers again", line...)
				return
			}
			said := "an instance does not answer well"
			if r.Outcome == probe.NoWord {
				said = "an instance could not be asked: this says nothing about it"
			}
			log.Warn(said, append(line, "detail", r.Detail)...)
		},
		Unusable: func(uid, reason string) { log.Warn("a target is not asked", "instance", uid, "reason", reason) },
		Paused: func(gap time.Duration) {
			log.Warn("this process did not run for a while: failures meanwhile do not count", "gap", gap.Round(time.Millisecond))
		},
	}
}

// whyLost says what a person can do about a stream that ended.
func whyLost(err error) string {
	s, ok := status.FromError(err)
	switch {
	case !ok:
		return err.Error()
	case s.Code() == codes.Unavailable && !answered(s):
		return dialFailure(s.Message())
	case s.Code() == codes.Unimplemented && !answered(s):
		return "it takes no probe results: is --api the API port (15011) of a server of this version?"
	}
	return plain(s.Message())
}

// pageTimeout bounds a request to the prober's page, and its end.
const pageTimeout = 5 * time.Second

// servePage serves /metrics and /livez; the function that it returns ends that.
func servePage(listen string, p *probe.Prober) (stop func(), err error) {
	if listen == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("--http-listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_ = p.Counts().WriteMetrics(w) // whoever asked has gone
	})
	s := &http.Server{Handler: mux, ReadTimeout: pageTimeout, WriteTimeout: pageTimeout, MaxHeaderBytes: 16 << 10}
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) }) // it ends when it is closed
	return func() { _ = s.Close(); serving.Wait() }, nil
}
