package main

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"syscall"
	"time"
)

// partArgument is the first argument of a process that is a part of a
// benchmark; the second names the part.
const partArgument = "part"

// order is what the director tells a part; it answers each with a reply.
type order struct {
	Do string // of the constants below

	// start
	Identities string // folder that holds them
	Services   int
	Instances  int
	Profile    string // file for a CPU profile; empty: none

	// connect
	Addr    string
	From    int // number of the first stream
	Streams int
	Each    int // subscriptions of a stream

	// load
	Changes []change
	Every   time.Duration
}

// What a part can be told.
const (
	doStart   = "start"   // server: listen, with the estate of the start
	doLoad    = "load"    // server: publish the changes
	doUsage   = "usage"   // server: what CPU it has used
	doMemory  = "memory"  // server: what memory it holds
	doConnect = "connect" // clients: open the streams
	doCollect = "collect" // clients: what arrived since the last time
	doEnd     = "end"
)

// reply is a part's answer. Only the fields of its order are set.
type reply struct {
	Err        string
	Addr       string
	At         []int64       // when each change was published, Unix nanoseconds
	CPU        time.Duration // user and system, since the process began
	RSS        int64         // bytes
	Deliveries []delivery
	Bytes      int64 // received since the last time
}

// delivery is one assignment that one client received, took apart and
// acknowledged.
type delivery struct {
	Stream  int32
	Service int32
	Number  int32 // of the change; 0: the start
	At      int64 // Unix nanoseconds
}

// part is a running process of a benchmark.
type part struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	to   *gob.Encoder
	from *gob.Decoder
}

// startPart starts a part as another process of this program.
func startPart(name string, progress io.Writer) (*part, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, partArgument, name)
	cmd.Stderr = progress
	// It must not outlive the director, whatever ends that.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &part{name: name, cmd: cmd, in: in, to: gob.NewEncoder(in), from: gob.NewDecoder(bufio.NewReader(out))}, nil
}

// tell sends an order and waits for its reply.
func (p *part) tell(o order) (reply, error) {
	var r reply
	if err := p.to.Encode(o); err != nil {
		return r, fmt.Errorf("%s: %s: %w", p.name, o.Do, err)
	}
	if err := p.from.Decode(&r); err != nil {
		return r, fmt.Errorf("%s: %s: it ended: %w", p.name, o.Do, err)
	}
	if r.Err != "" {
		return r, fmt.Errorf("%s: %s: %s", p.name, o.Do, r.Err)
	}
	return r, nil
}

// end stops the process and waits for it.
func (p *part) end() {
	_, _ = p.tell(order{Do: doEnd})
	_ = p.in.Close()
	done := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer done.Stop()
	_ = p.cmd.Wait() // what it did was reported in its replies
}

// runPart is the main function of a part: it obeys until it is told to end.
func runPart(ctx context.Context, name string, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	obey, err := newPart(ctx, name)
	if err != nil {
		return err
	}
	from, to := gob.NewDecoder(in), gob.NewEncoder(out)
	for {
		var o order
		if err := from.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		r, err := obey(o)
		if err != nil {
			r.Err = err.Error()
		}
		if err := to.Encode(r); err != nil {
			return err
		}
		if o.Do == doEnd {
			return nil
		}
	}
}

func newPart(ctx context.Context, name string) (func(order) (reply, error), error) {
	switch name {
	case "clients":
		return (&clientsPart{ctx: ctx}).obey, nil
	case sideOurs, sideRaw, sideLinear:
		return (&serverPart{ctx: ctx, name: name}).obey, nil
	}
	return nil, fmt.Errorf("there is no part %q", name)
}

// usage is the CPU that this process has used.
func usage() (reply, error) {
	cpu, err := cpuTime()
	return reply{CPU: cpu}, err
}

// memory is what this process holds. Freed memory is given back first, so that
// nothing else is resident.
func memory() (reply, error) {
	debug.FreeOSMemory()
	rss, err := residentBytes()
	return reply{RSS: rss}, err
}

// cpuTime is the process's user and system time.
func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// residentBytes reads the second field of /proc/self/statm.
func residentBytes() (int64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0, fmt.Errorf("/proc/self/statm: %w", err)
	}
	return resident * int64(os.Getpagesize()), nil
}
