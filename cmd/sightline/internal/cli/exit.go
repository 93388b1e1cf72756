package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Exit codes (UX.md §5.8).
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitTimeout     = 4
	exitRefused     = 5
	exitDegraded    = 6
)

// exitError is an error that chose its exit code, and may say what to do. An
// empty text means that all has been said.
type exitError struct {
	code int
	err  error
	hint string
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usagef is a mistake in the command line itself.
func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// report prints an error for a person and returns the process's exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	var e *exitError
	if errors.As(err, &e) {
		if msg := e.Error(); msg != "" {
			fmt.Fprintf(w, "error: %s\n", msg)
		}
		if e.hint != "" {
			fmt.Fprintf(w, "  %s\n", e.hint)
		}
		return e.code
	}
	if s, ok := status.FromError(err); ok {
		return reportStatus(w, s)
	}
	fmt.Fprintf(w, "error: %s\n", err)
	if errors.Is(err, context.DeadlineExceeded) {
		return exitTimeout
	}
	return exitFailure
}

// reportStatus prints what a server refused: its message, which ends in what to
// do and the SL code, and each bad field that the message does not name.
func reportStatus(w io.Writer, s *status.Status) int {
	fmt.Fprintf(w, "error: %s\n", plain(s.Message()))
	for _, v := range violations(s) {
		if f := v.GetField() + ": " + v.GetDescription(); !strings.Contains(s.Message(), f) {
			fmt.Fprintf(w, "  %s\n", plain(f))
		}
	}
	return exitOf(s)
}

// exitOf is the exit code of a status. A server that answered was reached, also
// when it says that something of it is unavailable.
func exitOf(s *status.Status) int {
	switch s.Code() {
	case codes.Unavailable:
		if answered(s) {
			return exitFailure
		}
		return exitUnreachable
	case codes.DeadlineExceeded:
		return exitTimeout
	case codes.FailedPrecondition, codes.PermissionDenied:
		return exitRefused
	}
	return exitFailure
}

// statusOf is the status of an error that a Sightline server made.
func statusOf(err error) (*status.Status, bool) {
	s, ok := status.FromError(err)
	return s, ok && err != nil && answered(s)
}

// answered reports whether a Sightline server made the status.
func answered(s *status.Status) bool {
	for _, d := range s.Details() {
		if _, ok := d.(*errdetails.ErrorInfo); ok {
			return true
		}
	}
	return false
}

// violations are the fields that a server found bad.
func violations(s *status.Status) (out []*errdetails.BadRequest_FieldViolation) {
	for _, d := range s.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			out = append(out, bad.GetFieldViolations()...)
		}
	}
	return out
}
