package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sightlinedev/sightline/server"
)

// asCommand makes the test binary be the command itself: what needs a process
// of its own (signals, a crash) starts it so.
const asCommand = "SIGHTLINE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		_ = os.Unsetenv(asCommand)
		os.Exit(Main("0.0.0-test", os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait for a real socket or process.
const patience = 20 * time.Second

// world is a development server with the command line pointed at it, and a
// folder that commands find their files in.
type world struct {
	t    testing.TB
	dir  string // files of the test; contexts live in dir/config
	srv  *server.Server
	stop func()
}

// newWorld prepares a folder and an empty set of contexts. Tests of one process
// share its environment, so they do not run in parallel.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), stop: func() {}}
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(w.dir, "config"))
	for _, name := range []string{"SIGHTLINE_CONTEXT", "SIGHTLINE_ADDR", "SIGHTLINE_NAMESPACE", "SIGHTLINE_OUTPUT", "SPIFFE_ENDPOINT_SOCKET"} {
		t.Setenv(name, "")
	}
	return w
}

// serve starts a development server and makes it the current context.
func (w *world) serve(cfg server.Config) *world {
	w.t.Helper()
	loopback := func(at *string) {
		if *at == "" {
			*at = "127.0.0.1:0"
		}
	}
	loopback(&cfg.XDSListen)
	loopback(&cfg.APIListen)
	loopback(&cfg.DNSListen)
	loopback(&cfg.HTTPListen)
	if cfg.Data == "" {
		cfg.Data = filepath.Join(w.dir, "data")
	}
	srv, err := server.New(w.t.Context(), cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	undo, err := saveTarget(devTarget(srv, cfg))
	if err != nil {
		w.t.Fatal(err)
	}
	w.srv = srv
	w.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				w.t.Error("stop:", err)
			}
		case <-time.After(patience):
			w.t.Error("the server did not stop")
		}
	})
	w.t.Cleanup(func() { w.stop(); undo() })
	w.ready()
	return w
}

func (w *world) ready() {
	w.t.Helper()
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	eventually(w.t, "the server is ready", func() error {
		resp, err := client.Get("http://" + w.srv.Addrs().HTTP.String() + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
}

// result is what one command line did.
type result struct {
	code        int
	out, errOut string
}

// run runs a command line in this process. {dir} stands for the test's folder.
func (w *world) run(stdin string, args ...string) result {
	return w.runCtx(context.Background(), stdin, args...)
}

func (w *world) runCtx(ctx context.Context, stdin string, args ...string) result {
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "{dir}", w.dir)
	}
	var out, errOut bytes.Buffer
	code := run(ctx, "0.0.0-test", args, strings.NewReader(stdin), &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

// ok runs a command line that has to succeed, and returns its output.
func (w *world) ok(args ...string) string {
	w.t.Helper()
	r := w.run("", args...)
	if r.code != exitOK {
		w.t.Fatalf("sightline %s ended with %d:\n%s%s", strings.Join(args, " "), r.code, r.out, r.errOut)
	}
	return r.out
}

// file writes a file into the test's folder and returns its path.
func (w *world) file(name, content string) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// Values that differ from run to run, and what stands for them.
var unstable = []struct {
	is  *regexp.Regexp
	now string
}{
	{regexp.MustCompile(`\b\d{10}\.(\d+)`), "<epoch>.$1"},
	{regexp.MustCompile(`"epoch": "\d{10}"`), `"epoch": "<epoch>"`},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "<time>"},
	{regexp.MustCompile(`\bi\d{16}\b`), "i<uid-of-16-chars>"[:17]}, // as wide, for the columns
	{regexp.MustCompile(`\b\d{16}\b`), "<revision-number"[:16]},
	{regexp.MustCompile(`("[a-z]+Hash": ?)"[^"]*"`), `$1"<hash>"`},
	{regexp.MustCompile(`(?m)(up | {2})\d+s$`), "$1<age>"},
	{regexp.MustCompile(`(view|config)( +)\d+`), "$1$2<n>"},
}

// steady replaces what differs from run to run.
func (w *world) steady(text string) string {
	if w.srv != nil {
		at := w.srv.Addrs()
		for name, addr := range map[string]fmt.Stringer{"<xds>": at.XDS, "<api>": at.API, "<dns>": at.DNS, "<http>": at.HTTP} {
			text = strings.ReplaceAll(text, addr.String(), name)
		}
	}
	text = strings.ReplaceAll(text, w.dir, "<dir>")
	for _, u := range unstable {
		text = u.is.ReplaceAllString(text, u.now)
	}
	return text
}

// eventually polls until check returns nil.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", patience, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

var errNotYet = errors.New("not yet")
