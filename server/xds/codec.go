package xds

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/views"
)

// Field numbers of the messages that are framed here by hand, so that the bytes
// of a resource are copied into no response. Their order in a message is ours:
// protobuf gives it no meaning.
const (
	anyTypeURL = 1 // google.protobuf.Any
	anyValue   = 2

	resourceVersion = 1 // envoy.service.discovery.v3.Resource
	resourceAny     = 2
	resourceTitle   = 3

	versionInfo      = 1 // DiscoveryResponse; DeltaDiscoveryResponse: system_version_info
	resourcesEntry   = 2 // of both responses
	typeURLField     = 4 // of both responses
	nonceField       = 5 // of both responses
	sotwIdentifier   = 6 // DiscoveryResponse.control_plane
	removedEntry     = 6 // DeltaDiscoveryResponse.removed_resources
	deltaIdentifier  = 7 // DeltaDiscoveryResponse.control_plane
	identifierInside = 1 // ControlPlane.identifier
)

// newEncoded encodes msg once, for both framings. The error says that the
// message cannot be encoded or is larger than a response may be.
func newEncoded(t typ, name string, at views.Version, render string, msg proto.Message) (*encoded, error) {
	value, err := marshal(msg)
	if err != nil {
		return nil, fmt.Errorf("%s %s cannot be encoded: %w", t, name, err)
	}
	return frame(t, name, at, render, value)
}

// frame wraps an encoded message for both framings.
func frame(t typ, name string, at views.Version, render string, value []byte) (*encoded, error) {
	e := &encoded{name: name, at: at, render: render}
	inner := stringSize(anyTypeURL, len(t.url())) + stringSize(anyValue, len(value))
	whole := stringSize(resourceAny, inner)
	head := e.header(whole)
	b := append(make([]byte, 0, len(head)+whole), head...)
	b = protowire.AppendTag(b, resourceAny, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(inner))
	b = appendString(b, anyTypeURL, t.url())
	b = appendString(b, anyValue, value)
	if len(b) > maxResponse-responseRoom {
		limit := "XDS.ResponseBytes"
		if t == eds {
			limit = "XDS.AssignmentBytes"
		}
		return nil, fmt.Errorf("%s %s is %d bytes long, over the limit %s (%d): gRPC clients could not receive it", t, name, len(b), limit, maxResponse-responseRoom)
	}
	e.hold(b, len(head))
	return e, nil
}

// hold takes the bytes of an entry, whose header is head bytes long.
func (e *encoded) hold(b []byte, head int) {
	e.delta, e.any = b, b[head:]
	e.deltaPart, e.anyPart = mem.SliceBuffer(e.delta), mem.SliceBuffer(e.any)
}

// responseRoom is kept free for what a response holds beside its one resource.
const responseRoom = 1 << 10

// withAt returns the same resource under another version.
func (e *encoded) withAt(at views.Version) *encoded {
	if e.at == at {
		return e
	}
	next := &encoded{name: e.name, at: at, render: e.render}
	head := next.header(len(e.any))
	next.hold(append(append(make([]byte, 0, len(head)+len(e.any)), head...), e.any...), len(head))
	return next
}

// header is what comes before the Any in an entry of a delta response; anySize
// is the size of the Any with its tag.
func (e *encoded) header(anySize int) []byte {
	version := e.version()
	inner := stringSize(resourceTitle, len(e.name)) + stringSize(resourceVersion, len(version)) + anySize
	b := make([]byte, 0, 2*protowire.SizeVarint(uint64(inner))+inner-anySize)
	b = protowire.AppendTag(b, resourcesEntry, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(inner))
	b = appendString(b, resourceTitle, e.name)
	return appendString(b, resourceVersion, version)
}

// response is one framed answer: its own few bytes, and those of the resources,
// which it shares. It is sent once, by one stream.
type response struct {
	parts mem.BufferSlice
	few   [2]mem.Buffer // where parts are, while they are few
}

func newResponse(own []byte, resources int) *response {
	r := &response{}
	r.parts = r.few[:0]
	if resources >= len(r.few) {
		r.parts = make(mem.BufferSlice, 0, 1+resources)
	}
	r.parts = append(r.parts, mem.SliceBuffer(own))
	return r
}

// size is the number of bytes on the wire, gRPC's own framing aside.
func (r *response) size() int { return r.parts.Len() }

// deltaResponse frames a DeltaDiscoveryResponse.
func deltaResponse(t typ, nonce string, res []*encoded, removed []string, controlPlane string) *response {
	size := stringSize(typeURLField, len(t.url())) + stringSize(nonceField, len(nonce)) + identifierSize(deltaIdentifier, controlPlane)
	for _, n := range removed {
		size += stringSize(removedEntry, len(n))
	}
	b := appendString(make([]byte, 0, size), typeURLField, t.url())
	b = appendString(b, nonceField, nonce)
	b = appendIdentifier(b, deltaIdentifier, controlPlane)
	for _, n := range removed {
		b = appendString(b, removedEntry, n)
	}
	r := newResponse(b, len(res))
	for _, e := range res {
		r.parts = append(r.parts, e.deltaPart)
	}
	return r
}

// sotwResponse frames a DiscoveryResponse.
func sotwResponse(t typ, version, nonce string, res []*encoded, controlPlane string) *response {
	size := stringSize(versionInfo, len(version)) + stringSize(typeURLField, len(t.url())) +
		stringSize(nonceField, len(nonce)) + identifierSize(sotwIdentifier, controlPlane)
	b := appendString(make([]byte, 0, size), versionInfo, version)
	b = appendString(b, typeURLField, t.url())
	b = appendString(b, nonceField, nonce)
	b = appendIdentifier(b, sotwIdentifier, controlPlane)
	r := newResponse(b, len(res))
	for _, e := range res {
		r.parts = append(r.parts, e.anyPart)
	}
	return r
}

func stringSize(field protowire.Number, n int) int {
	return protowire.SizeTag(field) + protowire.SizeBytes(n)
}

func appendString[T string | []byte](b []byte, field protowire.Number, s T) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(s)))
	return append(b, s...)
}

func identifierSize(field protowire.Number, id string) int {
	if id == "" {
		return 0
	}
	return stringSize(field, stringSize(identifierInside, len(id)))
}

func appendIdentifier(b []byte, field protowire.Number, id string) []byte {
	if id == "" {
		return b
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(stringSize(identifierInside, len(id))))
	return appendString(b, identifierInside, id)
}

// ServerOption makes a gRPC server share the bytes of resources between
// streams. Services other than xDS on the same server are not affected.
func ServerOption() grpc.ServerOption {
	return grpc.ForceServerCodecV2(codec{ordinary: encoding.GetCodecV2(grpcproto.Name)})
}

// codec passes framed responses through and hands requests their bytes;
// everything else is ordinary proto.
type codec struct{ ordinary encoding.CodecV2 }

// Name is that of the ordinary codec: on the wire there is no difference.
func (codec) Name() string { return grpcproto.Name }

// Marshal returns the parts of a framed response without copying them.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*response); ok {
		return r.parts, nil
	}
	return c.ordinary.Marshal(v)
}

// Unmarshal hands a wireMessage its bytes, which are the transport's again when
// it returns.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(wireMessage)
	if !ok {
		return c.ordinary.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return m.readWire(buf.ReadOnlyData())
}

// marshal encodes a message so that equal messages give equal bytes.
func marshal(msg proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(msg)
}
