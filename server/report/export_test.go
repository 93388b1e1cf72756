package report

import (
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
)

// Codec is the codec that ServerOption sets.
func Codec() encoding.CodecV2 { return codec{ordinary: encoding.GetCodecV2(grpcproto.Name)} }
