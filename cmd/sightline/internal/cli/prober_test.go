package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// plane is a control plane that assigns one target and takes results in.
type plane struct {
	healthv1.UnimplementedReportServiceServer
	target *healthv1.Target
	got    chan string // who asked, and then each result
}

// WatchAssignment assigns the target.
func (p *plane) WatchAssignment(r *healthv1.WatchAssignmentRequest, s grpc.ServerStreamingServer[healthv1.WatchAssignmentResponse]) error {
	who, _, _ := svid.PeerFrom(s.Context())
	p.got <- who.ID.String() + " in " + r.GetZone()
	if err := s.Send(&healthv1.WatchAssignmentResponse{Generation: 1, Full: true, Targets: []*healthv1.Target{p.target}}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

// ReportProbes hands the results on.
func (p *plane) ReportProbes(s grpc.ClientStreamingServer[healthv1.ReportProbesRequest, healthv1.ReportProbesResponse]) error {
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		for _, r := range m.GetBatch().GetResult() {
			p.got <- r.String()
		}
	}
}

// servePlane serves it in a trust domain, and returns its address and the
// prober's files.
func servePlane(t *testing.T, w *world, trustDomain string, p *plane) (api string, files svid.Files) {
	t.Helper()
	dir := filepath.Join(w.dir, "identity")
	_, serverFiles, err := devca.Prepare(dir, trustDomain, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	source, err := svid.FromFiles(serverFiles, 0, svid.Events{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(source.ServerCredentials(svid.Gate{})))
	healthv1.RegisterReportServiceServer(s, p)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-served })
	return l.Addr().String(), devca.FilesOf(dir, devca.ProberName)
}

// TestProber: a process with dev's identity asks what it is assigned, reports,
// shows its counts and stops on SIGTERM.
func TestProber(t *testing.T) {
	w := newWorld(t)
	gone := closedPort(t)
	p := &plane{got: make(chan string, 1000), target: &healthv1.Target{Uid: "i1", Service: "shop/web", Port: uint32(gone.Port),
		Endpoint: &healthv1.Target_Address{Address: "127.0.0.1"}, Probe: &registryv1.Probe{}}}
	api, _ := servePlane(t, w, "sightline.test", p)
	undo, err := saveTarget(target{Name: "dev", API: api, Bundle: filepath.Join(w.dir, "identity", "bundle.pem")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(undo)
	page := closedPort(t).String()
	cmd := exec.Command(os.Args[0], "prober", "--zone", "z1", "--allow-loopback", "--http-listen", page, "--log-format", "text")
	cmd.Env = append(os.Environ(), asCommand+"=1")
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for _, want := range []string{"spiffe://sightline.test/sightline/prober/dev in z1", "PROBE_RESULT_REFUSED"} {
		select {
		case got := <-p.got:
			if got != want {
				t.Errorf("heard %q, want %q", got, want)
			}
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			t.Fatalf("%q was not heard:\n%s", want, out.String())
		}
	}
	resp, err := http.Get("http://" + page + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if err != nil || !strings.Contains(string(body), "sightline_prober_targets 1\n") {
		t.Errorf("metrics: %v\n%s", err, body)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		t.Fatalf("it did not end:\n%s", out.String())
	}
	for _, line := range []string{"the prober runs", "targets are assigned", "an instance does not answer well", "connection refused", "the prober has stopped"} {
		if n := strings.Count(out.String(), line); n != 1 {
			t.Errorf("%d lines with %q:\n%s", n, line, out.String())
		}
	}
}

// TestProberSaysWhatIsWrong: a control plane that is not there, or takes no
// results, is one line that a person can act on, and no end.
func TestProberSaysWhatIsWrong(t *testing.T) {
	w := newWorld(t)
	api, files := servePlane(t, w, "prod.example", &plane{got: make(chan string, 10), target: &healthv1.Target{Uid: "i1", Port: 80,
		Endpoint: &healthv1.Target_Address{Address: "127.0.0.1"}}})
	for name, row := range map[string]struct{ api, say string }{
		"nobody":   {closedPort(t).String(), "connection refused"},
		"loopback": {api, "a loopback address"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			var errOut lockedBuffer
			ended := make(chan int, 1)
			go func() {
				ended <- run(ctx, "0.0.0-test", []string{"prober", "--zone", "z1", "--api", row.api, "--cert", files.SVID, "--key", files.Key, "--bundle", files.Bundle},
					strings.NewReader(""), io.Discard, &errOut)
			}()
			eventually(t, "the line", func() error {
				if !strings.Contains(errOut.String(), row.say) {
					return fmt.Errorf("%q is not in %q", row.say, errOut.String())
				}
				return nil
			})
			cancel()
			if code := <-ended; code != exitOK {
				t.Errorf("it ended with %d", code)
			}
		})
	}
}

// TestProberRefusals: what cannot work is refused at once, and says what to do.
func TestProberRefusals(t *testing.T) {
	w := newWorld(t)
	ca, _, err := devca.Prepare(filepath.Join(w.dir, "identity"), "prod.example", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Write(filepath.Join(w.dir, "identity"), "web", identity.MustParse("spiffe://prod.example/ns/shop/sa/web"), time.Now()); err != nil {
		t.Fatal(err)
	}
	as := func(name string, more ...string) []string {
		f := devca.FilesOf("{dir}/identity", name)
		return append([]string{"prober", "--zone", "z1", "--api", "127.0.0.1:1", "--cert", f.SVID, "--key", f.Key, "--bundle", f.Bundle}, more...)
	}
	for name, row := range map[string]struct {
		args []string
		code int
		say  string
	}{
		"no zone":       {[]string{"prober"}, exitUsage, "--zone is required"},
		"no plane":      {[]string{"prober", "--zone", "z1"}, exitUsage, "no control plane chosen"},
		"no identity":   {[]string{"prober", "--zone", "z1", "--api", "127.0.0.1:1"}, exitUsage, "/sightline/prober/<name>"},
		"half":          {[]string{"prober", "--zone", "z1", "--api", "127.0.0.1:1", "--cert", "{dir}/identity/prober.pem"}, exitUsage, "no identity"},
		"no such file":  {as("nobody"), exitFailure, "no such file"},
		"not a prober":  {as("web"), exitUsage, "spiffe://prod.example/ns/shop/sa/web is not a prober's identity"},
		"two ways":      {as("prober", "--workload-api", "unix:///x"), exitUsage, "give one"},
		"loopback":      {as("prober", "--allow-loopback"), exitUsage, "--allow-loopback is refused in trust domain prod.example"},
		"another's":     {as("prober", "--allow-loopback", "--development-domain", "dev.example"), exitUsage, "add --development-domain prod.example"},
		"page in use":   {as("prober", "--http-listen", "256.0.0.1:1"), exitFailure, "--http-listen"},
		"no such level": {as("prober", "--log-level", "loud"), exitUsage, "--log-level"},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.run("", row.args...)
			if r.code != row.code || !strings.Contains(r.errOut, row.say) {
				t.Errorf("ended with %d, want %d and %q:\n%s", r.code, row.code, row.say, r.errOut)
			}
		})
	}
}

// closedPort is an address that nothing listens at.
func closedPort(t *testing.T) *net.TCPAddr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr)
}

// lockedBuffer is written by a command while the test reads it.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String is what was written so far.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
