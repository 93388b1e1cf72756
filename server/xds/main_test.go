package xds

import (
	"testing"

	"go.uber.org/goleak"
)

// The stock grpc-go client of peers_test.go keeps its file watchers for the life
// of the process; they are not ours to stop.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("google.golang.org/grpc/credentials/tls/certprovider/pemfile.(*watcher).run"))
}
