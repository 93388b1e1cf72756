package server

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/views"
)

// Whoever has no identity may knock from as many addresses as it likes: what
// callers with one are refused is logged all the same, each method by itself.
func TestStrangersSilenceNobody(t *testing.T) {
	var log strings.Builder
	r := newReporter(slog.New(slog.NewTextHandler(&log, nil)), "1.2.3", "", func() *views.Snapshot { return views.NewSnapshot(true) })
	for i := range 2 * maxSparseKeys {
		r.handshake("api", &net.TCPAddr{IP: net.IPv4(10, byte(i>>16), byte(i>>8), byte(i)), Port: 1}, io.EOF)
	}
	knocks := strings.Count(log.String(), "handshake failed")
	if knocks != maxSparseKeys {
		t.Errorf("%d handshakes are logged", knocks)
	}
	log.Reset()
	refused := r.guardEvents().refused
	who := identity.Principal{ID: identity.MustParse("spiffe://prod.example/ns/shop/sa/web")}
	for range 3 {
		for _, m := range []string{"ListServices", "ReleaseQuarantine"} {
			refused("/sightline/"+m, who, "denied", "class workload may not call it")
		}
		refused("/made/up", who, "unknown", "no row for the method")
		refused(fmt.Sprintf("/made/%p", &log), who, "unknown", "no row for the method")
	}
	got := log.String()
	if strings.Count(got, "call refused") != 3 || !strings.Contains(got, "ReleaseQuarantine") || !strings.Contains(got, "ListServices") {
		t.Errorf("logged:\n%s", got)
	}
}
