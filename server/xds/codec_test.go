package xds

import (
	"bytes"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/views"
)

func testCodec() codec { return codec{ordinary: encoding.GetCodecV2(grpcproto.Name)} }

func drawEncoded(t *rapid.T) (*encoded, *anypb.Any) {
	msg := &endpointv3.ClusterLoadAssignment{ClusterName: rapid.StringN(1, 40, 300).Draw(t, "name")}
	at := views.Version{Epoch: rapid.Uint64().Draw(t, "epoch"), Seq: rapid.Uint64().Draw(t, "seq")}
	e, err := newEncoded(eds, msg.ClusterName, at, rapid.StringMatching(`[0-9a-f]{0,16}`).Draw(t, "render"), msg)
	if err != nil {
		t.Fatal(err)
	}
	any, err := anypb.New(msg)
	if err != nil {
		t.Fatal(err)
	}
	return e, any
}

// The framing by hand must mean what the generated messages mean.
func TestFramedResponsesParseAsTheOrdinaryMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var res []*encoded
		delta := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: eds.url(), Nonce: rapid.StringN(1, 20, -1).Draw(t, "nonce")}
		sotw := &discoveryv3.DiscoveryResponse{TypeUrl: eds.url(), Nonce: delta.Nonce, VersionInfo: rapid.StringN(1, 20, -1).Draw(t, "version")}
		for range rapid.IntRange(0, 5).Draw(t, "resources") {
			e, any := drawEncoded(t)
			if rapid.Bool().Draw(t, "restamped") {
				e = e.withAt(views.Version{Epoch: 7, Seq: rapid.Uint64().Draw(t, "restamp")})
			}
			res = append(res, e)
			delta.Resources = append(delta.Resources, &discoveryv3.Resource{Name: e.name, Version: e.version(), Resource: any})
			sotw.Resources = append(sotw.Resources, any)
		}
		delta.RemovedResources = rapid.SliceOfN(rapid.String(), 0, 4).Draw(t, "removed")
		id := rapid.SampledFrom([]string{"", "replica-1"}).Draw(t, "identifier")
		if id != "" {
			delta.ControlPlane = &corev3.ControlPlane{Identifier: id}
			sotw.ControlPlane = delta.ControlPlane
		}
		same(t, deltaResponse(eds, delta.Nonce, res, delta.RemovedResources, id), delta, &discoveryv3.DeltaDiscoveryResponse{})
		same(t, sotwResponse(eds, sotw.VersionInfo, sotw.Nonce, res, id), sotw, &discoveryv3.DiscoveryResponse{})
	})
}

func same(t *rapid.T, r *response, want, got proto.Message) {
	t.Helper()
	parts, err := testCodec().Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	wire := parts.Materialize()
	if err := proto.Unmarshal(wire, got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Fatalf("framed %v\nwant   %v", got, want)
	}
	ordinary, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if r.size() != len(wire) || len(wire) != len(ordinary) {
		t.Fatalf("size() %d, on the wire %d bytes, ordinary %d", r.size(), len(wire), len(ordinary))
	}
}

func TestResponsesShareTheBytesOfResources(t *testing.T) {
	e, err := newEncoded(eds, "a.b", views.Version{Epoch: 1, Seq: 2}, "r", &endpointv3.ClusterLoadAssignment{ClusterName: "a.b"})
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*response{
		"delta": deltaResponse(eds, "n", []*encoded{e}, nil, ""),
		"sotw":  sotwResponse(eds, "1.2", "n", []*encoded{e}, ""),
	} {
		parts, err := testCodec().Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		last := parts[len(parts)-1].ReadOnlyData()
		if &last[len(last)-1] != &e.delta[len(e.delta)-1] {
			t.Errorf("%s: the resource was copied", name)
		}
	}
}

type recorded struct{ wire []byte }

func (r *recorded) readWire(b []byte) error {
	r.wire = bytes.Clone(b)
	return nil
}

func TestCodecHandsRequestsTheirBytesAndTreatsTheRestAsProto(t *testing.T) {
	c := testCodec()
	req := &discoveryv3.DiscoveryRequest{TypeUrl: cds.url(), ResourceNames: []string{"checkout.shop"}}
	wire, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	split := mem.BufferSlice{mem.SliceBuffer(wire[:7]), mem.SliceBuffer(wire[7:])}
	var raw recorded
	if err := c.Unmarshal(split, &raw); err != nil || !bytes.Equal(raw.wire, wire) {
		t.Fatalf("got %x (%v), want %x", raw.wire, err, wire)
	}
	var parsed discoveryv3.DiscoveryRequest
	if err := c.Unmarshal(split, &parsed); err != nil || !proto.Equal(&parsed, req) {
		t.Fatalf("got %v (%v), want %v", &parsed, err, req)
	}
	again, err := c.Marshal(req)
	if err != nil || !bytes.Equal(again.Materialize(), wire) {
		t.Fatalf("ordinary message marshals to %x (%v), want %x", again.Materialize(), err, wire)
	}
	if _, err := c.Marshal(7); err == nil {
		t.Error("something that is no message was marshalled")
	}
}

func TestResourceLargerThanAResponseIsRefused(t *testing.T) {
	msg := &endpointv3.ClusterLoadAssignment{ClusterName: string(bytes.Repeat([]byte{'a'}, maxResponse))}
	if _, err := newEncoded(eds, "a.b", views.Version{}, "r", msg); err == nil {
		t.Error("a resource that fits in no response was encoded")
	}
}

func BenchmarkDeltaResponseOfOneResource(b *testing.B) {
	e, err := newEncoded(eds, "a.b", views.Version{Epoch: 1, Seq: 2}, "r", &endpointv3.ClusterLoadAssignment{ClusterName: "a.b"})
	if err != nil {
		b.Fatal(err)
	}
	res := []*encoded{e}
	b.ReportAllocs()
	for b.Loop() {
		deltaResponse(eds, "0123456789ab", res, nil, "server-1")
	}
}
