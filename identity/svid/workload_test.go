package svid_test

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	workload "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/svid"
)

// agent is a Workload API that hands out what a test gives it.
type agent struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	mu      sync.Mutex
	current *workload.X509SVIDResponse
	refusal error // the answer to every watch
	changed chan struct{}
}

func (a *agent) refuse(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refusal = err
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *agent) set(t *testing.T, p *pki, cert tls.Certificate) {
	key, err := pkcs8(cert)
	if err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.current = &workload.X509SVIDResponse{Svids: []*workload.X509SVID{{
		SpiffeId: cert.Leaf.URIs[0].String(), X509Svid: cert.Leaf.Raw, X509SvidKey: key, Bundle: p.root.Raw,
	}}}
	close(a.changed)
	a.changed = make(chan struct{})
}

// FetchX509SVID sends what is current, and each change.
func (a *agent) FetchX509SVID(_ *workload.X509SVIDRequest, stream workload.SpiffeWorkloadAPI_FetchX509SVIDServer) error {
	for {
		a.mu.Lock()
		now, refusal, changed := a.current, a.refusal, a.changed
		a.mu.Unlock()
		if refusal != nil {
			return refusal
		}
		if err := stream.Send(now); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// TestWorkloadAPI: the first answer makes the source, later ones rotate it, one
// of another trust domain or past its end does not, and losing the API leaves
// what is held.
func TestWorkloadAPI(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	p, other := newPKI(t, td), newPKI(t, "other.example")
	a := &agent{changed: make(chan struct{})}
	a.set(t, p, p.leaf(nil, "spiffe://"+td+"/sightline/server/a"))
	server := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(server, a)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	kept := make(chan error, 16)
	rotated := make(chan identity.ID, 16)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := svid.FromWorkloadAPI(ctx, "unix://"+socket, svid.Events{
		Rotated: func(id identity.ID, _ time.Time) { rotated <- id },
		Kept:    func(err error) { kept <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.ID().Path() != "/sightline/server/a" {
		t.Errorf("began as %v", s.ID())
	}
	running, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(running) }()
	<-rotated // the watch's first answer

	a.set(t, p, p.leaf(nil, "spiffe://"+td+"/sightline/server/b"))
	if id := <-rotated; id.Path() != "/sightline/server/b" {
		t.Errorf("rotated to %v", id)
	}
	a.set(t, other, other.leaf(nil, "spiffe://other.example/sightline/server/b"))
	<-kept
	a.refuse(status.Error(codes.InvalidArgument, "an agent that is being replaced"))
	<-kept
	a.set(t, p, p.leaf(nil, "spiffe://"+td+"/sightline/server/b"))
	a.refuse(nil)
	select {
	case id := <-rotated:
		if id.Path() != "/sightline/server/b" {
			t.Errorf("after a refusal: %v", id)
		}
	case err := <-done:
		t.Fatal("a refusal ended the source:", err)
	}
	server.Stop()
	<-served
	<-kept
	if s.ID().TrustDomain() != td || s.ID().Path() != "/sightline/server/b" {
		t.Errorf("without the API: %v", s.ID())
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	gone, cancelGone := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancelGone()
	if _, err := svid.FromWorkloadAPI(gone, "unix://"+socket, svid.Events{}); err == nil {
		t.Error("a source without an agent")
	}
	if _, err := svid.FromWorkloadAPI(ctx, "http://x", svid.Events{}); err == nil {
		t.Error("an address that is none was accepted")
	}
}
