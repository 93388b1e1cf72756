package harness

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stopGrace is how long a peer may take to end after SIGTERM.
const stopGrace = 10 * time.Second

// Process is a running peer. Its output is kept, and shown when the test failed.
type Process struct {
	Name string

	cmd  *exec.Cmd
	out  *output
	done chan struct{}
	err  error // valid once done is closed
}

// output collects what a process writes; old output goes when there is much.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const keepOutput = 256 << 10

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.buf.Len() > 2*keepOutput {
		o.buf.Next(o.buf.Len() - keepOutput)
	}
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Start runs a program until the test ends. env is added to the environment.
func Start(t testing.TB, name, program string, env []string, args ...string) *Process {
	t.Helper()
	p := &Process{Name: name, out: &output{}, done: make(chan struct{})}
	p.cmd = exec.Command(program, args...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	// A group of its own, so that the peer's own children end with it; and it
	// ends when the test's process does, however that ends.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("output of %s:\n%s", name, tail(p.Output(), 16<<10))
		}
	})
	return p
}

// Kill ends the process as a crash would: SIGKILL, and nothing is flushed.
func (p *Process) Kill() { p.end(syscall.SIGKILL) }

// Stop asks the process to end, and kills it when it does not.
func (p *Process) Stop() {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopGrace):
		p.end(syscall.SIGKILL)
	}
}

func (p *Process) end(s syscall.Signal) {
	p.Signal(s)
	<-p.done
}

// Signal sends a signal to the process and its children.
func (p *Process) Signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, s) // it may just have ended
	}
}

// Wait returns the exit code, or false when the process is still running after
// the time given.
func (p *Process) Wait(limit time.Duration) (code int, ended bool) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), true
	case <-time.After(limit):
		return 0, false
	}
}

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output is what the process has written, standard output and error together.
func (p *Process) Output() string { return p.out.String() }

// Run runs a program to its end, within the limit, and returns its standard
// output and its exit code; standard error goes to the test's log.
func Run(t testing.TB, limit time.Duration, env []string, program string, args ...string) (stdout string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	if err := cmd.Start(); err != nil {
		t.Fatalf("run %s: %v", program, err)
	}
	err := cmd.Wait()
	timer.Stop()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %s: %v", program, err)
	}
	if errs.Len() > 0 {
		t.Logf("%s: %s", filepath.Base(program), strings.TrimSpace(errs.String()))
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "…" + s[len(s)-n:]
}

// Eventually polls until check returns nil, and fails the test with its last
// error when that takes longer than the limit.
func Eventually(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
