package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait for a real socket or disk.
const patience = 20 * time.Second

// devConfig is a development server on free ports.
func devConfig(dir string) Config {
	return Config{Data: dir, XDSListen: "127.0.0.1:0", APIListen: "127.0.0.1:0", DNSListen: "127.0.0.1:0", HTTPListen: "127.0.0.1:0"}
}

// running is a server that runs until stop, or the test's end.
type running struct {
	*Server
	t    testing.TB
	logs *logBuffer
	stop func() error

	issued map[string]*svid.Source // by path
	conns  map[string]*grpc.ClientConn
}

// start runs a server and waits until it is ready.
func start(t testing.TB, cfg Config) *running {
	t.Helper()
	logs := &logBuffer{}
	cfg.Log = slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	r := &running{Server: s, t: t, logs: logs, issued: map[string]*svid.Source{}, conns: map[string]*grpc.ClientConn{}}
	r.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("the server did not stop")
		}
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error("stop:", err)
		}
		if t.Failed() {
			t.Log("server log:\n" + logs.String())
		}
	})
	r.eventually("the server is ready", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
	return r
}

func (r *running) eventually(what string, holds func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			r.t.Fatalf("not within %v: %s\n%s", patience, what, r.logs.String())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// get asks the plain HTTP port.
func (r *running) get(path string) (int, string) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + r.Addrs().HTTP.String() + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// as returns an identity of the server's development authority.
func (r *running) as(path string) *svid.Source {
	r.t.Helper()
	if s := r.issued[path]; s != nil {
		return s
	}
	ca, err := devca.Open(r.IdentityDir(), DefaultTrustDomain, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	d, err := ca.Issue(identity.MustParse("spiffe://"+DefaultTrustDomain+path), time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	source, err := svid.FromDocuments(d.SVID, d.Key, ca.Bundle())
	if err != nil {
		r.t.Fatal(err)
	}
	r.issued[path] = source
	return source
}

// api returns a shared connection to the API with an identity.
func (r *running) api(path string) *grpc.ClientConn {
	r.t.Helper()
	if r.conns[path] == nil {
		r.conns[path] = r.dialAPI(r.as(path))
	}
	return r.conns[path]
}

// operator is the identity that dev writes.
func (r *running) operator() *svid.Source {
	r.t.Helper()
	s, err := svid.FromFiles(devca.FilesOf(r.IdentityDir(), devca.OperatorName), 0, svid.Events{})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// dialAPI and dialXDS connect to a port with an identity.
func (r *running) dialAPI(who *svid.Source) *grpc.ClientConn {
	return dial(r.t, r.Addrs().API.String(), who)
}
func (r *running) dialXDS(who *svid.Source) *grpc.ClientConn {
	return dial(r.t, r.Addrs().XDS.String(), who)
}

func dial(t testing.TB, addr string, who *svid.Source) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(who.ClientCredentials(svid.OurServer(DefaultTrustDomain))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func callCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// logBuffer collects log lines from many goroutines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func dataDir(t testing.TB) string { return filepath.Join(t.TempDir(), "data") }
