package prober

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(harness.LeftByGRPC)) }

const (
	starts = 30 * time.Second // what a test needs before it begins
)

// world is a server with probers in processes of their own, and a client that
// holds assignments.
type world struct {
	*testing.T
	s      *harness.Server
	api    *harness.API
	client *rawxds.Client
}

func start(t *testing.T) *world { return startAs(t, "dev") }

// startAs starts the server command given.
func startAs(t *testing.T, command string) *world {
	t.Helper()
	s := harness.StartServer(t, harness.ServerConfig{Command: command})
	w := &world{T: t, s: s, api: s.DialAPI(t, s.Operator(t))}
	c, err := rawxds.Delta(context.Background(), s.DialXDS(t, s.CA.Mint(t, "/ns/shop/sa/web")), rawxds.Node("delta", "envoy", "local", "a"), nil)
	w.ok(err)
	w.client = c
	t.Cleanup(func() {
		c.Close()
		if v := c.Violations(); len(v) > 0 {
			t.Errorf("the server broke rules: %q", v)
		}
	})
	return w
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// proberProcess is bin/sightline prober.
type proberProcess struct {
	*harness.Process
	name, http string
}

// prober starts one in a zone, for instances on loopback.
func (w *world) prober(name, zone string) *proberProcess {
	w.Helper()
	return w.proberWith(name, zone, "--allow-loopback")
}

func (w *world) proberWith(name, zone string, args ...string) *proberProcess {
	w.Helper()
	who := w.s.CA.Mint(w, "/sightline/prober/"+name)
	page := net.JoinHostPort("127.0.0.1", strconv.Itoa(harness.FreeBlock(w, 0)))
	args = append([]string{"prober", "--zone", zone, "--api", w.s.API, "--cert", who.CertFile, "--key", who.KeyFile,
		"--bundle", who.BundleFile, "--http-listen", page, "--log-format", "json"}, args...)
	return &proberProcess{name: name, http: page, Process: harness.Start(w, "prober "+name, harness.SightlineBinary(w), nil, args...)}
}

// targets is how many a prober has, by its own page.
func (p *proberProcess) targets() (int, error) {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + p.http + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(page)) {
		if v, ok := strings.CutPrefix(line, "sightline_prober_targets "); ok {
			return strconv.Atoi(strings.TrimSpace(v))
		}
	}
	return 0, errors.New("the page does not say")
}

// saw is when a prober's log first says of an instance what it does after a
// moment.
func (p *proberProcess) saw(uid, outcome string, after time.Time) (time.Time, bool) {
	for line := range strings.Lines(p.Output()) {
		var l struct {
			Time              time.Time
			Instance, Outcome string
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Instance == uid && l.Outcome == outcome && l.Time.After(after) {
			return l.Time, true
		}
	}
	return time.Time{}, false
}

// service is one of the test, probed as the probe says.
type service struct {
	*world
	host, name string
	supplies   []registryv1.EvidenceClass
	probe      *registryv1.Probe
	uids       []string
}

var (
	byProbe        = []registryv1.EvidenceClass{registryv1.EvidenceClass_EVIDENCE_CLASS_PROBE}
	byProbeAndSelf = append(byProbe, registryv1.EvidenceClass_EVIDENCE_CLASS_SELF)
)

// service declares it, without a ramp, and its instances at the addresses, each
// in the zone given by its position.
func (w *world) service(name string, supplies []registryv1.EvidenceClass, probe *registryv1.Probe, zones []string, at ...netip.AddrPort) *service {
	w.Helper()
	s := &service{world: w, host: name + ".shop", name: name, supplies: supplies, probe: probe}
	svc := harness.PutService(s.host)
	svc.GetPutService().Contract, svc.GetPutService().Profile = name, name
	changes := []*registryv1.Change{
		{Change: &registryv1.Change_PutProfile{PutProfile: &registryv1.Profile{Namespace: "shop", Name: name, Supplies: supplies}}},
		{Change: &registryv1.Change_PutContract{PutContract: &registryv1.Contract{Namespace: "shop", Name: name, Probe: probe, Ramp: durationpb.New(0)}}}, svc}
	for i, a := range at {
		c := harness.PutInstance(s.host, fmt.Sprintf("%s-%d", name, i), a)
		c.GetPutInstance().Zone = zones[i%len(zones)]
		changes = append(changes, c)
	}
	for _, r := range w.api.Apply(w, changes...)[3:] {
		s.uids = append(s.uids, r.GetUid())
	}
	w.ok(w.client.Subscribe(rawxds.EDS, s.host))
	return s
}

// holds waits until the client's assignment has exactly the addresses, and
// returns when it came.
func (s *service) holds(within time.Duration, want ...netip.AddrPort) time.Time {
	s.Helper()
	text := texts(want)
	var got []string
	if err := s.client.Await(within, func() bool {
		res, ok := s.client.Held(rawxds.EDS)[s.host]
		if !ok {
			return false
		}
		got, _ = res.Addresses()
		return slices.Equal(got, text)
	}); err != nil {
		s.Fatalf("%s at %v: %v (holds %v)\n%s", s.host, text, err, got, s.words())
	}
	return time.Now()
}

// words are the members as Resolve explains them.
func (s *service) words() string {
	v, err := s.api.View(s.host)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, m := range v.GetMembers() {
		fmt.Fprintf(&b, "  %s listed=%v %v by %s: %s\n", m.GetLabel(), m.GetListed(), m.GetState(), m.GetEvidence().GetRule(), m.GetEvidence().GetDetail())
	}
	return b.String()
}

// states waits until Resolve has so many members in a state, all listed or not.
func (s *service) states(within time.Duration, state viewv1.State, n int) {
	s.Helper()
	harness.Eventually(s, within, fmt.Sprintf("%d of %s are %v", n, s.host, state), func() error {
		v, err := s.api.View(s.host)
		if err != nil {
			return err
		}
		got := 0
		for _, m := range v.GetMembers() {
			if m.GetState() == state {
				got++
			}
		}
		if got != n {
			return fmt.Errorf("%d are:\n%s", got, s.words())
		}
		return nil
	})
}

func texts(addrs []netip.AddrPort) []string {
	list := make([]string, 0, len(addrs))
	for _, a := range addrs {
		list = append(list, a.String())
	}
	slices.Sort(list)
	return list
}

func without(addrs []netip.AddrPort, i int) []netip.AddrPort {
	return slices.Delete(slices.Clone(addrs), i, i+1)
}

// backend is something that listens on loopback and can be made to fail.
type backend struct {
	at netip.AddrPort
	// break softly: it answers, and not well; repair undoes it. Both nil for TCP,
	// which has no words.
	breakIt, repair func()
	stop            func()
}

// tcpBackend accepts and closes.
func (w *world) tcpBackend() *backend {
	w.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.ok(err)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	})
	stop := sync.OnceFunc(func() { _ = l.Close(); accepting.Wait() })
	w.Cleanup(stop)
	return &backend{at: l.Addr().(*net.TCPAddr).AddrPort(), stop: stop}
}

// httpBackend answers 200 on /healthz, and 503 once it is broken.
func (w *world) httpBackend() *backend {
	w.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.ok(err)
	var broken atomic.Bool
	s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if broken.Load() || r.URL.Path != "/healthz" {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	stop := sync.OnceFunc(func() { _ = s.Close(); serving.Wait() })
	w.Cleanup(stop)
	return &backend{at: l.Addr().(*net.TCPAddr).AddrPort(), breakIt: func() { broken.Store(true) }, repair: func() { broken.Store(false) }, stop: stop}
}

// grpcBackend answers grpc.health.v1 for one service name.
func (w *world) grpcBackend(service string) *backend {
	w.Helper()
	b := harness.StartBackend(w, service)
	b.Health.SetServingStatus(service, healthpb.HealthCheckResponse_SERVING)
	return &backend{at: b.Addr, stop: b.Stop,
		breakIt: func() { b.Health.SetServingStatus(service, healthpb.HealthCheckResponse_NOT_SERVING) },
		repair:  func() { b.Health.SetServingStatus(service, healthpb.HealthCheckResponse_SERVING) }}
}

func addrs(list []*backend) (out []netip.AddrPort) {
	for _, b := range list {
		out = append(out, b.at)
	}
	return out
}
