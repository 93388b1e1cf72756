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

// fields calls do for every field of a message; values that are not
// length-delimited come as nil.
func fields(b []byte, do func(n protowire.Number, v []byte) error) error {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return errWire
		}
		b = b[size:]
		var v []byte
		if kind == protowire.BytesType {
			v, size = protowire.ConsumeBytes(b)
		} else {
			size = protowire.ConsumeFieldValue(n, kind, b)
		}
		if size < 0 {
			return errWire
		}
		b = b[size:]
		if err := do(n, v); err != nil {
			return err
		}
	}
	return nil
}

// readResponse takes a DeltaDiscoveryResponse apart, down to the address of
// every endpoint. What it returns lives in b.
func readResponse(b []byte, r *responseRead) error {
	*r = responseRead{assigned: r.assigned[:0]}
	return fields(b, func(n protowire.Number, v []byte) error {
		switch n {
		case 2:
			return readResource(v, r)
		case 5:
			r.nonce = v
		case 6:
			r.removed++
		}
		return nil
	})
}

func readResource(b []byte, r *responseRead) error {
	return fields(b, func(n protowire.Number, v []byte) error {
		if n != 2 { // Resource.resource
			return nil
		}
		return fields(v, func(n protowire.Number, v []byte) error {
			if n != 2 { // Any.value
				return nil
			}
			a := assigned{bytes: len(v)}
			err := readAssignment(v, &a)
			r.assigned = append(r.assigned, a)
			return err
		})
	})
}

func readAssignment(b []byte, a *assigned) error {
	return fields(b, func(n protowire.Number, v []byte) error {
		switch n {
		case 1:
			a.name = string(v)
		case 2: // LocalityLbEndpoints
			return fields(v, func(n protowire.Number, v []byte) error {
				if n != 2 { // lb_endpoints
					return nil
				}
				return readEndpoint(v, a)
			})
		}
		return nil
	})
}

// readEndpoint reads LbEndpoint.endpoint.address.socket_address.address, and
// walks over the rest.
func readEndpoint(b []byte, a *assigned) error {
	a.endpoints++
	return fields(b, func(n protowire.Number, v []byte) error {
		if n != 1 {
			return nil
		}
		return fields(v, func(_ protowire.Number, v []byte) error {
			return fields(v, func(_ protowire.Number, v []byte) error {
				return fields(v, func(n protowire.Number, v []byte) error {
					if n == 2 {
						a.note(v)
					}
					return nil
				})
			})
		})
	})
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
