package report

import (
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

// ServerOption makes a gRPC server decode callers' outcomes into columns that
// each stream uses again: at 1.2 million counts a second the generated messages
// would cost more than judging. Other messages of the server are not affected;
// ReportOutcomes needs it.
func ServerOption() grpc.ServerOption {
	return grpc.ForceServerCodecV2(codec{ordinary: encoding.GetCodecV2(grpcproto.Name)})
}

// codec hands an outcomeFrame its bytes; everything else is ordinary proto.
type codec struct{ ordinary encoding.CodecV2 }

// Name is that of the ordinary codec: on the wire there is no difference.
func (codec) Name() string { return grpcproto.Name }

// Marshal is the ordinary codec's.
func (c codec) Marshal(v any) (mem.BufferSlice, error) { return c.ordinary.Marshal(v) }

// Unmarshal hands an outcomeFrame its bytes, which are the transport's again
// when it returns.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*outcomeFrame)
	if !ok {
		return c.ordinary.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return f.decode(buf.ReadOnlyData())
}

// Field numbers of ReportOutcomesRequest, and of OutcomeBatch by column.
const (
	frameBind  = 1
	frameBatch = 2

	batchInterval = 1

	columnInstance   = 2
	columnReporter   = 3
	columnIssued     = 4
	columnOK         = 5
	columnFailed     = 6
	columnRefused    = 7
	columnInProgress = 8
	columns          = 9
)

// outcomeFrame is one ReportOutcomesRequest, decoded as the generated code
// would, into memory that the next frame uses again.
type outcomeFrame struct {
	limit int // bytes; a longer frame is only measured

	size  int
	kind  int // frameBind, frameBatch, 0: neither
	bind  healthv1.OutcomeBind
	given bool // the batch has an interval
	// seconds and nanos are the interval's.
	seconds int64
	nanos   int32
	column  [columns][]uint32
}

// decode takes a frame's bytes and keeps none of them.
func (f *outcomeFrame) decode(b []byte) error {
	f.size, f.kind = len(b), 0
	if len(b) > f.limit {
		return nil
	}
	for len(b) > 0 {
		num, typ, n := consumeTag(b)
		if n < 0 {
			return malformed(n)
		}
		b = b[n:]
		if typ == protowire.BytesType && (num == frameBind || num == frameBatch) {
			content, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return malformed(n)
			}
			if err := f.part(int(num), content); err != nil {
				return err
			}
			b = b[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return malformed(n)
		}
		b = b[n:]
	}
	return nil
}

// part takes one of the two kinds of content. The last kind of a frame counts,
// and parts of one kind add up, as for every oneof of messages.
func (f *outcomeFrame) part(kind int, content []byte) error {
	if f.kind != kind {
		f.reset()
		f.kind = kind
	}
	if kind == frameBind {
		if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(content, &f.bind); err != nil {
			return fmt.Errorf("bind: %w", err)
		}
		return nil
	}
	return f.batch(content)
}

func (f *outcomeFrame) reset() {
	proto.Reset(&f.bind)
	f.given, f.seconds, f.nanos = false, 0, 0
	for i := range f.column {
		if cap(f.column[i]) > keptEntries {
			f.column[i] = nil
		}
		f.column[i] = f.column[i][:0]
	}
}

// keptEntries is the longest column of which a stream keeps the memory: one
// frame that is all one column must not cost more for as long as it is open.
const keptEntries = 8 << 10

func (f *outcomeFrame) batch(b []byte) error {
	for len(b) > 0 {
		num, typ, n := consumeTag(b)
		if n < 0 {
			return malformed(n)
		}
		b = b[n:]
		var err error
		switch isColumn := num >= columnInstance && num <= columnInProgress; {
		case isColumn && typ == protowire.BytesType:
			n, err = f.packed(int(num), b)
		case isColumn && typ == protowire.VarintType:
			var v uint64
			if v, n = protowire.ConsumeVarint(b); n >= 0 {
				f.column[num] = append(f.column[num], uint32(v))
			}
		case num == batchInterval && typ == protowire.BytesType:
			var d []byte
			if d, n = protowire.ConsumeBytes(b); n >= 0 {
				err = f.interval(d)
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if err != nil {
			return err
		}
		if n < 0 {
			return malformed(n)
		}
		b = b[n:]
	}
	return nil
}

// packed appends a packed list to a column, and returns how many bytes of b it
// takes, below zero for what protowire.ParseError names.
func (f *outcomeFrame) packed(column int, b []byte) (int, error) {
	list, whole := protowire.ConsumeBytes(b)
	if whole < 0 {
		return whole, nil
	}
	// No list holds more numbers than bytes.
	col := slices.Grow(f.column[column], len(list))
	n := len(col)
	col = col[:n+len(list)]
	for i := 0; i < len(list); {
		// Counts of 2 s are small: one byte mostly, hardly ever three.
		v := uint32(list[i])
		i++
		if v >= 0x80 {
			if i < len(list) && list[i] < 0x80 {
				v = v&0x7f | uint32(list[i])<<7
				i++
			} else {
				wide, size := protowire.ConsumeVarint(list[i-1:])
				if size < 0 {
					return 0, malformed(size)
				}
				v, i = uint32(wide), i-1+size
			}
		}
		col[n] = v
		n++
	}
	f.column[column] = col[:n]
	return whole, nil
}

// interval takes a google.protobuf.Duration.
func (f *outcomeFrame) interval(b []byte) error {
	f.given = true
	for len(b) > 0 {
		num, typ, n := consumeTag(b)
		if n < 0 {
			return malformed(n)
		}
		b = b[n:]
		if typ == protowire.VarintType && (num == 1 || num == 2) {
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return malformed(n)
			}
			if num == 1 {
				f.seconds = int64(v)
			} else {
				f.nanos = int32(v)
			}
			b = b[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return malformed(n)
		}
		b = b[n:]
	}
	return nil
}

// length is the batch's interval; not ok: it has none that is above zero, or
// one that is no duration.
func (f *outcomeFrame) length() (time.Duration, bool) {
	switch {
	case !f.given, f.seconds < 0, f.nanos < 0, f.nanos >= 1e9, f.seconds >= math.MaxInt64/int64(time.Second):
		return 0, false
	}
	d := time.Duration(f.seconds)*time.Second + time.Duration(f.nanos)
	return d, d > 0
}

// consumeTag is protowire.ConsumeTag, which lets numbers pass that no field may have.
func consumeTag(b []byte) (protowire.Number, protowire.Type, int) {
	num, typ, n := protowire.ConsumeTag(b)
	if n >= 0 && num > protowire.MaxValidNumber {
		n = badNumber
	}
	return num, typ, n
}

// badNumber is what protowire.ParseError calls an invalid field number.
const badNumber = -2

func malformed(n int) error { return fmt.Errorf("an outcome frame: %w", protowire.ParseError(n)) }
