package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
	"github.com/sightlinedev/sightline/server/limits"
)

// clientIdentities is how many workloads the clients of a benchmark are, so
// that the limits of each identity hold.
const clientIdentities = 64

// streamsPerAddress is how many streams share one source address.
const streamsPerAddress = 100

const serverIdentity = "server"

// writeIdentities makes an authority and the SVIDs of a benchmark in dir.
func writeIdentities(dir string) error {
	a, err := devca.New(trustDomain, time.Now())
	if err != nil {
		return err
	}
	return writeWorkloads(a, dir, "/sightline/server/bench")
}

// writeWorkloads writes the server's SVID, if one is named, and the clients'.
func writeWorkloads(a *devca.Authority, dir, server string) error {
	who := map[string]string{}
	if server != "" {
		who[serverIdentity] = server
	}
	for i := range clientIdentities {
		who[clientName(i)] = "/ns/" + namespace + "/sa/" + clientName(i)
	}
	for name, path := range who {
		id, err := identity.Parse("spiffe://" + trustDomain + path)
		if err != nil {
			return err
		}
		if _, err := a.Write(dir, name, id, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

func clientName(i int) string { return fmt.Sprintf("client-%d", i) }

// source reads an SVID that writeIdentities wrote.
func source(dir, name string) (*svid.Source, error) {
	var pem [3][]byte
	for i, file := range []string{name + ".pem", name + ".key", "bundle.pem"} {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		pem[i] = b
	}
	return svid.FromDocuments(pem[0], pem[1], pem[2])
}

// transportOptions are those of the xDS port of the real server, for every side.
func transportOptions(s *svid.Source) []grpc.ServerOption {
	l := limits.Default()
	t := l.Transport
	return []grpc.ServerOption{
		grpc.Creds(s.ServerCredentials(svid.Gate{})),
		grpc.ConnectionTimeout(t.HandshakeTimeout), grpc.MaxConcurrentStreams(l.XDS.ConcurrentStreams),
		grpc.MaxRecvMsgSize(l.XDS.MaxRequestBytes), grpc.MaxHeaderListSize(t.MaxHeaderBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: t.KeepaliveTime, Timeout: t.KeepaliveTimeout,
			MaxConnectionAge: t.MaxConnectionAge, MaxConnectionAgeGrace: t.MaxConnectionGrace,
			MaxConnectionIdle: time.Duration(math.MaxInt64)}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: t.MinClientPing, PermitWithoutStream: true}),
		grpc.StreamInterceptor(identify),
		grpc.ReadBufferSize(xdsReadBuffer),
		grpc.StaticStreamWindowSize(xdsWindow), grpc.StaticConnWindowSize(xdsWindow),
	}
}

// The same as in the server, where they are explained.
const (
	xdsWindow     = 64 << 10
	xdsReadBuffer = 4 << 10
)

// identify puts the verified caller into a stream's context, as the server's
// interceptor does.
func identify(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	p, addr, ok := svid.PeerFrom(ss.Context())
	if !ok {
		return status.Error(codes.Unauthenticated, "no verified identity")
	}
	who := identity.Principal{ID: p.ID, Addr: addr}
	return next(srv, &callerStream{ss, svid.WithCaller(ss.Context(), who, p.NotAfter)})
}

type callerStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context carries the caller.
func (s *callerStream) Context() context.Context { return s.ctx }

// dialer opens connections of many workloads from many addresses.
type dialer struct {
	addr  string
	creds []credentials.TransportCredentials
}

func newDialer(addr, dir string) (*dialer, error) {
	d := &dialer{addr: addr}
	for i := range clientIdentities {
		s, err := source(dir, clientName(i))
		if err != nil {
			return nil, err
		}
		d.creds = append(d.creds, s.ClientCredentials(svid.OurServer(trustDomain)))
	}
	return d, nil
}

// Flow-control windows of a client, in bytes. They are fixed, as Envoy's are:
// grpc-go's own clients ping the server after data to find theirs.
const (
	streamWindow     = 1 << 20
	connectionWindow = 1 << 21
)

// dial makes the connection of the n-th client.
func (d *dialer) dial(n int, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	at := n / streamsPerAddress
	from := &net.TCPAddr{IP: net.IPv4(127, 10, byte(at>>8), byte(at)+1)}
	return grpc.NewClient("passthrough:///"+d.addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(d.creds[n%len(d.creds)]),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{LocalAddr: from}).DialContext(ctx, "tcp", addr)
		}),
		grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(16 << 10), grpc.WithWriteBufferSize(4 << 10),
		grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connectionWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16 << 20)),
	}, options...)...)
}
