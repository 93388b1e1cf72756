package status_test

import (
	"testing"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	sl "github.com/sightlinedev/sightline/server/status"
)

// TestOneAnswerIsAlwaysTheSameBytes: unknown and forbidden are one answer, and
// the order in which a map happens to be written must not tell two apart.
func TestOneAnswerIsAlwaysTheSameBytes(t *testing.T) {
	first := ""
	for range 100 {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(status.Convert(sl.Hidden("service", "shop/checkout")).Proto())
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(raw)
		}
		if string(raw) != first {
			t.Fatal("the same answer came in other bytes")
		}
	}
}
