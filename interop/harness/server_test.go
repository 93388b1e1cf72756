package harness

import (
	"net"
	"strings"
	"testing"
	"time"
)

// Both commands come up, believe the test's identities and nobody else's, and
// come back on the same ports after a crash.
func TestServerComesUpAndComesBack(t *testing.T) {
	for _, command := range []string{"dev", "server"} {
		t.Run(command, func(t *testing.T) {
			s := StartServer(t, ServerConfig{Command: command})
			if m := s.Metrics(t); !strings.Contains(m, "sightline_") {
				t.Errorf("metrics name nothing of ours: %.200s", m)
			}
			for _, at := range []string{s.XDS, s.API, s.DNS} {
				c, err := net.DialTimeout("tcp", at, 5*time.Second)
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
			}
			health := func(who *SVID) (string, int) {
				return RunGrpcurl(t, who, s.API, "{}", "grpc.health.v1.Health/Check")
			}
			if out, code := health(s.Operator(t)); code != 0 || !strings.Contains(out, "SERVING") {
				t.Errorf("operator: exit code %d, %q", code, out)
			}
			stranger := NewCA(t, s.CA.TrustDomain).Mint(t, "/sightline/operator/test")
			stranger.BundleFile = s.CA.BundleFile
			if _, code := health(stranger); code == 0 {
				t.Error("an identity of another authority was answered")
			}
			before := s.PID()
			s.Kill()
			if s.Running() {
				t.Error("runs after SIGKILL")
			}
			s.Restart(t)
			if out, code := health(s.Operator(t)); code != 0 || s.PID() == before {
				t.Errorf("after a crash: exit code %d, %q", code, out)
			}
		})
	}
}
