package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

const operatorName = "operator"

// sightline is a running server: the built binary, as in production.
type sightline struct {
	cmd          *exec.Cmd
	ended        chan error
	xds, apiAddr string
	identities   string // folder
	conn         *grpc.ClientConn
	api          registryv1.RegistryServiceClient
}

// readyWithin is how long a server may take to be ready.
const readyWithin = 30 * time.Second

// startSightline starts a server whose data and identities live in dir, and
// waits until it is ready.
func startSightline(ctx context.Context, dir string, r *report) (*sightline, error) {
	program, err := findBinary(ctx, dir, r)
	if err != nil {
		return nil, err
	}
	s := &sightline{identities: filepath.Join(dir, "identities"), ended: make(chan error, 1)}
	if err := writeServerIdentities(s.identities); err != nil {
		return nil, err
	}
	addrs, err := freeAddresses(4)
	if err != nil {
		return nil, err
	}
	s.xds, s.apiAddr = addrs[0], addrs[1]
	files := devca.FilesOf(s.identities, serverIdentity)
	s.cmd = exec.Command(program, "server", "--data", filepath.Join(dir, "data"), "--dns-zone", "sightline.test.",
		"--xds-listen", addrs[0], "--api-listen", addrs[1], "--dns-listen", addrs[2], "--http-listen", addrs[3],
		"--svid", files.SVID, "--svid-key", files.Key, "--bundle", files.Bundle, "--log-level", "warn")
	s.cmd.Stderr = r.progress
	// Nobody's settings but those above.
	s.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SIGHTLINE_") })
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { s.ended <- s.cmd.Wait() }()
	if err := s.connect(ctx, addrs[1], addrs[3]); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// writeServerIdentities makes the server's, an operator's and the clients'.
func writeServerIdentities(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	a, err := devca.New(trustDomain, time.Now())
	if err != nil {
		return err
	}
	operator := identity.MustParse("spiffe://" + trustDomain + "/sightline/operator/bench")
	if _, err := a.Write(dir, operatorName, operator, time.Now()); err != nil {
		return err
	}
	return writeWorkloads(a, dir, "/sightline/server/bench")
}

// findBinary finds the built server, or builds it.
func findBinary(ctx context.Context, dir string, r *report) (string, error) {
	if p := os.Getenv("SIGHTLINE_BIN"); p != "" {
		return p, nil
	}
	if p, err := filepath.Abs("bin/sightline"); err == nil {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	r.say("bin/sightline is not there: building it")
	p := filepath.Join(dir, "sightline")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", p, "github.com/sightlinedev/sightline/cmd/sightline")
	cmd.Stderr = r.progress
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building the server: %w; run make build, or name a binary with SIGHTLINE_BIN", err)
	}
	return p, nil
}

// freeAddresses finds loopback ports that were free a moment ago, for TCP; DNS
// takes the same number for UDP.
func freeAddresses(n int) ([]string, error) {
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

func (s *sightline) connect(ctx context.Context, api, plain string) error {
	for deadline := time.Now().Add(readyWithin); ; {
		resp, err := http.Get("http://" + plain + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case err := <-s.ended:
			s.ended <- err
			return fmt.Errorf("the server ended: %w", errors.Join(err))
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the server is not ready after %s", readyWithin)
		}
	}
	operator, err := source(s.identities, operatorName)
	if err != nil {
		return err
	}
	s.conn, err = grpc.NewClient("passthrough:///"+api, grpc.WithTransportCredentials(operator.ClientCredentials(svid.OurServer(trustDomain))))
	if err != nil {
		return err
	}
	s.api = registryv1.NewRegistryServiceClient(s.conn)
	return nil
}

// end stops the server: its streams are gone with this process anyway.
func (s *sightline) end() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	_ = s.cmd.Process.Kill()
	<-s.ended
}
