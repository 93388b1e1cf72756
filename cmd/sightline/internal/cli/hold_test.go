package cli

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/server"
)

// command is the command line in a process of its own.
type command struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}

	mu     sync.Mutex
	out    []string
	errOut bytes.Buffer
}

// start runs a command line in a process of its own, until the test's end.
func (w *world) start(args ...string) *command {
	w.t.Helper()
	c := &command{t: w.t.(*testing.T), cmd: exec.Command(os.Args[0], args...), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), asCommand+"=1")
	c.cmd.Stderr = &c.errOut
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.mu.Lock()
			c.out = append(c.out, lines.Text())
			c.mu.Unlock()
		}
		_ = c.cmd.Wait() // its exit code is read from the process state
	}()
	w.t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.done
	})
	return c
}

func (c *command) lines() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.out...)
}

// line waits for the n-th line of output, from 0.
func (c *command) line(n int) string {
	c.t.Helper()
	eventually(c.t, "output", func() error {
		if got := c.lines(); len(got) <= n {
			select {
			case <-c.done:
				c.t.Fatalf("it ended: %q\n%s", got, c.errOut.String())
			default:
			}
			return errNotYet
		}
		return nil
	})
	return c.lines()[n]
}

// end sends a signal and returns the exit code.
func (c *command) end(s syscall.Signal) int {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Fatalf("it does not end on %s: %q", s, c.lines())
	}
	return c.cmd.ProcessState.ExitCode()
}

const selfless = "apiVersion: sightline.dev/v1\nkind: Service\nmetadata: {namespace: shop, name: checkout}\n" +
	"spec: {ports: [{name: grpc, number: 8443, protocol: grpc}]}\n"

var uidOf = regexp.MustCompile(`as (i\d+),`)

// TestRegisterHoldsOverARestart registers, renews past the lease, takes the same
// uid up again after a restart of the server, and deregisters on interrupt.
func TestRegisterHoldsOverARestart(t *testing.T) {
	w := newWorld(t).serve(server.Config{})
	w.file("service.yaml", selfless)
	w.ok("apply", "-f", "{dir}/service.yaml")
	c := w.start("instance", "register", "shop/checkout", "--address", "127.0.0.1:9001", "--label", "one", "--zone", "a",
		"--lease", "5s", "--identity", "spiffe://sightline.test/ns/shop/sa/checkout")
	first := c.line(0)
	uid := uidOf.FindStringSubmatch(first)
	if uid == nil || !strings.Contains(first, "instance/shop/checkout/one registered as i") || !strings.Contains(first, "lease 5s") {
		t.Fatalf("said %q", first)
	}
	w.until("resolve shop/checkout", "127.0.0.1:9001")

	at := w.srv.Addrs()
	w.stop()
	w.serve(server.Config{Data: filepath.Join(w.dir, "data"), APIListen: at.API.String()})
	again := c.line(1)
	if got := uidOf.FindStringSubmatch(again); got == nil || got[1] != uid[1] || !strings.Contains(again, "held again") {
		t.Errorf("after the restart: %q, first %q", again, first)
	}
	w.until("resolve shop/checkout", "eligible")
	if out := w.ok("instance", "list", "--no-headers"); strings.Count(out, "\n") != 1 || !strings.Contains(out, uid[1]) {
		t.Errorf("instances:\n%s", out)
	}
	time.Sleep(6 * time.Second) // longer than the lease: only renewals keep it
	if out := w.ok("resolve", "shop/checkout"); !strings.Contains(out, "eligible") {
		t.Errorf("after more than a lease:\n%s", out)
	}
	if code := c.end(syscall.SIGINT); code != exitOK {
		t.Errorf("interrupted it ended with %d: %q\n%s", code, c.lines(), c.errOut.String())
	}
	if last := c.lines(); last[len(last)-1] != "instance/shop/checkout/one deregistered" {
		t.Errorf("said %q", last)
	}
	w.until("instance list shop/checkout", "no instances")
}

// TestRegisterInterruptedWithoutAServer says what becomes of the instance.
func TestRegisterInterruptedWithoutAServer(t *testing.T) {
	w := newWorld(t).serve(server.Config{})
	w.file("service.yaml", selfless)
	w.ok("apply", "-f", "{dir}/service.yaml")
	c := w.start("instance", "register", "shop/checkout", "--address", "127.0.0.1", "--timeout", "2s",
		"--identity", "spiffe://sightline.test/ns/shop/sa/checkout")
	c.line(0)
	w.stop()
	time.Sleep(300 * time.Millisecond) // it notices, and is between two attempts
	if code := c.end(syscall.SIGTERM); code != exitFailure || !strings.Contains(c.errOut.String(), "its lease lapses instead") {
		t.Errorf("ended with %d:\n%s", code, c.errOut.String())
	}
}

// TestTheTerminalCloses takes the context and the state of a dev server away too.
func TestTheTerminalCloses(t *testing.T) {
	w := newWorld(t)
	c := w.start(strings.Fields("dev --xds-listen 127.0.0.1:0 --api-listen 127.0.0.1:0 --dns-listen 127.0.0.1:0 --http-listen 127.0.0.1:0")...)
	c.line(5)
	w.until("status", "ready")
	if code := c.end(syscall.SIGHUP); code != exitOK {
		t.Errorf("it ended with %d:\n%s", code, c.errOut.String())
	}
	if names, current := w.contexts(); len(names) != 0 || current != "" {
		t.Errorf("contexts are left: %v, current %q", names, current)
	}
}

// TestRegisterNamesTheFlag says which flag a refused field belongs to, and shows
// one that works.
func TestRegisterNamesTheFlag(t *testing.T) {
	w := newWorld(t).serve(server.Config{})
	w.file("service.yaml", selfless)
	w.ok("apply", "-f", "{dir}/service.yaml")
	for line, want := range map[string]string{
		"--address 127.0.0.1":                          "for example: --identity spiffe://sightline.test/ns/shop/sa/checkout",
		"--address nowhere --identity spiffe://x/ns/a": "--address: ",
		"--address 127.0.0.1:x":                        "the port is not a number",
		"--address 127.0.0.1 --port 8443":              "write NAME=NUMBER",
		"--address 127.0.0.1 --weight 5000":            "--weight: ",
		"--address 127.0.0.1 --lease 1s":               "--lease: ",
		"--address 127.0.0.1 --label UPPER":            "--label: ",
		"--address 127.0.0.1 --identity not-an-id":     "--identity: ",
	} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		r := w.runCtx(ctx, "", append(strings.Fields("instance register shop/checkout"), strings.Fields(line)...)...)
		cancel()
		if r.code == exitOK || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: ended with %d, want %q in\n%s", line, r.code, want, r.errOut)
		}
	}
	if r := w.run("", strings.Fields("instance register shop/none --address 127.0.0.1:1")...); r.code != exitFailure || !strings.Contains(r.errOut, "not found") {
		t.Errorf("an unknown service: %d\n%s", r.code, r.errOut)
	}
}
