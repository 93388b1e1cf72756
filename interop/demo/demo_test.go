package demo

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/interop/harness"
)

// offsets of all ports that the demo uses, from its port base.
func offsets() []int {
	out := []int{0, 1, 53, 80, 90, 91}
	for i := range 48 {
		out = append(out, 100+i)
	}
	return out
}

// start runs the demo with a home and a temporary folder of its own.
func start(t *testing.T, args ...string) (p *harness.Process, tmp, config string) {
	t.Helper()
	dir := t.TempDir()
	tmp, config = filepath.Join(dir, "tmp"), filepath.Join(dir, "config")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	env := []string{"TMPDIR=" + tmp, "XDG_CONFIG_HOME=" + config, "SIGHTLINE_ENVOY=" + harness.EnvoyBinary(t)}
	args = append([]string{"demo", "--port-base", strconv.Itoa(harness.FreeBlock(t, offsets()...))}, args...)
	return harness.Start(t, "demo", harness.SightlineBinary(t), env, args...), tmp, config
}

// left fails the test when the demo left state or a context behind.
func left(t *testing.T, tmp, config string) {
	t.Helper()
	if files, err := os.ReadDir(tmp); err != nil || len(files) != 0 {
		t.Errorf("state is left: %v, %v", files, err)
	}
	if files, _ := filepath.Glob(filepath.Join(config, "sightline", "contexts", "*")); len(files) != 0 {
		t.Errorf("contexts are left: %v", files)
	}
}

// TestTour plays the whole tour: a crash, the guard, an outage of the control
// plane, and the agreement of all surfaces. Every claim holds.
func TestTour(t *testing.T) {
	p, tmp, config := start(t, "--scenario", "tour", "--assert", "--exit")
	code, ended := p.Wait(3 * time.Minute)
	if !ended || code != 0 {
		t.Fatalf("the tour ended %v with %d", ended, code)
	}
	out := p.Output()
	for _, claim := range []string{
		"5 callers", "was killed (SIGKILL)", "out of 5 of 5 callers' sets", "listed again by 5 of 5 callers", "all stay listed",
		"every caller still holds all 4", "calls during its absence, 0 failed", "all 5 callers follow again", "no version went back",
		"no call failed from the kill", "agree on every set", "no caller ever saw a version go back or a set go empty",
	} {
		if !strings.Contains(out, claim) {
			t.Errorf("no claim %q", claim)
		}
	}
	if strings.Contains(out, "FAILED") {
		t.Error("a claim failed")
	}
	left(t, tmp, config)
}

// TestScenarios plays every scenario about verdicts. Each has a cast of its own,
// and every claim holds.
func TestScenarios(t *testing.T) {
	for name, claims := range map[string][]string{
		"grey":       {"withdrawn on its callers' word", "out of all 5 callers' sets", "tried at weight", "no relapse"},
		"baddeploy":  {"none of the 5 entered", "the guard did not trip", "every caller still holds the 4 old ones", "enters at its first good evidence"},
		"zonedead":   {"of the traffic", "the 8 instances of the other zones stay at full weight", "all 12 are eligible again"},
		"flap":       {"quarantined at its fifth change", "the other 3 serve", "released, it is listed again"},
		"blind":      {"4 of 4 are unknown, and 4 are listed", "are counted", "every caller still holds all 4", "all 4 are eligible again"},
		"dependency": {"all 4 are degraded at half weight", "every caller still holds all 4", "have their whole weight again"},
		"ramp":       {"7 steps to full weight", "no caller reconnected to the others", "agree on every set"},
	} {
		t.Run(name, func(t *testing.T) {
			p, tmp, config := start(t, "--scenario", name, "--assert", "--exit", "--speed", "2")
			code, ended := p.Wait(6 * time.Minute)
			if !ended || code != 0 {
				t.Fatalf("it ended %v with %d:\n%s", ended, code, p.Output())
			}
			out := p.Output()
			for _, claim := range append(claims, "no caller ever saw a version go back or a set go empty") {
				if !strings.Contains(out, claim) {
					t.Errorf("no claim %q", claim)
				}
			}
			if strings.Contains(out, "FAILED") {
				t.Error("a claim failed")
			}
			left(t, tmp, config)
		})
	}
}

// TestInterruptedWhileStarting ends at once and leaves nothing.
func TestInterruptedWhileStarting(t *testing.T) {
	p, tmp, config := start(t)
	harness.Eventually(t, 10*time.Second, "the demo has begun", func() error {
		files, err := filepath.Glob(filepath.Join(tmp, "sightline-demo-*", "log", "*.log"))
		if err == nil && len(files) == 0 {
			err = os.ErrNotExist
		}
		return err
	})
	p.Signal(syscall.SIGINT)
	if code, ended := p.Wait(20 * time.Second); !ended || code != 0 {
		t.Errorf("it ended %v with %d", ended, code)
	}
	left(t, tmp, config)
}

// TestPortTaken names the port and the flag, and starts nothing.
func TestPortTaken(t *testing.T) {
	s := harness.StartServer(t, harness.ServerConfig{})
	_, port, _ := strings.Cut(s.XDS, ":")
	out, code := harness.Run(t, 20*time.Second, []string{"TMPDIR=" + t.TempDir(), "XDG_CONFIG_HOME=" + t.TempDir()},
		harness.SightlineBinary(t), "demo", "--port-base", port)
	if code != 1 || out != "" {
		t.Errorf("ended with %d: %s", code, out)
	}
}
