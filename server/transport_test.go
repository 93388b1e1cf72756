package server

import (
	"context"
	"errors"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/status"
)

// TestSettings reads the settings of both gRPC servers back, out of the
// servers themselves (RELIABILITY.md §5).
func TestSettings(t *testing.T) {
	r := start(t, devConfig(dataDir(t)))
	for port, row := range map[string]struct {
		server *grpc.Server
		want   map[string]any
	}{
		"xds": {r.xdsGRPC, map[string]any{"maxConcurrentStreams": uint64(16), "maxReceiveMessageSize": int64(64 << 20)}},
		"api": {r.apiGRPC, map[string]any{"maxConcurrentStreams": uint64(100), "maxReceiveMessageSize": int64(256 << 10)}},
	} {
		row.want["connectionTimeout"] = int64(5 * time.Second)
		row.want["numServerWorkers"] = uint64(0)
		options := reflect.ValueOf(row.server).Elem().FieldByName("opts")
		for field, want := range row.want {
			f := options.FieldByName(field)
			var got any
			switch {
			case !f.IsValid():
				t.Fatalf("grpc has no option %s any more", field)
			case f.CanInt():
				got = f.Int()
			case f.CanUint():
				got = f.Uint()
			}
			if got != want {
				t.Errorf("%s: %s is %v, want %v", port, field, got, want)
			}
		}
		if h := options.FieldByName("maxHeaderListSize").Elem().Uint(); h != 16<<10 {
			t.Errorf("%s: header list of %d bytes", port, h)
		}
		keepalive := options.FieldByName("keepaliveParams")
		for field, want := range map[string]time.Duration{"Time": 30 * time.Second, "Timeout": 10 * time.Second,
			"MaxConnectionAge": 30 * time.Minute, "MaxConnectionAgeGrace": time.Minute} {
			if got := time.Duration(keepalive.FieldByName(field).Int()); got != want {
				t.Errorf("%s: keepalive %s is %v, want %v", port, field, got, want)
			}
		}
		enforcement := options.FieldByName("keepalivePolicy")
		if time.Duration(enforcement.FieldByName("MinTime").Int()) != time.Second || !enforcement.FieldByName("PermitWithoutStream").Bool() {
			t.Errorf("%s: client pings are judged by %v", port, enforcement)
		}
		for _, hook := range []string{"creds", "inTapHandle", "unaryInt", "streamInt", "unknownStreamDesc"} {
			if options.FieldByName(hook).IsNil() {
				t.Errorf("%s: no %s", port, hook)
			}
		}
	}
}

// TestConnectionAgeFollowsTheSVID: a connection lives at most half our SVID's life.
func TestConnectionAgeFollowsTheSVID(t *testing.T) {
	l := limits.Default()
	if got := xdsSettings(&l, 20*time.Minute).Keepalive.MaxConnectionAge; got != 10*time.Minute {
		t.Errorf("%v", got)
	}
	if got := apiSettings(&l, 24*time.Hour).Keepalive.MaxConnectionAge; got != 30*time.Minute {
		t.Errorf("%v", got)
	}
}

// TestEveryMethodHasARow is I13: each method of each registered service, by each
// class of identity, is let through or refused as the table says, and no
// handler runs otherwise. A method without a row fails here.
func TestEveryMethodHasARow(t *testing.T) {
	r := start(t, devConfig(dataDir(t)))
	table := authz.NewTable(DefaultTrustDomain, true)
	rows := slices.Collect(table.Methods())
	paths := map[identity.Class]string{
		identity.Workload: "/ns/shop/sa/web", identity.Agent: "/sightline/agent/a", identity.Prober: "/sightline/prober/a",
		identity.Reconciler: "/sightline/reconciler/a", identity.Peer: "/sightline/peer/a", identity.Replica: "/sightline/replica/a",
		identity.Reader: "/sightline/reader/a", identity.Operator: "/sightline/operator/a", identity.SecurityAdmin: "/sightline/security-admin/a",
	}
	walked := 0
	for class, path := range paths {
		who := r.as(path)
		for _, port := range []struct {
			server *grpc.Server
			conn   *grpc.ClientConn
		}{{r.xdsGRPC, r.dialXDS(who)}, {r.apiGRPC, r.dialAPI(who)}} {
			for service, about := range port.server.GetServiceInfo() {
				for _, m := range about.Methods {
					method := "/" + service + "/" + m.Name
					if !slices.Contains(rows, method) {
						t.Fatalf("%s has no row in the authorisation table", method)
					}
					err := knock(t, port.conn, method)
					code, _ := status.CodeOf(err)
					allowed := table.Check(method, identity.Principal{ID: who.ID()}).Allowed()
					if allowed == (code == status.ClassDenied) {
						t.Errorf("%s by %v: %v, and the table says allowed=%v", method, class, err, allowed)
					}
					walked++
				}
			}
		}
	}
	if walked < 9*30 {
		t.Errorf("only %d calls were walked", walked)
	}
}

// knock opens a method as a stream, sends an empty message, and returns what
// comes back first: the guard's refusal, or the handler's answer.
func knock(t *testing.T, conn *grpc.ClientConn, method string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&emptypb.Empty{}); err != nil {
		return stream.RecvMsg(&emptypb.Empty{})
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	short := time.AfterFunc(300*time.Millisecond, cancel) // a handler that is in waits for more
	defer short.Stop()
	return stream.RecvMsg(&emptypb.Empty{})
}

// TestOddPathsReachNoHandler is B6: a path without a row ends before any handler.
func TestOddPathsReachNoHandler(t *testing.T) {
	r := start(t, devConfig(dataDir(t)))
	conn := r.dialAPI(r.operator())
	for _, path := range []string{"/sightline.resolve.v1.ResolveService/resolve", "/sightline.resolve.v1.ResolveService/Resolve/", "//sightline.resolve.v1.ResolveService/Resolve",
		"/x/y", "/sightline.resolve.v1.resolveservice/Resolve", "/sightline.registry.v1.RegistryService/%41pply"} {
		if err := knock(t, conn, path); grpcstatus.Code(err) != codes.Unimplemented {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// TestStrangersAreTurnedAway: no certificate, and one of another authority.
func TestStrangersAreTurnedAway(t *testing.T) {
	r := start(t, devConfig(dataDir(t)))
	ca, err := devca.New(DefaultTrustDomain, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	d, err := ca.Issue(identity.MustParse("spiffe://"+DefaultTrustDomain+"/sightline/operator/fake"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	fake, err := svid.FromDocuments(d.SVID, d.Key, ca.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := healthpb.NewHealthClient(r.dialAPI(fake)).Check(callCtx(t), &healthpb.HealthCheckRequest{}); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("another authority's operator: %v", err)
	}
	raw, err := net.Dial("tcp", r.Addrs().API.String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := raw.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	_ = raw.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, 64)
	for n := 0; ; n++ {
		if _, err := raw.Read(buf); err != nil {
			break // closed: no plaintext is spoken
		}
		if n > 10 {
			t.Fatal("plaintext was answered")
		}
	}
	r.eventually("the refusals are counted", func() bool {
		_, body := r.get("/metrics")
		return strings.Contains(body, `sightline_handshakes_total{port="api",result="broken"}`)
	})
}

// TestConnectionLimits: one identity at one address has so many connections,
// and a place that is left is free again.
func TestConnectionLimits(t *testing.T) {
	cfg := devConfig(dataDir(t))
	l := limits.Default()
	l.Transport.ConnectionsPerSource = 2
	cfg.Limits = &l
	r := start(t, cfg)
	ask := func(c *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_, err := healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{})
		return err
	}
	who := r.as("/ns/a/sa/b")
	first, second, third := r.dialAPI(who), r.dialAPI(who), r.dialAPI(who)
	if err := errors.Join(ask(first), ask(second)); err != nil {
		t.Fatal(err)
	}
	if err := ask(third); err == nil {
		t.Error("a third connection was let in")
	}
	if err := ask(r.dialAPI(r.as("/ns/a/sa/c"))); err != nil {
		t.Errorf("another identity is held up: %v", err)
	}
	first.Close()
	r.eventually("the place is free", func() bool { return ask(r.dialAPI(who)) == nil })
}

// TestStreamsEndWithTheirIdentity: at the end of the certificate, and when its
// root leaves the bundle, a stream that only waits is told why.
func TestStreamsEndWithTheirIdentity(t *testing.T) {
	r := start(t, devConfig(dataDir(t)))
	stream, err := healthpb.NewHealthClient(r.dialAPI(r.as("/ns/a/sa/b"))).Watch(callCtx(t), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	r.apiGate.mu.Lock()
	var only *conn
	for _, c := range r.apiGate.conns {
		only = c
	}
	r.apiGate.mu.Unlock()
	only.end(expired(only.peer))
	_, err = stream.Recv()
	if code, _ := status.CodeOf(err); code != status.IdentityExpired || grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("ended with %v", err)
	}
	r.eventually("the connection is gone", func() bool {
		r.apiGate.mu.Lock()
		defer r.apiGate.mu.Unlock()
		return len(r.apiGate.conns) == 0 && r.apiGate.open == 0 && len(r.apiGate.perSource) == 0 && len(r.apiGate.perCaller) == 0
	})
}

// TestAPanicEndsOneCall: and the server goes on.
func TestAPanicEndsOneCall(t *testing.T) {
	told := 0
	g := &guard{table: authz.NewTable(DefaultTrustDomain, true), events: guardEvents{
		refused:  func(string, identity.Principal, string, string) {},
		panicked: func(string, identity.Principal, string, []byte) { told++ },
	}}
	err := g.caught("/x/y", identity.Principal{}, "boom")
	if code, _ := status.CodeOf(err); code != status.Internal || told != 1 || strings.Contains(err.Error(), "boom") {
		t.Errorf("%v, told %d", err, told)
	}
	if _, err := g.unary(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: "/grpc.health.v1.Health/Check"},
		func(context.Context, any) (any, error) { t.Error("a handler ran without a caller"); return nil, nil }); grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("a call without a peer: %v", err)
	}
}
