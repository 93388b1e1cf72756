package harness

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

// trustDomain is that of servers which are given no CA.
const trustDomain = "test"

// callLimit is how long a call of the API may take before the test fails.
const callLimit = 20 * time.Second

// API is a client of a server's API port, with one identity. Services are named
// by their host form, checkout.shop.
type API struct {
	Conn     *grpc.ClientConn
	Registry registryv1.RegistryServiceClient
	Resolver resolvev1.ResolveServiceClient
}

// DialAPI opens a connection to the API port. It lasts over restarts of the server.
func (s *Server) DialAPI(t testing.TB, who *SVID) *API {
	t.Helper()
	conn := DialTLS(t, s.API, who)
	return &API{Conn: conn, Registry: registryv1.NewRegistryServiceClient(conn), Resolver: resolvev1.NewResolveServiceClient(conn)}
}

// DialXDS opens a connection to the xDS port, for raw clients.
func (s *Server) DialXDS(t testing.TB, who *SVID) *grpc.ClientConn {
	t.Helper()
	return DialTLS(t, s.XDS, who)
}

// DialTLS opens an mTLS connection to host:port with gRPC's default options,
// apart from quick reconnects: servers of tests come back soon.
func DialTLS(t testing.TB, addr string, who *SVID) *grpc.ClientConn {
	t.Helper()
	backoff := grpc.ConnectParams{MinConnectTimeout: 2 * time.Second}
	backoff.Backoff.BaseDelay, backoff.Backoff.MaxDelay, backoff.Backoff.Multiplier = 50*time.Millisecond, 200*time.Millisecond, 1.6
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(credentials.NewTLS(who.ClientTLS())), grpc.WithConnectParams(backoff))
	if err != nil {
		t.Fatalf("dial %s: %v", addr, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TryApply makes a batch of changes, all or nothing.
func (a *API) TryApply(changes ...*registryv1.Change) (*registryv1.ApplyResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	return a.Registry.Apply(ctx, &registryv1.ApplyRequest{Changes: changes})
}

// Apply is TryApply that must succeed. A busy disk may leave a write without an
// answer for a second; then the same batch is sent again, as the status says.
func (a *API) Apply(t testing.TB, changes ...*registryv1.Change) []*registryv1.ChangeResult {
	t.Helper()
	for began := time.Now(); ; {
		r, err := a.TryApply(changes...)
		if err == nil {
			return r.GetResults()
		}
		if status.Code(err) != codes.Unavailable || time.Since(began) > callLimit {
			t.Fatalf("apply %d changes, the first %v: %v", len(changes), changes[0], err)
		}
	}
}

// View is what Resolve answers for a service.
func (a *API) View(host string) (*viewv1.View, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	name, ns := splitHost(host)
	r, err := a.Resolver.Resolve(ctx, &resolvev1.ResolveRequest{Namespace: ns, Name: name})
	return r.GetView(), err
}

// Listed is the sorted ip:port of the members that callers are given on the
// view's port of that index.
func Listed(v *viewv1.View, port int) []string {
	var list []string
	for _, m := range v.GetMembers() {
		if m.GetListed() && port < len(m.GetPorts()) {
			list = append(list, net.JoinHostPort(m.GetAddress(), strconv.Itoa(int(m.GetPorts()[port].GetNumber()))))
		}
	}
	slices.Sort(list)
	return list
}

// GRPCPort is the port that services of tests have: grpc, 9090.
func GRPCPort() *registryv1.Port {
	return &registryv1.Port{Name: "grpc", Number: 9090, Protocol: registryv1.Protocol_PROTOCOL_GRPC}
}

// PutService declares a service that plain DNS may answer; without ports it has
// GRPCPort.
func PutService(host string, ports ...*registryv1.Port) *registryv1.Change {
	if len(ports) == 0 {
		ports = []*registryv1.Port{GRPCPort()}
	}
	name, ns := splitHost(host)
	return &registryv1.Change{Change: &registryv1.Change_PutService{PutService: &registryv1.Service{
		Namespace: ns, Name: name, Ports: ports, Exposure: &registryv1.Exposure{DnsAnonymous: true},
	}}}
}

// WithoutRamp gives a service the contract of its own name, in which a member has
// its whole weight from the start. A batch with it comes before the service's
// members: a contract that changes is judged in the shadow first.
func WithoutRamp(host string) *registryv1.Change {
	name, ns := splitHost(host)
	return &registryv1.Change{Change: &registryv1.Change_PutContract{PutContract: &registryv1.Contract{
		Namespace: ns, Name: name, Ramp: durationpb.New(0),
	}}}
}

// PutInstance registers an instance in zone a whose port grpc is at the address,
// with the identity of a service account that has the service's name.
func PutInstance(host, label string, at netip.AddrPort) *registryv1.Change {
	name, ns := splitHost(host)
	return &registryv1.Change{Change: &registryv1.Change_PutInstance{PutInstance: &registryv1.Instance{
		Namespace: ns, Service: name, Label: label, Zone: "a", Identity: "spiffe://" + trustDomain + "/ns/" + ns + "/sa/" + name,
		Endpoint: &registryv1.Instance_Address{Address: at.Addr().String()},
		Ports:    []*registryv1.PortNumber{{Name: "grpc", Number: uint32(at.Port())}},
	}}}
}

// PutBackend registers a backend under its own name.
func PutBackend(host string, b *Backend) *registryv1.Change { return PutInstance(host, b.Name, b.Addr) }

// Weighing sets the weight of the instance that a change puts.
func Weighing(c *registryv1.Change, weight uint32) *registryv1.Change {
	c.GetPutInstance().Weight = &weight
	return c
}

// DeleteService deletes a service and its instances.
func DeleteService(host string) *registryv1.Change {
	name, ns := splitHost(host)
	return &registryv1.Change{Change: &registryv1.Change_DeleteService{DeleteService: &registryv1.ObjectName{Namespace: ns, Name: name}}}
}

// DeleteInstance removes an instance by its label.
func DeleteInstance(host, label string) *registryv1.Change {
	name, ns := splitHost(host)
	return &registryv1.Change{Change: &registryv1.Change_DeleteInstance{
		DeleteInstance: &registryv1.InstanceName{Namespace: ns, Service: name, Instance: label},
	}}
}

func splitHost(host string) (name, namespace string) {
	name, namespace, _ = strings.Cut(host, ".")
	return name, namespace
}
