package main

import (
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// deltaMethod is the RPC that every side serves.
const deltaMethod = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

const endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

// deltaStream describes the RPC to grpc.
func deltaStream() *grpc.StreamDesc {
	return &grpc.StreamDesc{StreamName: "DeltaAggregatedResources", ServerStreams: true, ClientStreams: true}
}

// bytesCodec passes bytes through, so that neither the clients nor the raw
// baseline pay for messages that they read or write by hand.
type bytesCodec struct{}

var _ encoding.CodecV2 = bytesCodec{}

// Name is that of the ordinary codec: on the wire there is no difference.
func (bytesCodec) Name() string { return "proto" }

// Marshal takes a mem.BufferSlice as it is.
func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(mem.BufferSlice)
	if !ok {
		return nil, errors.New("bytesCodec: only a mem.BufferSlice can be sent")
	}
	return b, nil
}

// Unmarshal hands the bytes to a function, which must not keep them.
func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	read, ok := v.(func([]byte) error)
	if !ok {
		return errors.New("bytesCodec: messages are received into a function")
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	return read(b.ReadOnlyData())
}

// assigned is what a client reads in one assignment.
type assigned struct {
	name           string
	endpoints      int
	oldest, newest int // numbers of the members' addresses
	bytes          int
}

// responseRead is a delta response as a client reads it.
type responseRead struct {
	nonce    []byte
	removed  int
	assigned []assigned
}

var errWire = errors.New("a field of a response does not parse")

// cursor walks over the fields of a message.
type cursor struct {
	rest []byte
	bad  bool // a field did not parse; there is nothing after it
}

// next returns the number and the value of the next field; a value that is not
// length-delimited comes as nil. It returns 0 at the end.
func (c *cursor) next() (protowire.Number, []byte) {
	if len(c.rest) == 0 || c.bad {
		return 0, nil
	}
	// Nearly every field has a tag and a length of one byte each.
	if b := c.rest; len(b) > 1 && b[0] < 0x80 && b[0]&7 == byte(protowire.BytesType) && b[0] >= 8 && b[1] < 0x80 {
		if n := 2 + int(b[1]); n <= len(b) {
			c.rest = b[n:]
			return protowire.Number(b[0] >> 3), b[2:n:n]
		}
	}
	n, kind, size := protowire.ConsumeTag(c.rest)
	if size < 0 {
		c.bad = true
		return 0, nil
	}
	c.rest = c.rest[size:]
	var v []byte
	if kind == protowire.BytesType {
		v, size = protowire.ConsumeBytes(c.rest)
	} else {
		size = protowire.ConsumeFieldValue(n, kind, c.rest)
	}
	if size < 0 {
		c.bad = true
		return 0, nil
	}
	c.rest = c.rest[size:]
	return n, v
}

// err is an error if the walk ended early.
func (c *cursor) err() error {
	if c.bad {
		return errWire
	}
	return nil
}

// readResponse takes a DeltaDiscoveryResponse apart, down to the address of
// every endpoint. What it returns lives in b.
func readResponse(b []byte, r *responseRead) error {
	*r = responseRead{assigned: r.assigned[:0]}
	c := cursor{rest: b}
	for n, v := c.next(); n != 0; n, v = c.next() {
		switch n {
		case 2:
			if err := readResource(v, r); err != nil {
				return err
			}
		case 5:
			r.nonce = v
		case 6:
			r.removed++
		}
	}
	return c.err()
}

// readResource reads Resource.resource.value.
func readResource(b []byte, r *responseRead) error {
	c := cursor{rest: b}
	for n, v := c.next(); n != 0; n, v = c.next() {
		if n != 2 {
			continue
		}
		body := cursor{rest: v}
		for n, v := body.next(); n != 0; n, v = body.next() {
			if n != 2 {
				continue
			}
			a := assigned{bytes: len(v)}
			if err := readAssignment(v, &a); err != nil {
				return err
			}
			r.assigned = append(r.assigned, a)
		}
		if body.bad {
			return errWire
		}
	}
	return c.err()
}

func readAssignment(b []byte, a *assigned) error {
	c := cursor{rest: b}
	for n, v := c.next(); n != 0; n, v = c.next() {
		switch n {
		case 1:
			a.name = string(v)
		case 2: // endpoints
			locality := cursor{rest: v}
			for n, v := locality.next(); n != 0; n, v = locality.next() {
				if n == 2 && !readEndpoint(v, a) { // lb_endpoints
					return errWire
				}
			}
			if locality.bad {
				return errWire
			}
		}
	}
	return c.err()
}

// readEndpoint reads LbEndpoint.endpoint.address.socket_address.address, and
// walks over what is beside it.
func readEndpoint(b []byte, a *assigned) bool {
	a.endpoints++
	ok := true
	for _, field := range [...]protowire.Number{1, 1, 1, 2} {
		var inner []byte
		c := cursor{rest: b}
		for n, v := c.next(); n != 0; n, v = c.next() {
			if n == field {
				inner = v
			}
		}
		b, ok = inner, ok && !c.bad
	}
	a.note(b)
	return ok
}

func (a *assigned) note(address []byte) {
	number, ok := numberOf(address)
	if !ok {
		return
	}
	if a.endpoints == 1 || number < a.oldest {
		a.oldest = number
	}
	a.newest = max(a.newest, number)
}

// check reads a response with the generated types, and compares.
func check(b []byte, r *responseRead) error {
	var whole discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(b, &whole); err != nil {
		return err
	}
	if len(whole.Resources) != len(r.assigned) {
		return errors.New("the two readings of a response differ in the number of its resources")
	}
	for i, res := range whole.Resources {
		var cla endpointv3.ClusterLoadAssignment
		if err := res.Resource.UnmarshalTo(&cla); err != nil {
			return err
		}
		count := 0
		for _, l := range cla.Endpoints {
			count += len(l.LbEndpoints)
		}
		if cla.ClusterName != r.assigned[i].name || count != r.assigned[i].endpoints {
			return errors.New("the two readings of an assignment differ")
		}
	}
	return nil
}

// firstRequest is a client's subscription, as an Envoy sends it.
func firstRequest(node string, names []string) ([]byte, error) {
	return proto.Marshal(&discoveryv3.DeltaDiscoveryRequest{
		Node:                   envoyNode(node),
		TypeUrl:                endpointType,
		ResourceNamesSubscribe: names,
	})
}

// appendAck appends the acknowledgement of a response: type and nonce, as Envoy
// sends it with set_node_on_first_message_only.
func appendAck(b, nonce []byte) []byte {
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendString(b, endpointType)
	b = protowire.AppendTag(b, 6, protowire.BytesType)
	return protowire.AppendBytes(b, nonce)
}
