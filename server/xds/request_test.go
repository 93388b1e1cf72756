package xds

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func node() *corev3.Node {
	return &corev3.Node{
		Id: "n1", Cluster: "c", UserAgentName: "envoy", Locality: &corev3.Locality{Region: "r", Zone: "z"},
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{outboundKey: structpb.NewStringValue("127.0.0.1:16001"), "other": structpb.NewNumberValue(1)}},
	}
}

func deltaSeed() *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{
		Node: node(), TypeUrl: cds.url(), ResourceNamesSubscribe: []string{"a.b", "*"}, ResourceNamesUnsubscribe: []string{"c.d"},
		InitialResourceVersions: map[string]string{"a.b": "1.2-x", "e.f": ""}, ResponseNonce: "1-ff",
		ErrorDetail: &rpcstatus.Status{Code: 3, Message: "bad"},
	}
}

func sotwSeed() *discoveryv3.DiscoveryRequest {
	return &discoveryv3.DiscoveryRequest{
		Node: node(), VersionInfo: "1.2", TypeUrl: eds.url(), ResourceNames: []string{"a.b", "c.d"}, ResponseNonce: "7-1",
		ErrorDetail: &rpcstatus.Status{Code: 3, Message: "bad"},
	}
}

func marshalled(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// roomy is a limit that no request of a test reaches.
var roomy = requestLimit{names: 1 << 30, offered: 1 << 30}

func lists() *nameLists { return &nameLists{seed: maphash.MakeSeed()} }

func TestNodeIsRead(t *testing.T) {
	r := &request{wantNode: true, limit: roomy}
	if err := (deltaMessage{r}).readWire(marshalled(t, deltaSeed())); err != nil {
		t.Fatal(err)
	}
	want := clientNode{id: "n1", cluster: "c", userAgent: "envoy", region: "r", zone: "z", outbound: r.node.outbound}
	if *r.node != want || r.node.outbound.String() != "127.0.0.1:16001" {
		t.Errorf("read %+v", *r.node)
	}
}

// An acknowledgement that repeats the list of names allocates nothing but its nonce.
func TestAcknowledgementIsCheap(t *testing.T) {
	names := make([]string, 200)
	for i := range names {
		names[i] = strings.Repeat("s", i%50+1) + ".shop"
	}
	m := &discoveryv3.DiscoveryRequest{VersionInfo: "7.10", TypeUrl: eds.url(), ResourceNames: names, ResponseNonce: "12-abcdef01"}
	b := marshalled(t, m)
	r := &request{lists: lists(), limit: roomy}
	read := func() {
		if err := (sotwMessage{r}).readWire(b); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if len(r.names) != len(names) || r.same {
		t.Fatalf("read %d names", len(r.names))
	}
	if n := testing.AllocsPerRun(100, read); n > 3 || !r.same || !r.plain() {
		t.Errorf("%v allocations, same %t, plain %t", n, r.same, r.plain())
	}
	slices.Reverse(m.ResourceNames)
	b = marshalled(t, m)
	if read(); !r.same {
		t.Error("the same names in another order are another list")
	}
}

// Whatever the bytes: a request that ordinary proto reads is read alike, and
// nothing panics.
func FuzzDeltaRequest(f *testing.F) {
	f.Add(marshalled(f, deltaSeed()))
	f.Add(marshalled(f, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "x", ResponseNonce: "y"}))
	f.Add([]byte{0x0a, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &request{wantNode: true, limit: roomy}
		err := deltaMessage{r}.readWire(b)
		m := &discoveryv3.DeltaDiscoveryRequest{}
		if proto.Unmarshal(b, m) != nil || err != nil {
			return
		}
		if r.nonce != m.GetResponseNonce()[:min(len(m.GetResponseNonce()), maxNonce+1)] || r.failed != (m.ErrorDetail != nil) ||
			!slices.Equal(r.subscribe, m.ResourceNamesSubscribe) || !slices.Equal(r.unsubscribe, m.ResourceNamesUnsubscribe) {
			t.Errorf("read %+v of %v", r, m)
		}
		if short(m.InitialResourceVersions) && !maps.Equal(r.offered, m.InitialResourceVersions) {
			t.Errorf("offered %v of %v", r.offered, m.InitialResourceVersions)
		}
		checkType(t, r, m.GetTypeUrl())
	})
}

func short(m map[string]string) bool {
	for _, v := range m {
		if len(v) > maxName {
			return false
		}
	}
	return true
}

func checkType(t *testing.T, r *request, url string) {
	t.Helper()
	if i := slices.Index(typeURLs[:], url); i >= 0 && r.typ != typ(i) || i < 0 && r.typ != types {
		t.Errorf("type %d for %q", r.typ, url)
	}
}

func FuzzSotwRequest(f *testing.F) {
	f.Add(marshalled(f, sotwSeed()))
	f.Add(marshalled(f, &discoveryv3.DiscoveryRequest{TypeUrl: "x"}))
	f.Add([]byte{0x1a, 0x03, 'a', 'b'})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &request{wantNode: true, lists: lists(), limit: roomy}
		err := sotwMessage{r}.readWire(b)
		m := &discoveryv3.DiscoveryRequest{}
		if proto.Unmarshal(b, m) != nil || err != nil {
			return
		}
		checkType(t, r, m.GetTypeUrl())
		if r.typ != types && !slices.Equal(r.names, m.ResourceNames) || r.failed != (m.ErrorDetail != nil) {
			t.Errorf("read %+v of %v", r, m)
		}
		if err := (sotwMessage{r}).readWire(b); err != nil || r.typ != types && !r.same {
			t.Errorf("the same request again: %v, same %t", err, r.same)
		}
	})
}

// What is over a limit is not kept, and its presence is.
func TestReadingIsBounded(t *testing.T) {
	many := make([]string, 1000)
	offered := make(map[string]string)
	for i := range many {
		many[i] = strings.Repeat("s", i%50+1) + ".shop"
		offered[strings.Repeat("s", i%500)] = "1.1-x"
	}
	limit := requestLimit{names: 10, offered: 20}
	d := &request{limit: limit}
	b := marshalled(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: eds.url(), ResourceNamesSubscribe: many, ResourceNamesUnsubscribe: many, InitialResourceVersions: offered})
	if err := (deltaMessage{d}).readWire(b); err != nil || len(d.subscribe) != 11 || len(d.unsubscribe) != 11 || len(d.offered) != 21 {
		t.Errorf("kept %d, %d, %d (%v)", len(d.subscribe), len(d.unsubscribe), len(d.offered), err)
	}
	s := &request{lists: lists(), limit: limit}
	b = marshalled(t, &discoveryv3.DiscoveryRequest{TypeUrl: eds.url(), ResourceNames: many})
	if err := (sotwMessage{s}).readWire(b); err != nil || len(s.names) != 11 {
		t.Errorf("kept %d (%v)", len(s.names), err)
	}
}
