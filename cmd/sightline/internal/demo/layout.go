package demo

import (
	"path/filepath"
	"strconv"

	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/identity/svid"
)

const (
	trustDomain = "demo.test"
	namespace   = "shop"
	zoneApex    = "sightline.test."
)

// layout says where everything is: ports and files follow from two values.
type layout struct {
	base int    // first port (--port-base)
	dir  string // state of this run
}

// Port offsets; those of the server are the development defaults (NAMES.md).
const (
	portXDS      = 0
	portAPI      = 1
	portDNS      = 53
	portHTTP     = 80
	portEnvoy    = 90 // Envoy's outbound listener
	portAdmin    = 91 // Envoy's admin page
	portInstance = 100
	// portsPerService is how many instances a service may have.
	portsPerService = 16
)

func (l layout) addr(offset int) string { return "127.0.0.1:" + strconv.Itoa(l.base+offset) }

func (l layout) instancePort(service, index int) int {
	return l.base + portInstance + service*portsPerService + index
}

func (l layout) identity(name string) svid.Files {
	return devca.FilesOf(filepath.Join(l.dir, "identity"), name)
}
