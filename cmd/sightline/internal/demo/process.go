package demo

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// process is one child. Its standard error goes to a file of its name in the
// state folder, so that a part that fails can be read afterwards.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   *os.File
	done  chan struct{} // closed when it has ended
}

// start runs a command; lines of its output go to onLine, from a goroutine
// that ends with the process. env is added to our own environment.
func start(dir, name string, onLine func([]byte), env []string, argv ...string) (*process, error) {
	log, err := os.Create(filepath.Join(dir, "log", name+".log"))
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: exec.Command(argv[0], argv[1:]...), log: log, done: make(chan struct{})}
	p.cmd.Stderr = log
	p.cmd.Env = append(os.Environ(), env...)
	// Children end with us, whatever ends us, and Ctrl-C reaches only the parent.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.done)
		lines := bufio.NewScanner(out)
		lines.Buffer(make([]byte, 64<<10), 4<<20)
		for lines.Scan() {
			if onLine != nil {
				onLine(lines.Bytes())
			}
		}
		_ = p.cmd.Wait()
		_ = log.Close()
	}()
	return p, nil
}

// startPart starts this binary again as one of the demo's parts.
func startPart(self, dir string, p Part, onLine func([]byte)) (*process, error) {
	spec, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	var env []string
	if p.Bootstrap != "" {
		env = append(env, "GRPC_XDS_BOOTSTRAP_CONFIG="+p.Bootstrap) // grpc-go reads it when the process starts
	}
	return start(dir, p.Name, onLine, env, self, "demo", "part", string(spec))
}

// kill ends the process as a crash does, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// tell writes a command line to the process.
func (p *process) tell(line string) error {
	_, err := fmt.Fprintln(p.stdin, line)
	return err
}

// stop asks the process to end and kills it when it does not.
func (p *process) stop(signal syscall.Signal, patience time.Duration) {
	_ = p.stdin.Close()
	_ = p.cmd.Process.Signal(signal)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.kill()
	}
}

// ended reports whether the process is gone.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
