package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/sightlinedev/sightline/identity/svid"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
)

// Outcome is how a probe ended.
type Outcome uint8

// The outcomes.
const (
	NoWord        Outcome = iota // nothing that speaks of the instance: the prober could not ask
	OK                           // it answered well
	Failed                       // it answered, and not well
	Refused                      // the connection was refused
	TimedOut                     // nothing came within the timeout
	Unreachable                  // the network says that there is no way to it
	WrongIdentity                // another identity answered than the one registered
)

var outcomes = [...]struct {
	name string
	wire healthv1.ProbeResult
}{
	NoWord:        {"no word", healthv1.ProbeResult_PROBE_RESULT_UNSPECIFIED},
	OK:            {"ok", healthv1.ProbeResult_PROBE_RESULT_OK},
	Failed:        {"failed", healthv1.ProbeResult_PROBE_RESULT_FAILED},
	Refused:       {"refused", healthv1.ProbeResult_PROBE_RESULT_REFUSED},
	TimedOut:      {"timed out", healthv1.ProbeResult_PROBE_RESULT_TIMEOUT},
	Unreachable:   {"unreachable", healthv1.ProbeResult_PROBE_RESULT_UNREACHABLE},
	WrongIdentity: {"wrong identity", healthv1.ProbeResult_PROBE_RESULT_WRONG_IDENTITY},
}

// String is the outcome as logs write it.
func (o Outcome) String() string { return outcomes[o].name }

// Kind is how a target is asked.
type Kind uint8

// The kinds.
const (
	TCP      Kind = iota // a connection is opened and closed
	GRPC                 // grpc.health.v1 Check
	HTTP                 // GET that answers 200 to 299
	DialBack             // mutual TLS, and the registered identity answers
)

var kinds = [...]string{TCP: "tcp", GRPC: "grpc", HTTP: "http", DialBack: "dial-back"}

// String is the kind as logs and metrics write it.
func (k Kind) String() string { return kinds[k] }

// Result is what one probe came to.
type Result struct {
	UID, Service string
	Address      string // that was asked, host:port; a host name where none was found
	Kind         Kind
	Outcome      Outcome
	Detail       string        // in words that repeat while the cause does
	Latency      time.Duration // from the first packet to the outcome
	At           time.Time     // of the outcome
	// Bytes that the probe wrote and read, above TCP.
	Sent, Received int

	asked   question
	started time.Time
	excuse  time.Duration // how long this process did not run meanwhile; 0: it did
}

// speaks reports whether the control plane is told. Of a dial-back it is told
// whom it met; that an unproved address does not answer says nothing of anybody.
func (r *Result) speaks() bool {
	if r.Kind == DialBack {
		return r.Outcome == OK || r.Outcome == WrongIdentity
	}
	return r.Outcome != NoWord
}

// answer is an outcome with its words.
type answer struct {
	outcome Outcome
	detail  string
}

// ours are failures of the machine that the prober runs on; they say nothing
// about the one that it asked.
var ours = []error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM,
	syscall.EACCES, syscall.EPERM, context.Canceled}

var unreachable = []error{syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENETDOWN, syscall.EHOSTDOWN}

// classify reads an error of dialling, or of speaking over the connection.
func classify(err error) answer {
	var refused *svid.RefusedError
	var timeout net.Error
	switch {
	case err == nil:
		return answer{OK, ""}
	case isAny(err, ours):
		return answer{NoWord, words(err)}
	case errors.As(err, &refused):
		return answer{WrongIdentity, refused.Reason.Error()}
	case errors.Is(err, syscall.ECONNREFUSED):
		return answer{Refused, "connection refused"}
	case isAny(err, unreachable):
		return answer{Unreachable, words(err)}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT),
		errors.As(err, &timeout) && timeout.Timeout():
		return answer{TimedOut, "no answer within the timeout"}
	}
	return answer{Failed, words(err)}
}

func isAny(err error, list []error) bool {
	for _, e := range list {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// words describes an error without what changes from probe to probe, such as
// our own port.
func words(err error) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe):
		return "the connection was closed before an answer"
	}
	s := err.Error()
	return s[:min(len(s), 200)]
}
