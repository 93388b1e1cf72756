package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// serveSide runs a side over real mTLS and returns its address.
func serveSide(t *testing.T, dir string, s side) string {
	t.Helper()
	src, err := source(dir, serverIdentity)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	g := grpc.NewServer(append(transportOptions(src), s.options()...)...)
	s.register(ctx, g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		cancel()
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// follow subscribes to services and hands over every response as it came.
func follow(t *testing.T, dir, addr string, names []string) <-chan *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	d, err := newDialer(addr, dir)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := d.dial(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: envoyNode("n"), TypeUrl: endpointType, ResourceNamesSubscribe: names}); err != nil {
		t.Fatal(err)
	}
	got := make(chan *discoveryv3.DeltaDiscoveryResponse, 100)
	var receiving sync.WaitGroup
	receiving.Go(func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			got <- m
			if stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: m.Nonce}) != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		receiving.Wait()
		_ = conn.Close()
	})
	return got
}

// next collects that many assignments, by name.
func next(t *testing.T, from <-chan *discoveryv3.DeltaDiscoveryResponse, n int) map[string][]byte {
	t.Helper()
	got := make(map[string][]byte)
	for limit := time.After(20 * time.Second); len(got) < n; {
		select {
		case m := <-from:
			for _, r := range m.Resources {
				got[r.Name] = r.Resource.Value
			}
		case <-limit:
			t.Fatalf("%d of %d assignments after 20 s", len(got), n)
		}
	}
	return got
}

// Are the sides compared with one another at all: does each deliver the same
// assignments, of the same number of bytes, at the start and after a change?
func TestSidesSendTheSame(t *testing.T) {
	dir := t.TempDir()
	if err := writeIdentities(dir); err != nil {
		t.Fatal(err)
	}
	const services, instances = 3, 9
	names := []string{serviceName(0).Host(), serviceName(2).Host()}
	received := make(map[string][2]map[string][]byte)
	for name, build := range map[string]func(*estate) (side, error){
		sideOurs:   func(e *estate) (side, error) { return newOurs(e) },
		sideRaw:    func(e *estate) (side, error) { return newRaw(e) },
		sideLinear: func(e *estate) (side, error) { return newLinear(e) },
	} {
		s, err := build(newEstate(services, instances))
		if err != nil {
			t.Fatal(err)
		}
		from := follow(t, dir, serveSide(t, dir, s), names)
		first := next(t, from, len(names))
		if err := s.prepare([]change{{Service: 2, Number: 7}}); err != nil {
			t.Fatal(err)
		}
		if err := s.publish(0); err != nil {
			t.Fatal(err)
		}
		received[name] = [2]map[string][]byte{first, next(t, from, 1)}
	}
	for name, got := range received {
		for step, resources := range got {
			for _, service := range names[step:] {
				compare(t, name, service, resources[service], received[sideRaw][step][service])
			}
		}
	}
	var a assigned
	if err := readAssignment(received[sideOurs][1][names[1]], &a); err != nil {
		t.Fatal(err)
	}
	if a.newest != changeBase+7 || a.oldest != 2 || a.endpoints != instances || a.name != names[1] {
		t.Errorf("read after change 7: %+v", a)
	}
}

func compare(t *testing.T, side, service string, got, want []byte) {
	t.Helper()
	var x, y endpointv3.ClusterLoadAssignment
	if err := proto.Unmarshal(got, &x); err != nil {
		t.Fatalf("%s: %s: %v", side, service, err)
	}
	if err := proto.Unmarshal(want, &y); err != nil {
		t.Fatalf("raw: %s: %v", service, err)
	}
	if !proto.Equal(&x, &y) || len(got) != len(want) {
		t.Errorf("%s sends for %s, in %d bytes:\n%v\nraw, in %d bytes:\n%v", side, service, len(got), &x, len(want), &y)
	}
}

func TestReadingMatchesTheGeneratedTypes(t *testing.T) {
	e := newEstate(2, 5)
	whole := &discoveryv3.DeltaDiscoveryResponse{Nonce: "n-1", TypeUrl: endpointType, RemovedResources: []string{"gone"}}
	raw, err := newRaw(e)
	if err != nil {
		t.Fatal(err)
	}
	for s := range e.services {
		var one discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(raw.current[s].ReadOnlyData(), &one); err != nil {
			t.Fatal(err)
		}
		whole.Resources = append(whole.Resources, one.Resources...)
	}
	b, err := proto.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	var r responseRead
	if err := readResponse(b, &r); err != nil {
		t.Fatal(err)
	}
	if string(r.nonce) != "n-1" || r.removed != 1 || len(r.assigned) != 2 || r.assigned[1].name != serviceName(1).Host() || r.assigned[0].newest != 5 {
		t.Errorf("read %+v", r)
	}
	if err := check(b, &r); err != nil {
		t.Error(err)
	}
	r.assigned[0].endpoints++
	if check(b, &r) == nil {
		t.Error("a wrong reading passes the check")
	}
	if readResponse(b[:len(b)-1], &r) == nil {
		t.Error("a torn response is read")
	}
	var ack discoveryv3.DeltaDiscoveryRequest
	if err := proto.Unmarshal(appendAck(nil, r.nonce), &ack); err != nil || ack.ResponseNonce != "n-1" || ack.TypeUrl != endpointType {
		t.Errorf("acknowledgement %v, %v", &ack, err)
	}
}

func TestMissingIdentityNamesTheFile(t *testing.T) {
	_, err := source(t.TempDir(), clientName(0))
	if !os.IsNotExist(err) || filepath.Ext(err.(*os.PathError).Path) != ".pem" {
		t.Errorf("got %v", err)
	}
}
