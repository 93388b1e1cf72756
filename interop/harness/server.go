package harness

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// readyWithin is how long a server may take from its start to /readyz.
const readyWithin = 30 * time.Second

// ServerConfig says how bin/sightline is started.
type ServerConfig struct {
	// Command is "dev" (the default) or "server". Both are given everything that
	// they need: listeners, data, a DNS zone, identity.
	Command string
	// CA is whose identities the server believes; nil: a new one. Mint the
	// workloads that a test needs from it.
	CA   *CA
	Data string   // data folder; empty: one that goes with the test
	Args []string // further flags
	Env  []string // further environment, NAME=value
}

// Server is a running bin/sightline with its addresses, as host:port.
type Server struct {
	*Process
	CA                  *CA
	Data                string
	XDS, API, DNS, HTTP string

	cfg  ServerConfig
	args []string
}

// Offsets of the listeners from the port base (NAMES.md).
const (
	offsetAPI  = 1
	offsetDNS  = 53
	offsetHTTP = 80
)

// StartServer starts bin/sightline on free ports and waits until it is ready.
func StartServer(t testing.TB, cfg ServerConfig) *Server {
	t.Helper()
	if cfg.Command == "" {
		cfg.Command = "dev"
	}
	if cfg.CA == nil {
		cfg.CA = NewCA(t, trustDomain)
	}
	if cfg.Data == "" {
		cfg.Data = t.TempDir()
	}
	base := FreeBlock(t, 0, offsetAPI, offsetDNS, offsetHTTP)
	at := func(offset int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(base+offset)) }
	s := &Server{
		CA: cfg.CA, Data: cfg.Data, cfg: cfg,
		XDS: at(0), API: at(offsetAPI), DNS: at(offsetDNS), HTTP: at(offsetHTTP),
	}
	if cfg.Command == "dev" {
		cfg.CA.writeDevAuthority(t, filepath.Join(cfg.Data, "identity"))
		s.args = []string{"dev", "--no-context", "--data", cfg.Data, "--port-base", strconv.Itoa(base), "--trust-domain", cfg.CA.TrustDomain}
	} else {
		s.args = []string{cfg.Command, "--data", cfg.Data, "--xds-listen", s.XDS, "--api-listen", s.API,
			"--dns-listen", s.DNS, "--http-listen", s.HTTP, "--dns-zone", "sightline.test."}
		id := cfg.CA.Mint(t, "/sightline/server/test")
		s.args = append(s.args, "--svid", id.CertFile, "--svid-key", id.KeyFile, "--bundle", id.BundleFile)
	}
	s.args = append(s.args, cfg.Args...)
	s.Restart(t)
	return s
}

// Restart starts the server again, on the same ports and data, after Kill or
// Stop, and waits until it is ready.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Process = Start(t, "sightline "+s.cfg.Command, SightlineBinary(t), s.cfg.Env, s.args...)
	s.WaitReady(t, readyWithin)
}

// WaitReady waits for /readyz.
func (s *Server) WaitReady(t testing.TB, limit time.Duration) {
	t.Helper()
	p := s.Process
	Eventually(t, limit, "the server is ready", func() error {
		if !p.Running() {
			t.Fatalf("the server ended: %s", tail(p.Output(), 4<<10))
		}
		_, err := s.get("/readyz")
		return err
	})
}

// Operator is an identity that may do everything an operator may.
func (s *Server) Operator(t testing.TB) *SVID {
	t.Helper()
	return s.CA.Mint(t, "/sightline/operator/test")
}

// Metrics is the text of /metrics.
func (s *Server) Metrics(t testing.TB) string {
	t.Helper()
	body, err := s.get("/metrics")
	if err != nil {
		t.Fatalf("metrics: %v", err)
	}
	return body
}

func (s *Server) get(path string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + s.HTTP + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, strings.TrimSpace(string(body)))
	}
	return string(body), err
}

// writeDevAuthority puts the authority where dev keeps its own between starts,
// so that dev goes on with it: the test then mints any identity it likes.
func (ca *CA) writeDevAuthority(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatalf("authority for dev: %v", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		t.Fatalf("authority for dev: %v", err)
	}
	writePEM(t, filepath.Join(dir, "ca.key"), "PRIVATE KEY", der)
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
	if err := os.WriteFile(filepath.Join(dir, "bundle.pem"), bundle, 0o600); err != nil {
		t.Fatalf("authority for dev: %v", err)
	}
}
