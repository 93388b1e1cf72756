package xds

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sightlinedev/sightline/interop/harness"
)

// Stock grpc-go clients keep their file watchers for the life of the process;
// they are not ours to stop.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(harness.LeftByGRPC))
}
