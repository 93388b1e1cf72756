package xds

import (
	"testing"

	"go.uber.org/goleak"
)

// grpc-go's clients do not close the providers of a bootstrap's certificates.
const providers = "google.golang.org/grpc/credentials/tls/certprovider/pemfile.(*watcher).run"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(providers)) }
