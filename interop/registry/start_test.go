package registry

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
)

// A port that is taken ends the start, and the message names the flag.
func TestTakenPortNamesItsFlag(t *testing.T) {
	t.Parallel()
	ca := harness.NewCA(t, "test")
	id := ca.Mint(t, "/sightline/server/test")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	for name, c := range map[string]struct{ flag, addr string }{
		"xDS": {"--xds-listen", taken.Addr().String()}, "API": {"--api-listen", taken.Addr().String()},
		"HTTP": {"--http-listen", taken.Addr().String()}, "DNS over TCP": {"--dns-listen", taken.Addr().String()},
		"DNS over UDP": {"--dns-listen", udp.LocalAddr().String()},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"server", "--data", t.TempDir(), "--dns-zone", "sightline.test.", "--svid", id.CertFile, "--svid-key", id.KeyFile, "--bundle", id.BundleFile}
			for _, flag := range []string{"--xds-listen", "--api-listen", "--http-listen", "--dns-listen"} {
				addr := "127.0.0.1:0"
				if flag == c.flag {
					addr = c.addr
				}
				args = append(args, flag, addr)
			}
			refusesToStart(t, []string{c.flag, c.addr}, args...)
		})
	}
	t.Run("dev", func(t *testing.T) {
		base := harness.FreeBlock(t, 0, 1, 53, 80)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", itoa(base+1)))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		refusesToStart(t, []string{"--port-base", itoa(base + 1)}, "dev", "--no-context", "--data", t.TempDir(), "--port-base", itoa(base))
	})
}

// What must not start says what is missing.
func TestServerRefusesWhatIsNotSafe(t *testing.T) {
	t.Parallel()
	ca := harness.NewCA(t, "test")
	id := ca.Mint(t, "/sightline/server/test")
	files := []string{"--svid", id.CertFile, "--svid-key", id.KeyFile, "--bundle", id.BundleFile, "--dns-zone", "sightline.test."}
	dir := t.TempDir()
	for name, c := range map[string]struct {
		says []string
		args []string
	}{
		"no identity":                    {[]string{"--svid", "--bundle"}, []string{"server", "--data", dir, "--dns-zone", "sightline.test."}},
		"no data folder":                 {[]string{"--data"}, append([]string{"server"}, files...)},
		"no zone":                        {[]string{"--dns-zone"}, append([]string{"server", "--data", dir}, files[:6]...)},
		"an open address without policy": {[]string{"--xds-listen", "policy"}, append([]string{"server", "--data", dir, "--xds-listen", "0.0.0.0:0"}, files...)},
		"dev on an open address":         {[]string{"--api-listen", "loopback"}, []string{"dev", "--no-context", "--data", dir, "--api-listen", "0.0.0.0:0"}},
		"a key that is not there":        {[]string{"nowhere.key"}, append(append([]string{"server", "--data", dir}, files...), "--svid-key", filepath.Join(dir, "nowhere.key"))},
	} {
		t.Run(name, func(t *testing.T) { refusesToStart(t, c.says, c.args...) })
	}
}

// refusesToStart runs the binary, which must end at once with a message that
// holds all the words.
func refusesToStart(t *testing.T, words []string, args ...string) {
	t.Helper()
	p := harness.Start(t, "sightline "+args[0], harness.SightlineBinary(t), nil, args...)
	code, ended := p.Wait(20 * time.Second)
	if !ended || code == 0 {
		t.Fatalf("exit code %d, ended: %t: %s", code, ended, p.Output())
	}
	for _, word := range words {
		if !strings.Contains(p.Output(), word) {
			t.Errorf("the message does not name %q: %s", word, p.Output())
		}
	}
	if strings.Contains(p.Output(), "panic") || strings.Contains(p.Output(), "goroutine ") {
		t.Errorf("it crashed: %s", p.Output())
	}
}
