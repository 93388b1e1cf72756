package registryapi

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/svid"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	operator = "spiffe://example.org/sightline/operator/ann"
	reader   = "spiffe://example.org/sightline/reader/dash"
	checkout = "spiffe://example.org/ns/shop/sa/checkout"
	cart     = "spiffe://example.org/ns/shop/sa/cart"
	ledger   = "spiffe://example.org/ns/bank/sa/ledger"
	stranger = "spiffe://other.org/ns/shop/sa/checkout"
)

var (
	errFull   = errors.New("no space left on device")
	errBroken = errors.New("input/output error")
)

// disk is a store whose commits can hang, and that can be full or broken.
type disk struct {
	mu      sync.Mutex
	rows    map[registry.RowKey]registry.Row
	records []desired.Record
	hang    chan struct{}
	refuse  error
}

func (d *disk) commit(ctx context.Context, rows []registry.Row, records []desired.Record) error {
	d.mu.Lock()
	hang := d.hang
	d.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return d.refuse
	}
	for _, r := range rows {
		if d.rows[r.Key] = r; r.Delete {
			delete(d.rows, r.Key)
		}
	}
	d.records = append(d.records, records...)
	return nil
}

func (d *disk) refusal() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refuse
}

func (d *disk) set(refuse error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = refuse
}

func (d *disk) stall() (resume func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := make(chan struct{})
	d.hang = c
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.hang = nil
		close(c)
	}
}

func (d *disk) size() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.rows)
}

// audit returns the records and forgets them.
func (d *disk) audit() []desired.Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	records := d.records
	d.records = nil
	return records
}

// world is a server over bufconn with a real Writer. It must be made inside a
// synctest bubble.
type world struct {
	t      *testing.T
	disk   *disk
	writer *desired.Writer
	server *Server
	policy *authz.Policy
	registryv1.RegistryServiceClient

	mu      sync.Mutex
	renewed []registry.UID
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, disk: &disk{rows: make(map[registry.RowKey]registry.Row)},
		policy: &authz.Policy{TrustDomain: "example.org", Grants: []authz.Grant{{
			Caller: identity.Pattern{ID: identity.MustParse(reader)}, Callee: authz.Callee{Namespace: "shop"},
		}}},
	}
	w.writer = desired.New(desired.Config{
		Loaded: registry.Load(1000, slices.Values([]registry.Row(nil)), nil), Commit: w.disk.commit, Refusal: w.disk.refusal,
		Tell: func(registry.Change) {},
		KindOf: func(err error) desired.Kind {
			if errors.Is(err, errFull) {
				return desired.Full
			}
			return desired.Failing
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.writer.Run(ctx) }()
	w.server = New(Config{
		Writer: w.writer, Policy: func() *authz.Policy { return w.policy }, Principal: svid.PrincipalFrom,
		Renew: w.renew, SelfProof: registry.ByRegistration, Now: time.Now, API: limits.Default().API,
	})
	conn := serve(t, w.server)
	w.RegistryServiceClient = registryv1.NewRegistryServiceClient(conn)
	t.Cleanup(func() {
		w.server.Close()
		cancel()
		<-done
	})
	return w
}

func serve(t *testing.T, s *Server) *grpc.ClientConn {
	caller := func(ctx context.Context) context.Context {
		md, _ := metadata.FromIncomingContext(ctx)
		who := identity.Principal{Addr: netip.MustParseAddr("10.9.9.9")}
		if ids := md.Get("who"); len(ids) > 0 {
			who.ID = identity.MustParse(ids[0])
			return svid.WithPrincipal(ctx, who)
		}
		return ctx
	}
	lis := bufconn.Listen(1 << 16)
	srv := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			return next(caller(ctx), req)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(srv, &stream{ss, caller(ss.Context())})
		}))
	s.Register(srv)
	go srv.Serve(lis)
	conn, err := grpc.NewClient("passthrough:///buf", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); srv.Stop() })
	return conn
}

type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *stream) Context() context.Context { return s.ctx }

func (w *world) renew(_ registry.Name, uid registry.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.renewed = append(w.renewed, uid)
}

// renewals returns who was renewed since the last call.
func (w *world) renewals() []registry.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.renewed
	w.renewed = nil
	return r
}

func as(id string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "who", id)
}

func service(ns, name string) *registryv1.Service {
	return &registryv1.Service{Namespace: ns, Name: name, Ports: []*registryv1.Port{
		{Name: "grpc", Number: 9090, Protocol: registryv1.Protocol_PROTOCOL_GRPC},
	}}
}

func instance(ns, svc, label, addr string) *registryv1.Instance {
	return &registryv1.Instance{Namespace: ns, Service: svc, Label: label, Endpoint: &registryv1.Instance_Address{Address: addr}}
}

// create stores services as the operator.
func (w *world) create(names ...string) {
	w.t.Helper()
	for _, n := range names {
		ns, name, _ := cut(n)
		if _, err := w.CreateService(as(operator), &registryv1.CreateServiceRequest{Service: service(ns, name)}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) registerAs(id, n, label, addr string) *registryv1.Instance {
	w.t.Helper()
	ns, name, _ := cut(n)
	resp, err := w.RegisterInstance(as(id), &registryv1.RegisterInstanceRequest{Instance: instance(ns, name, label, addr)})
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.GetInstance()
}

func cut(n string) (ns, name string, ok bool) {
	for i := range n {
		if n[i] == '/' {
			return n[:i], n[i+1:], true
		}
	}
	return n, "", false
}

// wants checks a status: its gRPC code, its SL code, exactly one ErrorInfo.
func wants(t *testing.T, err error, grpcCode codes.Code, code status.Code) {
	t.Helper()
	if got, _ := status.CodeOf(err); grpcstatus.Code(err) != grpcCode || got != code {
		t.Errorf("got %v (%v), want %v %v", err, got, grpcCode, code)
		return
	}
	infos := 0
	for _, d := range grpcstatus.Convert(err).Details() {
		if _, ok := d.(*errdetails.ErrorInfo); ok {
			infos++
		}
	}
	if infos != 1 {
		t.Errorf("%v carries %d ErrorInfos", err, infos)
	}
}

// fields lists the violations of a status as field:reason.
func fields(err error) (out []string) {
	for _, d := range grpcstatus.Convert(err).Details() {
		if br, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range br.GetFieldViolations() {
				out = append(out, v.GetField()+":"+v.GetReason())
			}
		}
	}
	return out
}

func idOf(s string) identity.ID  { return identity.MustParse(s) }
func addrOf(s string) netip.Addr { return netip.MustParseAddr(s) }
